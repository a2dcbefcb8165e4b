"""The files of a journal or scroll, opened together. A server may rename and erase them later."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Self

from kestrel.disk.files import Disk
from kestrel.disk.reader import FileReader
from kestrel.disk.repair import ReadEnd
from kestrel.journal.fileset import JournalFile
from kestrel.tools.progress import ByteProgress


class ProgressReader(FileReader):
    """A file reader that reports the bytes read to a progress."""

    def __init__(self, disk: Disk, path: bytes, progress: ByteProgress | None = None) -> None:
        super().__init__(disk, path)
        self._path = path
        self.progress = progress

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`, and report them to the progress."""
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
        """Total size of the files in bytes."""
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
