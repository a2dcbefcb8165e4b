"""Every file operation of the server, so that a test can make each of them fail.

Paths are bytes. Files and folders are created with access for their owner only. Errors are OSErrors.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from kestrel.errors import BadQueueName

_FILE_MODE: Final = 0o600
_FOLDER_MODE: Final = 0o700


class FileIdentity(NamedTuple):
    """The inode number and size of a file, and the time of its last write in nanoseconds."""

    inode: int
    size: int
    written_ns: int


class Disk:
    """The file system, reduced to the operations that the server needs.

    It has no state, so any thread may call it. `kestrel.testing.faults` has a subclass whose operations fail on demand.
    """

    def list_files(self, folder: bytes) -> list[bytes]:
        """Return the names of the files in a folder, including links to files."""
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if _is_file(entry)]

    def changed_ns(self, folder: bytes) -> int:
        """Return when an entry of the folder was last created, renamed or removed, in nanoseconds."""
        return os.stat(folder).st_mtime_ns

    def folds_names(self, folder: bytes, entry: bytes) -> bool:
        """Return whether the file system also finds `entry` by its name in upper case."""
        try:
            capitals = os.stat(folder + b"/" + entry.upper())
        except OSError:
            return False
        return os.path.samestat(os.stat(folder + b"/" + entry), capitals)

    def make_folder(self, path: bytes) -> None:
        """Create a folder for its owner only, unless it exists. Missing parents get the default mode."""
        os.makedirs(path, mode=_FOLDER_MODE, exist_ok=True)

    def open_append(self, path: bytes) -> int:
        """Open a file so that writes go to its end, and return the descriptor. Creates the file if it is missing."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe must not block the open
        return _check_regular(os.open(path, flags, _FILE_MODE))

    def size(self, descriptor: int) -> int:
        return os.fstat(descriptor).st_size

    def write(self, descriptor: int, data: bytes) -> None:
        """Write all of `data`. After an error any part of it may be in the file."""
        written = os.write(descriptor, data)
        if written != len(data):
            rest = memoryview(data)
            while written != len(data):
                written += os.write(descriptor, rest[written:])

    def sync(self, descriptor: int) -> None:
        """Block until the file's contents and length are on the medium."""
        os.fdatasync(descriptor)

    def sync_folder(self, path: bytes) -> None:
        """Block until the folder's entries are on the medium."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def cut(self, descriptor: int, size: int) -> None:
        os.ftruncate(descriptor, size)

    def duplicate(self, descriptor: int) -> int:
        """Return a second descriptor of the open file, for a thread that must not see the first one closed."""
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 0)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def rename(self, old: bytes, new: bytes) -> None:
        """Rename a file atomically. Replaces a file that has the new name."""
        os.replace(old, new)

    def erase(self, path: bytes) -> None:
        """Erase a file, if it exists."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            return

    def erase_folder(self, path: bytes) -> None:
        """Remove an empty folder, if it exists."""
        try:
            os.rmdir(path)
        except FileNotFoundError:
            return

    def allocate(self, path: bytes, size: int) -> None:
        """Create a file that occupies `size` bytes of the medium. A failed attempt leaves no new file."""
        # A failed attempt to allocate would briefly take the last space from other writers.
        taken = os.stat(path).st_blocks * 512 if os.path.exists(path) else 0
        if _free_bytes(os.path.dirname(path)) + taken < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError:
            os.unlink(path)
            raise
        finally:
            os.close(descriptor)

    def free_bytes(self, folder: bytes) -> int:
        """Return how many bytes the server may still use in the file system of that folder."""
        return _free_bytes(folder)

    def length(self, path: bytes) -> int:
        return os.stat(path).st_size

    def identity(self, path: bytes) -> FileIdentity:
        """Return the identity of a file and of its contents, which a rename keeps."""
        status = os.stat(path)
        return FileIdentity(status.st_ino, status.st_size, status.st_mtime_ns)

    def is_same(self, path: bytes, other: bytes) -> bool:
        return os.path.samefile(path, other)

    def is_there(self, path: bytes) -> bool:
        return os.path.exists(path)

    def open_read(self, path: bytes) -> int:
        """Open an existing file for reading, and return the descriptor."""
        return _check_regular(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))

    def read(self, descriptor: int, offset: int, size: int) -> bytes:
        """Return `size` bytes from `offset` on, or fewer if the file ends before."""
        data = os.pread(descriptor, size, offset)
        while len(data) < size and (more := os.pread(descriptor, size - len(data), offset + len(data))):
            data += more
        return data

    def crash_point(self, step: str) -> None:
        """Do nothing. A test overrides this method to end the process at a step of `kestrel.disk.crash_points`."""


def _free_bytes(folder: bytes) -> int:
    room = os.statvfs(folder)
    return room.f_bavail * room.f_frsize


@contextmanager
def appending(disk: Disk, path: bytes) -> Iterator[int]:
    """Open a file so that writes go to its end, and yield the descriptor. Creates the file if it is missing."""
    descriptor = disk.open_append(path)
    try:
        yield descriptor
    finally:
        disk.close(descriptor)


