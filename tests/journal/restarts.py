"""Replays and restarts over journal files, and checks of them against the reference reader."""

from __future__ import annotations

from pathlib import Path

from twisted.internet.task import Clock
from twisted.python.failure import Failure

from kestrel.config.model import QueueSettings
from kestrel.disk.files import Disk
from kestrel.disk.reader import PART_BYTES
from kestrel.disk.repair import ReadEnd
from kestrel.item import Item
from kestrel.journal.replay import replay
from kestrel.storage.journal.storage import JournalStorage
from kestrel.storage.window import Window
from kestrel.testing.threads import SteppedThreads
from tests.journal import reference
from tests.journal.handwritten import BytesReader

NOW_MS = 1_700_003_600_000
"""The time of the recorded journals."""


class ReplayedWindow(Window):
    """A window without a limit of memory, for a replay to fill."""

    def append(self, record: bytes, offset: int = 0) -> None:
        super().append(record)

    def extend(self, records: list[bytes], offset: int) -> None:
        for record in records:
            self.append(record)

    def expect_implicit_xid(self) -> None:
        pass


class Journal:
    """A started storage over a folder."""

    def __init__(self, folder: Path, disk: Disk | None = None) -> None:
        self._folder = folder
        self._threads = SteppedThreads()
        self._storage = JournalStorage(
            str(folder).encode(), Clock(), self._threads, reserve_bytes=1, now_ms=lambda: NOW_MS, disk=disk
        )
        loaded: list[dict[bytes, object]] = []
        self._storage.start(lambda name: QueueSettings()).addCallback(loaded.append)
        self._threads.run_all()
        self.loaded = loaded[0]

    def items(self, name: bytes = b"work") -> list[tuple[bytes, int, int]]:
        """Return every item of a queue as (data, add ms, expiry ms), and put them back."""
        return [(item.data, item.add_ms, item.expiry_ms) for item in self._items(name)]

    def errors(self, name: bytes = b"work") -> list[int]:
        """Return the error count of every item of a queue."""
        return [item.errors for item in self._items(name)]

    def _items(self, name: bytes) -> list[Item]:
        queue = self._storage.queue(name, QueueSettings())
        assert queue.open_reads == 0
        items = []
        while queue.items:
            queue.fill()
            self._threads.run_all()
            item = queue.take(True)
            assert item is not None
            items.append(item)
        queue.put_back([item.xid for item in items], False)
        return items

    def next_xid(self, name: bytes = b"work") -> int:
        """Return the xid of the next open read."""
        return self._storage.queue(name, QueueSettings()).next_xid()

    def put(self, data: bytes, name: bytes = b"work") -> None:
        """Put an item with an add time of 1, and commit it."""
        queue = self._storage.queue(name, QueueSettings())
        self._storage.put([queue], data, 1, 0)
        assert list(self._storage.commit([queue])) == []

    def close(self) -> None:
        self._storage.close()
        self._threads.run_all()


def restarted_items(folder: Path, name: bytes = b"work") -> list[tuple[bytes, int, int]]:
    """Start over a folder, return the items of a queue, and stop."""
    journal = Journal(folder)
    try:
        return journal.items(name)
    finally:
        journal.close()


def restarted_errors(folder: Path, name: bytes = b"work") -> list[int]:
    """Start over a folder, return the error counts of a queue, and stop."""
    journal = Journal(folder)
    try:
        return journal.errors(name)
    finally:
        journal.close()


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder with their contents; a missing folder has none."""
    if not folder.exists():
        return {}
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def set_aside(folder: Path) -> list[bytes]:
    """Return the contents of the quarantined copies of damaged files."""
    return list(files_of(folder / ".kestrel" / "damaged").values())


def replayed(contents: bytes) -> tuple[ReplayedWindow, ReadEnd]:
    """Replay a file into an empty queue, and return the queue and how the replay ended."""
    window = ReplayedWindow()
    return window, replay(BytesReader(contents), window, NOW_MS)


def check_against_the_reference(*files: bytes, part_bytes: int = PART_BYTES) -> None:
    """Check that replaying these files in order gives what the reference reader says."""
    window, queue = ReplayedWindow(), reference.Queue(NOW_MS)
    for contents in files:
        end = replay(BytesReader(contents, part_bytes), window, NOW_MS)
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
