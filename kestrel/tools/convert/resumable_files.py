"""Files with predictable contents, parts of which an earlier run may have written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from kestrel.disk.files import Disk
from kestrel.disk.reader import PART_BYTES

_MOST_PENDING_BYTES: Final = 8 * 1024 * 1024


class ResumableFiles:
    """The files of one folder that are being written. Their unwritten bytes have a common bound."""

    def __init__(self, disk: Disk, folder: bytes) -> None:
        self.disk = disk
        self.folder = folder
        self._files: list[ResumableFile] = []
        self._pending_bytes = 0

    def file(self, file_name: bytes) -> ResumableFile:
        """Return a file to be written from its beginning."""
        file = ResumableFile(self, self.folder + b"/" + file_name)
        self._files.append(file)
        return file

    def add_pending_bytes(self, size: int) -> None:
        """Count `size` more unwritten bytes, and flush all files if there are too many. Raise OSError."""
        self._pending_bytes += size
        if self._pending_bytes > _MOST_PENDING_BYTES:
            for file in self._files:
                file.flush()
            self._pending_bytes = 0

    def finished(self, file: ResumableFile) -> None:
        """Forget a file that is complete."""
        self._files.remove(file)

    def finish(self) -> None:
        """Finish all files: write the rest, cut anything after it, and fsync. Raise OSError."""
        for file in self._files[:]:
            file.finish()


class ResumableFile:
    """A file being written. Appended data is compared with the existing file, and only missing bytes are written.

    So the file becomes correct wherever an earlier run ended, and whatever a power failure left of it.
    """

    def __init__(self, files: ResumableFiles, path: bytes) -> None:
        self._files = files
        self._disk = files.disk
        self._path = path
        self.size = 0
        """Number of bytes appended."""
        self._offset = 0
        """Number of appended bytes that are in the file."""
        self._there: int | None = None
        """Size of the file; None until it has been opened."""
        self._pending: list[bytes] = []
        self._pending_bytes = 0

    def append(self, data: bytes) -> None:
        """Append bytes. They may be written later. Raise OSError."""
        self._pending.append(data)
        self._pending_bytes += len(data)
        self.size += len(data)
        if self._pending_bytes >= PART_BYTES:
            self.flush()
        else:
            self._files.add_pending_bytes(len(data))

    def flush(self) -> None:
        """Write all appended bytes to the file. Raise OSError."""
        if self._pending:
            with self._open() as descriptor:
                self._write(descriptor)

    def finish(self) -> None:
        """Write all appended bytes, cut anything after them, and fsync. Raise OSError."""
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
