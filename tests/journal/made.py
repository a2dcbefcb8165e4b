"""Hand-written records, from the table of the format, and files read back through the real storage."""

from __future__ import annotations

from pathlib import Path

from twisted.internet.task import Clock

from kestrel.config.model import QueueSettings
from kestrel.disk.files import Disk
from kestrel.disk.reader import FileReader
from kestrel.item import Item
from kestrel.storage.journal.storage import JournalStorage
from kestrel.storage.window import Window
from kestrel.testing.threads import SteppedThreads

NOW_MS = 1_700_003_600_000
"""The time of the recorded journals."""


def i32(number: int) -> bytes:
    return number.to_bytes(4, "little", signed=True)


def i64(number: int) -> bytes:
    return number.to_bytes(8, "little", signed=True)


def add(data: bytes, expiry_s: int = 0) -> bytes:
    return b"\x00" + i32(4 + len(data)) + i32(expiry_s) + data


REMOVE = b"\x01"


def addx(data: bytes, add_ms: int = 1, expiry_ms: int = 0) -> bytes:
    return b"\x02" + i32(16 + len(data)) + i64(add_ms) + i64(expiry_ms) + data


REMOVE_TENTATIVE = b"\x03"


def save_xid(xid: int) -> bytes:
    return b"\x04" + i32(xid)


def unremove(xid: int) -> bytes:
    return b"\x05" + i32(xid)


def confirm(xid: int) -> bytes:
    return b"\x06" + i32(xid)


def add_xid(xid: int, data: bytes, add_ms: int = 1, expiry_ms: int = 0) -> bytes:
    return b"\x07" + i32(xid) + addx(data, add_ms, expiry_ms)[1:]


def continue_(xid: int, data: bytes, add_ms: int = 1, expiry_ms: int = 0) -> bytes:
    return b"\x08" + i32(xid) + addx(data, add_ms, expiry_ms)[1:]


def state_dump(xid: int, *restated: bytes, count: int | None = None) -> bytes:
    """Return a STATE_DUMP followed by these ADD_XIDs; `count` replaces their number."""
    return b"\x08" + i32(xid) + i32(len(restated) if count is None else count) + b"".join(restated)


def open_(xid: int) -> bytes:
    return b"\x09" + i32(xid)


class BytesReader(FileReader):
    """A journal file in memory."""

    def __init__(self, contents: bytes) -> None:
        self._contents = contents
        self.size = len(contents)

    def read(self, offset: int, size: int) -> bytes:
        return self._contents[offset : offset + size]

    def close(self) -> None:
        pass


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
        items = list(iter(lambda: queue.take(True), None))
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
