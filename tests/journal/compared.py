"""What replay and a start make of a journal's bytes, held against the second reader (`tests.journal.reference`)."""

from __future__ import annotations

from pathlib import Path

from twisted.python.failure import Failure

from kestrel.disk.files import Disk
from kestrel.item import Item
from kestrel.journal.replay import ReplayEnd, replay
from tests.journal import reference
from tests.journal.made import NOW_MS, BytesReader, Journal, ReplayedWindow, files_of, set_aside


def replayed(contents: bytes) -> tuple[ReplayedWindow, ReplayEnd]:
    """What a file makes of an empty queue, and how its replay ended."""
    window = ReplayedWindow()
    return window, replay(BytesReader(contents), window, NOW_MS)


def check_against_the_reference(*files: bytes) -> None:
    """Replay of these files, one after the other, does what the second reader says."""
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
    """What the file said of an item."""
    return item.data, item.add_ms, item.expiry_ms


def check_recovery(folder: Path, contents: bytes, disk: Disk | None = None) -> None:
    """A server starts over these contents, and loses no byte of them and none of the good records."""
    folder.mkdir()
    (folder / "work").write_bytes(contents)
    reading = reference.read(contents)
    journal = Journal(folder, disk)
    assert not isinstance(journal.loaded[b"work"], Failure)
    items = reference.items_after(contents, now_ms=NOW_MS)
    kept = files_of(folder).get(f"work.{NOW_MS}" if reading.is_closed else "work")
    if kept is None:  # a closed file of an empty queue goes
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
