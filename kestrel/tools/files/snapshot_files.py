"""The files of a journal or scroll, opened together, and the results of reading them.

A server may rename and erase the files later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from hashlib import blake2b
from typing import Any, Self

from kestrel.disk.files import Disk
from kestrel.disk.reader import FileReader
from kestrel.disk.repair import ReadEnd
from kestrel.journal.fileset import JournalFile
from kestrel.tools.formatting import count, show_path
from kestrel.tools.progress import ByteProgress


class ProgressReader(FileReader):
    """A file reader that reports the bytes read to a progress."""

    def __init__(self, disk: Disk, path: bytes, progress: ByteProgress | None = None) -> None:
        super().__init__(disk, path)
        self._path = path
        self.progress = progress

    def read(self, offset: int, size: int) -> bytes:
        data = super().read(offset, size)
        if self.progress is not None:
            self.progress.reached(self._path, offset + len(data))
        return data


class SnapshotFiles:
    """Files that stay open until the context exits. They are read up to the size that they had when opened."""

    def __init__(self, disk: Disk, folder: bytes, file_names: Iterable[bytes]) -> None:
        self.disk = disk
        self.folder = folder
        self.readers: dict[bytes, ProgressReader] = {}
        """Open files by file name."""
        with ExitStack() as stack:
            for name in file_names:
                self.readers[name] = stack.enter_context(ProgressReader(disk, folder + b"/" + name))
            self._stack = stack.pop_all()

    @property
    def size(self) -> int:
        return sum(reader.size for reader in self.readers.values())

    def watch(self, progress: ByteProgress | None) -> None:
        """Report further reads to `progress`, or to none."""
        for reader in self.readers.values():
            reader.progress = progress

    def open_file(self, file_name: bytes) -> AbstractContextManager[FileReader]:
        """Return one of the files as a context (`kestrel.storage.journal.load.OpenFile`). It stays open."""
        return nullcontext(self.readers[file_name])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


class JournalSnapshot(SnapshotFiles):
    """The open journal files of one queue, in replay order."""

    def __init__(self, disk: Disk, folder: bytes, queue: bytes, files: Sequence[JournalFile]) -> None:
        super().__init__(disk, folder, (file.file_name for file in files))
        self.queue = queue
        self.files = files


class FileReadResult:
    """Result of reading one file: where its valid records end, and how many there are of each kind."""

    def __init__(self, file_name: bytes, size: int) -> None:
        self.file_name = file_name
        self.size = size
        self.end = ReadEnd(0)
        self.records: Counter[str] = Counter()
        """Number of records by name; empty if the records were not read one by one."""

    @property
    def is_damaged(self) -> bool:
        """True if the file has bytes that are no record. An unfinished last record is not damage."""
        return self.end.problem is not None and not self.end.is_unfinished

    @property
    def bytes_behind(self) -> int:
        """Number of bytes after the last valid record."""
        return self.size - self.end.offset


def damage_sentence(read: FileReadResult) -> str:
    """Return a sentence about a file that does not end after a valid record."""
    behind = count(read.bytes_behind, "byte")
    where = f"{show_path(read.file_name)}, offset {read.end.offset}"
    if read.is_damaged:
        return f"damaged: {where}: {read.end.problem}; {behind} from there on cannot be read"
    return f"unfinished: {where}: {read.end.problem} ({behind}), by a crash, or it is being written"


def damage_json(files: Sequence[FileReadResult]) -> list[dict[str, Any]]:
    """Return a JSON object for every file that does not end after a valid record."""
    return [
        {
            "file": show_path(read.file_name),
            "offset": read.end.offset,
            "problem": read.end.problem,
            "kind": "damaged" if read.is_damaged else "unfinished",
            "bytes_behind": read.bytes_behind,
        }
        for read in files
        if read.end.problem is not None
    ]


class ItemTally:
    """Number, size and age of items, counted one by one."""

    __slots__ = ("data_bytes", "expired", "items", "newest_ms", "now_ms", "oldest_ms")

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.items = 0
        self.data_bytes = 0
        self.expired = 0
        """Items past their own expiry. The queue's `maxAge` is not known here."""
        self.oldest_ms: int | None = None
        self.newest_ms: int | None = None

    def add(self, size: int, add_ms: int, expiry_ms: int) -> None:
        """Count an item of `size` bytes. An `expiry_ms` of 0 means that it does not expire."""
        self.items += 1
        self.data_bytes += size
        self.expired += 0 < expiry_ms < self.now_ms
        self._include(add_ms)

    def join(self, other: ItemTally) -> None:
        self.items += other.items
        self.data_bytes += other.data_bytes
        self.expired += other.expired
        if other.oldest_ms is not None and other.newest_ms is not None:
            self._include(other.oldest_ms)
            self._include(other.newest_ms)

    def _include(self, add_ms: int) -> None:
        if self.oldest_ms is None or add_ms < self.oldest_ms:
            self.oldest_ms = add_ms
        if self.newest_ms is None or add_ms > self.newest_ms:
            self.newest_ms = add_ms


class ItemsDigest:
    """Number and size of a queue's items, and a digest of them in order. Equal queues have equal digests."""

    def __init__(self) -> None:
        self.items = 0
        self.data_bytes = 0
        self.front = 0
        """Number of items up to the last one with errors."""
        self._digest = blake2b(digest_size=32)

    def add(self, mark: bytes, size: int, errors: int) -> None:
        """Add the next item. `mark` is its ADDX record, or a digest of that, and `size` that of its data."""
        self.items += 1
        self.data_bytes += size
        if errors:
            self.front = self.items
        self._digest.update(mark + b"%d;" % errors)

    @property
    def digest(self) -> str:
        """Hexadecimal digest of every item's data, add time, expiry and errors."""
        return self._digest.hexdigest()
