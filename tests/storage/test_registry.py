"""Which storage a described string means."""

from __future__ import annotations

from pathlib import Path

import pytest
from twisted.internet.task import Clock

from kestrel.config.model import QueueSettings
from kestrel.config.setting import settings_of
from kestrel.errors import BadStorageArgument
from kestrel.storage.interfaces import IStorage
from kestrel.storage.journal.storage import JournalStorage
from kestrel.storage.memory import MemoryStorage
from kestrel.storage.registry import settings_bounded_by, settings_unused_by, storage_from_string
from kestrel.storage.total_memory import MemoryLimit
from kestrel.testing.threads import SteppedThreads


def described(description: str) -> IStorage:
    return storage_from_string(description, Clock(), SteppedThreads(), MemoryLimit())


def test_the_word_before_the_colon_says_which() -> None:
    assert isinstance(described("memory:"), MemoryStorage)
    assert isinstance(described("journal:/somewhere"), JournalStorage)


@pytest.mark.parametrize("slash", ["", "/"])
def test_a_journals_argument_is_its_folder(tmp_path: Path, slash: str) -> None:
    threads = SteppedThreads()
    storage = storage_from_string(f"journal:{tmp_path}/queues{slash}?reserve=1KiB", Clock(), threads, MemoryLimit())
    storage.start(lambda name: QueueSettings())
    threads.run_all()
    storage.queue(b"work", QueueSettings())
    storage.put([storage.queue(b"work", QueueSettings())], b"a", 1, 0)
    storage.close()
    threads.run_all()
    assert (tmp_path / "queues" / "work").exists()


def test_the_reserve_is_as_large_as_its_option_says(tmp_path: Path) -> None:
    threads = SteppedThreads()
    storage = storage_from_string(f"journal:{tmp_path}?reserve=3KiB", Clock(), threads, MemoryLimit())
    storage.start(lambda name: QueueSettings())
    threads.run_all()
    assert 3 * 1024 in [path.stat().st_size for path in (tmp_path / ".kestrel").iterdir() if path.is_file()]
    storage.close()
    threads.run_all()


@pytest.mark.parametrize(
    "description",
    [
        "",
        "/var/spool/kestrel",
        "memory",
        "memory:here",
        "tape:/dev/st0",
        "journal:",
        "journal:/a?reserve",
        "journal:/a?reserve=many",
    ],
)
def test_what_describes_no_storage_is_refused_with_a_sentence(description: str) -> None:
    with pytest.raises(BadStorageArgument, match=r"\w+ \w+"):
        described(description)


def test_a_scroll_goes_by_no_setting_that_is_about_rewriting() -> None:
    unused = {"max_journal_size_bytes", "min_journal_compact_delay_ms", "disable_aggressive_rewrites"}
    assert settings_unused_by("scroll:/somewhere?reserve=1KiB") == unused
    assert unused <= settings_of(QueueSettings).keys()


@pytest.mark.parametrize("description", ["journal:/somewhere", "memory:", "nosuch:x", ""])
def test_of_any_other_storage_no_setting_is_known_that_it_does_not_go_by(description: str) -> None:
    assert settings_unused_by(description) == frozenset()


def test_a_scrolls_argument_is_its_folder_and_its_archive_another(tmp_path: Path) -> None:
    threads = SteppedThreads()
    description = f"scroll:{tmp_path}/queues/?archive={tmp_path}/archive&reserve=1KiB"
    storage = storage_from_string(description, Clock(), threads, MemoryLimit())
    storage.start(lambda name: QueueSettings())
    threads.run_all()
    queue = storage.queue(b"work", QueueSettings(default_journal_size_bytes=1))
    for data in (b"a", b"b"):
        storage.put([queue], data, 1, 0)
        storage.commit([queue])
    queue.take(False)
    storage.commit([queue])
    threads.run_all()
    storage.close()
    threads.run_all()
    assert (tmp_path / "queues" / "work.read.").exists()
    assert [path.name.partition(".")[0] for path in (tmp_path / "archive").iterdir()] == ["archive~work"]


def test_a_scroll_goes_by_no_larger_memory_than_its_window_and_others_by_any() -> None:
    assert settings_bounded_by("scroll:/somewhere") == {"max_memory_size_bytes": 256 * 1024}
    assert settings_bounded_by("journal:/somewhere") == settings_bounded_by("nothing") == {}
