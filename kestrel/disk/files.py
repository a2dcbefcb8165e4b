"""Every file operation of the server, so that a test can make any of them fail.

Paths are bytes. Files are made for their owner alone. Errors are the OSErrors of the system.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from typing import Final

_FILE_MODE: Final = 0o600
_FOLDER_MODE: Final = 0o700


class Disk:
    """The file system, through a small face.

    Stateless; safe to call from any thread. `kestrel.testing.faults` has one whose operations fail when told.
    """

    def list_files(self, folder: bytes) -> list[bytes]:
        """The names of the files in a folder, links to files among them."""
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if _is_file(entry)]

    def changed_ns(self, folder: bytes) -> int:
        """When an entry of that folder was last made, renamed or removed, in ns, as exactly as the system tells it."""
        return os.stat(folder).st_mtime_ns

    def folds_names(self, folder: bytes, entry: bytes) -> bool:
        """Whether what is in that folder is found there by its name in capitals, too."""
        try:
            capitals = os.stat(folder + b"/" + entry.upper())
        except OSError:
            return False
        return os.path.samestat(os.stat(folder + b"/" + entry), capitals)

    def make_folder(self, path: bytes) -> None:
        """Make a folder for its owner alone, and those above it as is usual, unless it is there."""
        os.makedirs(path, mode=_FOLDER_MODE, exist_ok=True)

    def open_append(self, path: bytes) -> int:
        """A descriptor whose writes go to the end of the file, which is made when missing."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe must not block the open
        return _regular(os.open(path, flags, _FILE_MODE))

    def size(self, descriptor: int) -> int:
        """The file's length in bytes."""
        return os.fstat(descriptor).st_size

    def write(self, descriptor: int, data: bytes) -> None:
        """Write all of it; after an error any part of it may be in the file."""
        written = os.write(descriptor, data)
        if written != len(data):
            rest = memoryview(data)
            while written != len(data):
                written += os.write(descriptor, rest[written:])

    def sync(self, descriptor: int) -> None:
        """Return when the file's contents and length are on the medium."""
        os.fdatasync(descriptor)

    def sync_folder(self, path: bytes) -> None:
        """Return when the folder's entries are on the medium."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def cut(self, descriptor: int, size: int) -> None:
        """Shorten the file."""
        os.ftruncate(descriptor, size)

    def duplicate(self, descriptor: int) -> int:
        """A second descriptor of the same open file, for a thread that must not see the first one closed."""
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 0)

    def close(self, descriptor: int) -> None:
        """Give the descriptor back."""
        os.close(descriptor)

    def rename(self, old: bytes, new: bytes) -> None:
        """Give a file another name, at once and whole; a file of that name is replaced."""
        os.replace(old, new)

    def erase(self, path: bytes) -> None:
        """Remove a file; one that is not there is no error."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            return

    def erase_folder(self, path: bytes) -> None:
        """Remove an empty folder; one that is not there is no error."""
        try:
            os.rmdir(path)
        except FileNotFoundError:
            return

    def allocate(self, path: bytes, size: int) -> None:
        """Make a file that takes `size` bytes of the medium; a failed attempt leaves no file.

        It looks for the room first: to try would take the last of it from others for a moment.
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
        """How many bytes the file system of that folder has for us."""
        return _free_bytes(folder)

    def length(self, path: bytes) -> int:
        """The length of a file that is not open, in bytes."""
        return os.stat(path).st_size

    def inode(self, path: bytes) -> int:
        """Return the file's number in its file system, which a rename keeps."""
        return os.stat(path).st_ino

    def is_same(self, path: bytes, other: bytes) -> bool:
        """Whether both are the same file or folder."""
        return os.path.samefile(path, other)

    def is_there(self, path: bytes) -> bool:
        """Whether there is something of that name."""
        return os.path.exists(path)

    def open_read(self, path: bytes) -> int:
        """A descriptor to read a file that is there."""
        return _regular(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))

    def read(self, descriptor: int, offset: int, size: int) -> bytes:
        """The bytes from `offset` on, fewer than `size` only where the file ends."""
        data = os.pread(descriptor, size, offset)
        while len(data) < size and (more := os.pread(descriptor, size - len(data), offset + len(data))):
            data += more
        return data

    def crash_point(self, step: str) -> None:
        """A change that takes several operations has come so far. Nothing happens here; a test may end it there."""


def is_full(error: OSError) -> bool:
    """Tell whether an operation failed for want of bytes or inodes, or for a quota of them."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def _free_bytes(folder: bytes) -> int:
    room = os.statvfs(folder)
    return room.f_bavail * room.f_frsize


def _regular(descriptor: int) -> int:
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "not a regular file")


def _is_file(entry: os.DirEntry[bytes]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a link that leads nowhere that can be seen
        return False
