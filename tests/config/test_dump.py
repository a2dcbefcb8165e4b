"""All settings are shown, in a form that a file can hold."""

from __future__ import annotations

import json

import attrs
import pytest
from hypothesis import given

from kestrel.config.dump import alias_config, queue_config
from kestrel.config.load import loads
from kestrel.config.model import ACL, AliasSettings, QueueSettings
from kestrel.config.setting import PORT, SettingKind, settings_of
from kestrel.escaping import unescape_name
from tests.config.made import queue_settings

TYPE_OF = {
    setting.kestrel_name: str(getattr(attrs.fields(QueueSettings), field).type)
    for field, setting in settings_of(QueueSettings).items()
}


def as_toml(name: str, text: str) -> str:
    """The value again with the quotes and brackets that a file needs."""
    type_ = TYPE_OF[name]
    if type_ == "bool" or (type_.startswith("int") and text.isdigit()):
        return text
    if type_.startswith("tuple") and text != "none":
        return json.dumps(text.split(",") if text else [], ensure_ascii=False)
    if type_.startswith("bytes"):
        text = unescape_name(text.encode()).decode()
    return json.dumps(text, ensure_ascii=False)


def test_values_are_shown_as_in_a_file() -> None:
    settings = QueueSettings(
        max_items=10,
        max_size_bytes=5,
        max_age_ms=172_800_000,
        sync_journal_ms=0,
        expire_to_queue=b"jobs_too_late",
        white_list_client_id_for_enqueue=(b"one", b"two"),
        white_list_client_id_for_dequeue=(),
    )
    expected = {
        "maxItems": "10",
        "maxSize": "5B",
        "maxItemSize": "none",
        "maxAge": "2d",
        "defaultJournalSize": "16MiB",
        "keepJournal": "true",
        "fanoutOnly": "false",
        "syncJournal": "0",
        "expireToQueue": "jobs_too_late",
        "errorQueue": "none",
        "whiteListClientIdForEnqueue": "one,two",
        "whiteListClientIdForDequeue": "",
    }
    shown = dict(queue_config(settings))
    assert {name: shown[name] for name in expected} == expected
    assert dict(queue_config(QueueSettings()))["syncJournal"] == "never"


@given(queue_settings)
def test_every_setting_is_shown_in_the_order_of_the_fields(settings: QueueSettings) -> None:
    assert [name for name, _ in queue_config(settings)] == list(TYPE_OF)


@given(
    queue_settings.filter(
        # These would be cycles, and "told" is what the queue is called below.
        lambda settings: all(
            target is None or target.partition(b"+")[0] != b"told"
            for target in (settings.expire_to_queue, settings.error_queue)
        )
    )
)
def test_shown_settings_in_a_file_load_as_equal_settings(settings: QueueSettings) -> None:
    lines = [f"{name} = {as_toml(name, value)}" for name, value in queue_config(settings)]
    text = "\n".join(["[[queues]]", 'name = "told"', *lines])
    config = loads(text)
    assert config.queues[b"told"].over(QueueSettings()) == settings


def test_an_alias_is_shown_with_its_destinations() -> None:
    settings = AliasSettings(name=b"all", destination_queues=(b"a", b"b"))
    assert alias_config(settings) == [("destinationQueues", "a,b")]


@pytest.mark.parametrize("name", [b"\xff\x00", "Größe".encode()])
def test_a_shown_name_unescapes_to_the_name(name: bytes) -> None:
    ((_, told),) = alias_config(AliasSettings(name=b"all", destination_queues=(name,)))
    assert unescape_name(told.encode()) == name


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (PORT, 22133, "22133"),
        (PORT, None, "false"),
        (ACL, "open-unsafe", "open-unsafe"),
        (ACL, ("world:anyone:r", "digest:me:hash=:cdrwa"), "world:anyone:r,digest:me:hash=:cdrwa"),
    ],
)
def test_server_settings_are_shown_as_in_a_file(kind: SettingKind, value: object, text: str) -> None:
    assert kind.show(value) == text
