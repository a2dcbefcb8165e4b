"""The storage that a description such as `journal:/var/spool/kestrel` selects."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from twisted.internet.task import Clock

from kestrel.config.model import QueueSettings
from kestrel.config.setting import settings_of
from kestrel.errors import BadStorageArgument
from kestrel.storage.interfaces import IStorage
from kestrel.storage.journal.storage import JournalStorage
from kestrel.storage.memory import MemoryStorage
from kestrel.storage.registry import FACTORIES, settings_bounded_by, settings_unused_by, storage_from_string
from kestrel.storage.total_memory import MemoryLimit
from kestrel.testing.threads import SteppedThreads


def described(description: str) -> IStorage:
    return storage_from_string(description, Clock(), SteppedThreads(), MemoryLimit())


@contextmanager
def started(description: str) -> Iterator[IStorage]:
    """Start the storage, and stop it at the end."""
    threads = SteppedThreads()
    storage = storage_from_string(description, Clock(), threads, MemoryLimit())
    storage.start(lambda name: QueueSettings())
    threads.run_all()
    yield storage
    threads.run_all()
    storage.close()
    threads.run_all()


def test_word_before_the_colon_selects_the_storage() -> None:
    assert isinstance(described("memory:"), MemoryStorage)
    assert isinstance(described("journal:/somewhere"), JournalStorage)


@pytest.mark.parametrize("slash", ["", "/"])
def test_argument_of_journal_is_its_folder(tmp_path: Path, slash: str) -> None:
    with started(f"journal:{tmp_path}/queues{slash}?reserve=1KiB") as storage:
        storage.put([storage.queue(b"work", QueueSettings())], b"a", 1, 0)
    assert (tmp_path / "queues" / "work").exists()


def test_reserve_has_the_size_of_its_option(tmp_path: Path) -> None:
    with started(f"journal:{tmp_path}?reserve=3KiB"):
        assert 3 * 1024 in [path.stat().st_size for path in (tmp_path / ".kestrel").iterdir() if path.is_file()]


def test_scroll_has_a_folder_and_an_archive(tmp_path: Path) -> None:
    with started(f"scroll:{tmp_path}/queues/?archive={tmp_path}/archive&reserve=1KiB") as storage:
        queue = storage.queue(b"work", QueueSettings(default_journal_size_bytes=1))
        for data in (b"a", b"b"):
            storage.put([queue], data, 1, 0)
            storage.commit([queue])
        queue.take(False)
        storage.commit([queue])
    assert (tmp_path / "queues" / "work.read.").exists()
    assert [path.name.partition(".")[0] for path in (tmp_path / "archive").iterdir()] == ["archive~work"]


@pytest.mark.parametrize(
    ("description", "reason"),
    [
        ("", "names no storage"),
        ("/var/spool/kestrel", "names no storage"),
        ("memory", "names no storage"),
        ("memory:here", "memory.*takes no argument"),
        ("memory:?reserve=1", "memory.*no options"),
        ("tape:/dev/st0", "tape.*journal.*memory"),
        ("journal:", "journal.*needs a folder"),
        ("journal:/a?reserve", "cannot be read"),
        ("journal:/a?reserve=many", "reserve.*many"),
        ("journal:/a?colour=red", "journal.*no option colour"),
        ("scroll:", "scroll.*needs a folder"),
        ("scroll:/a?reserve=many", "reserve.*many"),
        ("scroll:/a?colour=red", "scroll.*no option colour"),
        ("scroll:/a?archive=", "archive needs a folder"),
    ],
)
def test_invalid_description_is_refused_with_a_reason(description: str, reason: str) -> None:
    with pytest.raises(BadStorageArgument, match=reason):
        described(description)


@pytest.mark.parametrize(
    ("name", "capabilities"),
    [
        ("journal", {"durable", "errors_kept", "order_kept"}),
        ("scroll", {"durable", "errors_kept", "ranges", "shared_fanout"}),
        ("memory", {"errors_kept"}),
        ("postgres", {"durable", "errors_kept"}),
    ],
)
def test_factory_lists_its_capabilities(name: str, capabilities: set[str]) -> None:
    assert FACTORIES[name].capabilities == capabilities


@pytest.mark.parametrize("options", ["journal:{}/queues", "scroll:{}/queues?archive={}/archive"])
def test_storage_that_is_not_started_makes_no_files(tmp_path: Path, options: str) -> None:
    described(options.format(tmp_path, tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_scroll_does_not_use_settings_of_rewriting() -> None:
    unused = {"max_journal_size_bytes", "min_journal_compact_delay_ms", "disable_aggressive_rewrites"}
    assert settings_unused_by("scroll:/somewhere?reserve=1KiB") == unused
    assert unused <= settings_of(QueueSettings).keys()


@pytest.mark.parametrize("description", ["journal:/somewhere", "memory:", "nosuch:x", ""])
def test_other_storages_use_all_settings(description: str) -> None:
    assert settings_unused_by(description) == frozenset()


def test_only_scroll_bounds_the_memory_of_a_queue() -> None:
    assert settings_bounded_by("scroll:/somewhere") == {"max_memory_size_bytes": 256 * 1024}
    assert settings_bounded_by("journal:/somewhere") == settings_bounded_by("nothing") == {}