def first_bytes(disk: Disk, path: bytes, size: int) -> bytes:
    """Return the first `size` bytes of a file, or all if it is shorter."""
    descriptor = disk.open_read(path)
    try:
        return disk.read(descriptor, 0, size)
    finally:
        disk.close(descriptor)


def is_full(error: OSError) -> bool:
    """Return whether an operation failed because bytes, inodes or a quota of them are used up."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def _check_regular(descriptor: int) -> int:
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "not a regular file")


def _is_file(entry: os.DirEntry[bytes]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a broken link, or one to a file that is not accessible
        return False


def fold_name(name: bytes) -> str:
    """Return a key that is equal for all names that some file system takes for the same.

    The file systems of macOS, Windows and memory cards ignore case or the encoding of accents. Names with the same key
    may still be different names for a particular file system.
    """
    text = name.decode("utf-8", "surrogateescape")
    return unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())


def check_distinct_when_folded(name: bytes, others: Iterable[bytes]) -> None:
    """Raise `BadQueueName` if a file system may take the new name for one of the others.

    Two queues with such names would write to the same files.
    """
    ours = fold_name(name)
    for other in others:
        if other != name and fold_name(other) == ours:
            shown = other.decode("utf-8", "backslashreplace")
            raise BadQueueName(f"the file system of the queues does not tell this name from {shown}, which is there")


class AtomicFile:
    """A small file that is replaced as a whole.

    Methods block, so call `write` in a thread, and only one at a time. New contents are first written to `temporary`,
    an unused path. By default that is the path with ``.new`` appended.
    """

    def __init__(self, disk: Disk, path: bytes, temporary: bytes | None = None) -> None:
        self._disk = disk
        self.path = path
        self._temporary = path + b".new" if temporary is None else temporary

    def read(self, most_bytes: int) -> bytes:
        """Return the contents, up to `most_bytes`. Raises OSError."""
        return first_bytes(self._disk, self.path, most_bytes)

    def write(self, data: bytes) -> None:
        """Replace the contents by `data`, and return when they are on the medium.

        After an OSError the file is either unchanged, or replaced in a way that a power failure may undo.
        """
        folder = os.path.dirname(self.path) or b"."
        temporary = self._temporary
        self._disk.make_folder(folder)
        self._disk.erase(temporary)
        with appending(self._disk, temporary) as descriptor:
            self._disk.write(descriptor, data)
            self._disk.sync(descriptor)
        self._disk.rename(temporary, self.path)
        self._disk.sync_folder(folder)


class AppendFile:
    """A file that is created by its first write.

    `size` is the length of all complete writes. `synced_size` is the length that a sync is known to have reached.
    `acknowledged_size` is the length that no failure truncates, because a client was told that it is stored. The file
    is opened on demand and may be closed at any time, so that idle queues hold no descriptor. Methods raise OSError.
    """

    def __init__(self, disk: Disk, path: bytes, size: int = 0) -> None:
        self._disk = disk
        self.path = path
        self.size = size
        self.synced_size = 0
        self.acknowledged_size = size
        self._descriptor = -1
        self.has_torn_tail = False
        """Whether a failed write or `cut` may have left bytes after `size`."""

    def append(self, data: bytes) -> None:
        """Append all of `data`.

        After an OSError, `size` is unchanged. The next `append` or `drop_torn_tail` removes any bytes that were
        written.
        """
        self.drop_torn_tail()
        self._open()
        try:
            self._disk.write(self._descriptor, data)
        except OSError:
            self.has_torn_tail = True
            raise
        self.size += len(data)

    def drop_torn_tail(self) -> None:
        """Truncate the file to `size` if a write or `cut` failed."""
        if self.has_torn_tail:
            self.cut(self.size)

    def cut(self, size: int) -> None:
        """Truncate the file to `size` bytes. After an OSError the next `append` tries again."""
        self.has_torn_tail = True
        self.size = size
        self.synced_size = min(size, self.synced_size)
        self.acknowledged_size = min(size, self.acknowledged_size)
        self._open()
        self._disk.cut(self._descriptor, size)
        self.has_torn_tail = False

    def sync(self) -> None:
        """Block until everything in the file is on the medium. Does not change `synced_size`."""
        self._open()
        self._disk.sync(self._descriptor)

    def synced_to(self, size: int) -> bool:
        """Record that the first `size` bytes are synced. Return whether that is the whole file."""
        self.synced_size = size
        self.acknowledged_size = max(size, self.acknowledged_size)
        return size == self.size

    def replaced(self, size: int) -> None:
        """Record that a synced file of `size` bytes was renamed to this path."""
        self.close()
        self.has_torn_tail = False
        self.size = self.synced_size = self.acknowledged_size = size

    def duplicate(self) -> int:
        """Return a descriptor for a thread to sync. It stays valid when this file is closed."""
        was_open = self._descriptor >= 0
        self._open()
        try:
            return self._disk.duplicate(self._descriptor)
        finally:
            if not was_open:
                self.close()

    def close(self) -> None:
        """Close the descriptor, if there is one. The next use opens the file again."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            self._disk.close(descriptor)

    def _open(self) -> None:
        if self._descriptor < 0:
            self._descriptor = self._disk.open_append(self.path)
