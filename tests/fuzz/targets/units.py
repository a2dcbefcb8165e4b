"""Values of all kinds of settings, such as sizes, durations and access lists, from any text."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from kestrel.config.model import (
    AdminSettings,
    AliasSettings,
    Config,
    LoggingSettings,
    QueueSettings,
    TlsSettings,
    ZooKeeperSettings,
)
from kestrel.config.setting import Setting, settings_of
from kestrel.config.units import format_duration_ms, format_size, parse_duration_ms, parse_size
from tests.fuzz.target import Target

SETTINGS: list[Setting] = [
    setting
    for cls in (Config, QueueSettings, AliasSettings, AdminSettings, TlsSettings, ZooKeeperSettings, LoggingSettings)
    for setting in settings_of(cls).values()
]


def check(data: bytes) -> None:
    """Check that each kind of value is parsed, or refused by a ValueError with a message."""
    for value in _values(data):
        for parse, show in ((parse_size, format_size), (parse_duration_ms, format_duration_ms)):
            number = _parsed(parse, value)
            if number is not None:
                assert parse(show(number)) == number
        for kind in {setting.kind for setting in SETTINGS}:
            parsed = _parsed(kind.parse, value)
            if parsed is not None:
                assert isinstance(kind.show(parsed), str)


def _values(data: bytes) -> Iterator[object]:
    """Yield the text, and the value that it has in TOML."""
    text = data.decode("utf-8", "replace")
    yield text
    with suppress(ValueError, RecursionError):
        yield tomllib.loads(f"a = {text}")["a"]


def _parsed(parse: Any, value: object) -> Any:
    try:
        return parse(value)
    except ValueError as refusal:
        assert str(refusal)
        return None


WORDS = (
    "16MiB", "16.megabytes", "1.5 GB", "100ms", "1m30s", "2.hours", "1d", "never", "none", "world:anyone:cdrwa",
    "digest:user:hash:r", "open-unsafe", "a+b", "journal:", "scroll:/x?archive=y", "memory:", "unix admin.sock",
    "tcp:22133:interface=127.0.0.1", "9223372036854775808", "0.0000000001s", "1e400", "nan", "localhost:2181",
)  # fmt: skip


TARGET = Target(check, lambda: (word.encode() for word in WORDS), max_bytes=256)
