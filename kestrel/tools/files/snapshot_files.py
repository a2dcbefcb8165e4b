"""The files of a journal or scroll, all opened at one moment: a server may rename and erase them meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Self

from kestrel.disk.files import Disk
from kestrel.disk.reader import FileReader
from kestrel.disk.repair import End
from kestrel.journal.fileset import JournalFile
from kestrel.tools.progress import ByteProgress


class ProgressReader(FileReader):
    """A file whose reading is told to a progress."""

    def __init__(self, disk: Disk, path: bytes, progress: ByteProgress | None = None) -> None:
        super().__init__(disk, path)
        self._path = path
        self.progress = progress

    def read(self, offset: int, size: int) -> bytes:
        """The bytes there."""
        data = super().read(offset, size)
        if self.progress is not None:
            self.progress.reached(self._path, offset + len(data))
        return data


class SnapshotFiles:
    """Files that are open until the context ends. They are read to where they end now."""

    def __init__(self, disk: Disk, folder: bytes, file_names: Iterable[bytes]) -> None:
        self.disk = disk
        self.folder = folder
        self.readers: dict[bytes, ProgressReader] = {}
        """By file name."""
        with ExitStack() as stack:
            for name in file_names:
                self.readers[name] = stack.enter_context(ProgressReader(disk, folder + b"/" + name))
            self._stack = stack.pop_all()

    @property
    def size(self) -> int:
        """All files together, in bytes."""
        return sum(reader.size for reader in self.readers.values())

    def watch(self, progress: ByteProgress | None) -> None:
        """Tell this progress what is read from now on."""
        for reader in self.readers.values():
            reader.progress = progress

    def open_file(self, file_name: bytes) -> AbstractContextManager[FileReader]:
        """One of the files; it stays open (`kestrel.storage.journal.replayed.OpenFile`)."""
        return nullcontext(self.readers[file_name])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


class JournalSnapshot(SnapshotFiles):
    """Files of one queue, in replay order."""

    def __init__(self, disk: Disk, folder: bytes, queue: bytes, files: Sequence[JournalFile]) -> None:
        super().__init__(disk, folder, (file.file_name for file in files))
        self.queue = queue
        self.files = files


class FileReadResult:
    """One file: how much of it is good, and which records that is."""

    def __init__(self, file_name: bytes, size: int) -> None:
        self.file_name = file_name
        self.size = size
        self.end = End(0)
        self.records: Counter[str] = Counter()
        """By name; empty when they were not looked at one by one."""

    @property
    def is_damaged(self) -> bool:
        """Whether something in it is no record; an unfinished last one is no damage."""
        return self.end.problem is not None and not self.end.is_unfinished

    @property
    def bytes_behind(self) -> int:
        """What stands behind the last good record."""
        return self.size - self.end.offset
