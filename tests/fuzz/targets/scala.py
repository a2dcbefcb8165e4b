"""Configurations of Kestrel, written in Scala."""

from __future__ import annotations

from collections.abc import Iterator

from kestrel.config.load import loads
from kestrel.config.model import Config, QueueSettings, ZooKeeperSettings
from kestrel.config.setting import settings_of
from kestrel.tools.convert_config.command import convert_text
from kestrel.tools.tool_runner import EX_USAGE, ToolFailed
from tests.fuzz.target import Target


def check(data: bytes) -> None:
    """Check that the result is TOML that loads, with remarks on existing lines, or one error of the input."""
    text = data.decode("utf-8", "replace")
    lines = text.count("\n") + 1
    try:
        toml, taken = convert_text(text, "a.scala")
    except ToolFailed as failed:
        assert failed.status == EX_USAGE
        assert str(failed).startswith("a.scala")
        assert all(character >= " " or character == "\n" for character in str(failed)), failed
        return
    loads(toml)
    for remark in taken.remarks:
        assert 1 <= remark.first_line <= remark.last_line <= lines, remark
        assert remark.reason and "\n" not in str(remark)
        assert str(remark).partition(":")[0] in toml


def words() -> Iterator[bytes]:
    """Yield the name of every setting, and values of every kind."""
    for cls in (Config, QueueSettings, ZooKeeperSettings):
        for setting in settings_of(cls).values():
            yield f"\n{setting.kestrel_name} = ".encode()
    yield from (
        b"new KestrelConfig {", b"\n}\n", b"new QueueBuilder {", b"new AliasBuilder {", b"new ZooKeeperBuilder {",
        b"new LoggerConfig {", b"new FileHandlerConfig {", b"default.", b"admin.", b"loggers = ", b"handlers = ",
        b"List(", b"Some(", b"None", b"Nil", b" :: ", b" ::: ", b".megabytes", b".seconds", b"Int.MaxValue",
        b"Duration.MaxValue", b"Long.MaxValue.bytes", b"Level.INFO", b"true", b'"work"', b'"""', b"/*", b"*/", b"//",
        b"[String]", b" with ", b"val ", b"`", b"'", b"\\u0041",
    )  # fmt: skip


TARGET = Target(check, words, max_bytes=4096)
