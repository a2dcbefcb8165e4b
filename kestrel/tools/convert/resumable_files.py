"""Files whose contents are known beforehand, and of which an earlier run may have written a part."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from kestrel.disk.files import Disk
from kestrel.disk.reader import PART_BYTES

_MOST_PENDING_BYTES: Final = 8 * 1024 * 1024


class ResumableFiles:
    """The files of one folder that are being written. What waits to be written is bounded for all of them together."""

    def __init__(self, disk: Disk, folder: bytes) -> None:
        self.disk = disk
        self.folder = folder
        self._files: list[ResumableFile] = []
        self._pending_bytes = 0

    def file(self, file_name: bytes) -> ResumableFile:
        """That file, from its beginning on."""
        file = ResumableFile(self, self.folder + b"/" + file_name)
        self._files.append(file)
        return file

    def add_pending_bytes(self, size: int) -> None:
        """So many bytes more wait to be written. Raises OSError."""
        self._pending_bytes += size
        if self._pending_bytes > _MOST_PENDING_BYTES:
            for file in self._files:
                file.flush()
            self._pending_bytes = 0

    def finished(self, file: ResumableFile) -> None:
        """Nothing more comes to that one."""
        self._files.remove(file)

    def finish(self) -> None:
        """Let all of them hold what they were given and nothing else, on the medium. Raises OSError."""
        for file in self._files[:]:
            file.finish()


class ResumableFile:
    """One file. What it is given is compared with what is there already: only what is not there is written.

    So it does not matter where an earlier run ended, or what a power failure has left of it.
    """

    def __init__(self, files: ResumableFiles, path: bytes) -> None:
        self._files = files
        self._disk = files.disk
        self._path = path
        self.size = 0
        """What it was given, in bytes."""
        self._offset = 0
        """What of that is in the file."""
        self._there: int | None = None
        """How large the file is; None: nobody has looked."""
        self._pending: list[bytes] = []
        self._pending_bytes = 0

    def append(self, data: bytes) -> None:
        """These bytes come next. Raises OSError."""
        self._pending.append(data)
        self._pending_bytes += len(data)
        self.size += len(data)
        if self._pending_bytes >= PART_BYTES:
            self.flush()
        else:
            self._files.add_pending_bytes(len(data))

    def flush(self) -> None:
        """Let the file have what it was given. Raises OSError."""
        if self._pending:
            with self._open() as descriptor:
                self._write(descriptor)

    def finish(self) -> None:
        """The same, and nothing stands behind it, and it is on the medium. Raises OSError."""
        with self._open() as descriptor:
            self._write(descriptor)
            self._cut(descriptor)
            self._disk.sync(descriptor)
        self._files.finished(self)

    def _write(self, descriptor: int) -> None:
        data = b"".join(self._pending)
        there = min(len(data), self._there_behind)
        if there and self._disk.read(descriptor, self._offset, there) != data[:there]:
            self._cut(descriptor)
            there = 0
        if there < len(data):
            self._disk.write(descriptor, data[there:])
            self._there = self._offset + len(data)
        self._offset += len(data)
        self._pending.clear()
        self._pending_bytes = 0

    def _cut(self, descriptor: int) -> None:
        if self._there_behind:
            self._disk.cut(descriptor, self._offset)
            self._there = self._offset

    @property
    def _there_behind(self) -> int:
        return (self._there or 0) - self._offset

    @contextmanager
    def _open(self) -> Iterator[int]:
        descriptor = self._disk.open_append(self._path)
        try:
            if self._there is None:
                self._there = self._disk.size(descriptor)
            yield descriptor
        finally:
            self._disk.close(descriptor)
