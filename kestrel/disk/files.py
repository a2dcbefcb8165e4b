"""Every file operation of the server, so that a test can make each of them fail.

Paths are bytes. Files and folders are created with access for their owner only. Errors are OSErrors.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import unicodedata
from collections.abc import Iterable
from typing import Final

from kestrel.errors import BadQueueName

_FILE_MODE: Final = 0o600
_FOLDER_MODE: Final = 0o700


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
        """Create a folder for its owner only, with its missing parents, unless it exists. The parents get the default
        mode.
        """
        os.makedirs(path, mode=_FOLDER_MODE, exist_ok=True)

    def open_append(self, path: bytes) -> int:
        """Open a file so that writes go to its end, and return the descriptor. Creates the file if it is missing."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe must not block the open
        return _check_regular(os.open(path, flags, _FILE_MODE))

    def size(self, descriptor: int) -> int:
        """Return the length of an open file in bytes."""
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
        """Truncate the file to `size` bytes."""
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
        """Create a file that occupies `size` bytes of the medium. A failed attempt leaves no new file.

        It checks the free space first: an attempt to allocate would briefly take the last space from other writers.
        """
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
        """Return the length in bytes of the file at `path`."""
        return os.stat(path).st_size

    def inode(self, path: bytes) -> int:
        """Return the file's inode number, which a rename keeps."""
        return os.stat(path).st_ino

    def is_same(self, path: bytes, other: bytes) -> bool:
        """Return whether both paths are the same file or folder."""
        return os.path.samefile(path, other)

    def is_there(self, path: bytes) -> bool:
        """Return whether the path exists."""
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


def is_full(error: OSError) -> bool:
    """Return whether an operation failed because bytes, inodes or a quota of them are used up."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def _free_bytes(folder: bytes) -> int:
    room = os.statvfs(folder)
    return room.f_bavail * room.f_frsize


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
