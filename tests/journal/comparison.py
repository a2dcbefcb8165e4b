"""Checks of replay and of a start against the reference reader (`tests.journal.reference`)."""

from __future__ import annotations

from pathlib import Path

from twisted.python.failure import Failure

from kestrel.disk.files import Disk
from kestrel.item import Item
from kestrel.journal.replay import ReplayEnd, replay
from tests.journal import reference
from tests.journal.made import NOW_MS, BytesReader, Journal, ReplayedWindow, files_of, set_aside


def replayed(contents: bytes) -> tuple[ReplayedWindow, ReplayEnd]:
    """Replay a file into an empty queue, and return the queue and how the replay ended."""
    window = ReplayedWindow()
    return window, replay(BytesReader(contents), window, NOW_MS)


def check_against_the_reference(*files: bytes) -> None:
    """Check that replaying these files in order gives what the reference reader says."""
    window, queue = ReplayedWindow(), reference.Queue(NOW_MS)
    for contents in files:
        end = replay(BytesReader(contents), window, NOW_MS)
        reading = reference.read(contents)
        queue.do(reading.records)
        assert (end.offset, end.records) == (reading.end, len(reading.records))
        assert (end.problem is None) == (reading.problem == "")
        assert end.is_unfinished == (reading.problem == "unfinished")
        assert end.is_closed == reading.is_closed
        assert (window.items, window.open_xids()) == (len(queue.items), sorted(queue.opened))
        assert window.bytes == sum(len(data) for data, _, _ in queue.items)
        assert (window.last_xid, window.next_xid()) == (queue.last_xid, queue.next_xid())
    window.put_back(window.open_xids(), False)
    items = list(iter(lambda: window.take(False), None))
    assert [seen(item) for item in items] == queue.after_a_restart()
    assert [item.errors for item in items] == queue.errors_after_a_restart()


def seen(item: Item) -> tuple[bytes, int, int]:
    """Return data, add time and expiry of an item."""
    return item.data, item.add_ms, item.expiry_ms


def check_recovery(folder: Path, contents: bytes, disk: Disk | None = None) -> None:
    """Start over these contents, and check that no byte and no good record is lost."""
    folder.mkdir()
    (folder / "work").write_bytes(contents)
    reading = reference.read(contents)
    journal = Journal(folder, disk)
    assert not isinstance(journal.loaded[b"work"], Failure)
    items = reference.items_after(contents, now_ms=NOW_MS)
    kept = files_of(folder).get(f"work.{NOW_MS}" if reading.is_closed else "work")
    if kept is None:  # the closed file of an empty queue is erased
        assert (reading.is_closed, items, journal.items(), set_aside(folder)) == (True, [], [], [])
        journal.close()
        return
    if reading.problem == "damaged" and reading.end == 0:
        assert (kept, set_aside(folder)) == (b"", [contents])
    else:
        assert len(kept) == reading.end
        assert kept + b"".join(set_aside(folder)) == contents
    assert journal.items() == items
    journal.close()
