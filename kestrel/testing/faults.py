"""Disks that fail on request, and a model of the data that survives a power failure.

`DurableState` keeps the contents of each file at its last successful sync, and the entries of each folder at the
folder's last sync. After a failed sync the kernel drops the dirty pages. The next sync of that file succeeds without
writing them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from kestrel.disk.files import Disk


class ProcessDied(BaseException):
    """The end of the simulated process. A BaseException, so that no `except Exception` swallows it."""


@attrs.define
class Fault:
    """A fault of one operation: `after` calls succeed, then `times` calls fail (None: all later calls)."""

    error: Any
    times: int | None
    after: int

    def strikes(self) -> bool:
        """Return True if this call is to fail, and count it."""
        if self.times == 0:
            return False
        if self.after:
            self.after -= 1
            return False
        if self.times is not None:
            self.times -= 1
        return True


class DurableState:
    """The files that survive a power failure, in the worst case: a real disk may keep more.

    `vain_syncs` counts syncs of files after a failed sync of the same file. They guarantee nothing.
    """

    def __init__(self) -> None:
        self.vain_syncs = 0
        self._ids: dict[tuple[int, int], int] = {}
        self._last_id = 0
        self._contents: dict[int, bytes] = {}
        self._folders: dict[bytes, dict[bytes, int]] = {}
        self._spoilt: set[int] = set()

    def _id(self, status: os.stat_result) -> int:
        """Return a number for this file that is never used again. The system reuses inode numbers."""
        key = (status.st_dev, status.st_ino)
        if key not in self._ids:
            self._last_id += 1
            self._ids[key] = self._last_id
        return self._ids[key]

    def know(self, folder: bytes) -> None:
        """Record the present contents of a folder as durable, when it is first used."""
        if folder in self._folders or not os.path.isdir(folder):
            return
        self.folder_synced(folder)
        for name, file_id in self._folders[folder].items():
            self._contents[file_id] = Path(os.fsdecode(folder + b"/" + name)).read_bytes()

    def forget(self, path: bytes) -> None:
        """Forget the inode of a file that is about to be erased or replaced. Its durable folder entry remains."""
        if os.path.exists(path):
            status = os.stat(path)
            self._ids.pop((status.st_dev, status.st_ino), None)

    def synced(self, descriptor: int) -> None:
        file_id = self._id(os.fstat(descriptor))
        if file_id in self._spoilt:
            self.vain_syncs += 1
        else:
            self._contents[file_id] = os.pread(descriptor, os.fstat(descriptor).st_size, 0)

    def sync_failed(self, descriptor: int) -> None:
        self._spoilt.add(self._id(os.fstat(descriptor)))

    def folder_synced(self, folder: bytes) -> None:
        self._folders[folder] = self._names_in(folder)

    def _names_in(self, folder: bytes) -> dict[bytes, int]:
        with os.scandir(folder) as entries:
            files = [entry for entry in entries if entry.is_file(follow_symlinks=False)]
        return {entry.name: self._id(os.stat(entry.path)) for entry in files}

    def carried_over(self, folder: Path, copy: Path) -> DurableState:
        """Return the durable state of `copy`, a copy of `folder` with everything below it."""
        other, new_ids = DurableState(), dict[int, int]()
        for path in folder.rglob("*"):
            if path.is_file():
                new_ids[self._id(path.stat())] = other._id((copy / path.relative_to(folder)).stat())
        # These files have no name any more.
        for old_id in {*self._contents, *self._spoilt} - set(new_ids):
            other._last_id += 1
            new_ids[old_id] = other._last_id
        other._contents = {new_ids[old_id]: contents for old_id, contents in self._contents.items()}
        other._spoilt = {new_ids[old_id] for old_id in self._spoilt}
        for name, names in self._folders.items():
            new_name = name.replace(os.fsencode(folder), os.fsencode(copy), 1)
            other._folders[new_name] = {entry: new_ids.get(old_id, -1) for entry, old_id in names.items()}
        return other

    def left_of(self, folder: bytes, *, names_as_now: bool = False) -> dict[bytes, bytes]:
        """Return the contents of a folder's plain files after a power failure, by name.

        With `names_as_now`, erasing and renaming files is durable without a sync of the folder. Contents still need a
        sync.
        """
        names = self._names_in(folder) if names_as_now else self._folders.get(folder, {})
        return {name: self._contents.get(file_id, b"") for name, file_id in names.items()}

    def copy(self, folder: bytes, target: bytes, *, names_as_now: bool = False) -> None:
        """Write the files of `left_of` to `target`, a new folder."""
        os.makedirs(target)
        for name, contents in self.left_of(folder, names_as_now=names_as_now).items():
            Path(os.fsdecode(target + b"/" + name)).write_bytes(contents)


class FaultyDisk(Disk):
    """The real disk, with faults on request.

    Operations are named list, open, open_read, read, write, sync, sync_folder, cut, rename, erase, erase_folder and
    allocate. Each step of `kestrel.disk.crash_points` is also an operation. `calls` lists the operations in order.
    `room` limits the bytes that may still be written or allocated; None means no limit. Erasing and cutting files
    frees room. `inodes` limits the files and folders that may still be created; erasing or replacing one frees it.
    `open_descriptors` holds the descriptors that are not closed yet.
    """

    def __init__(self) -> None:
        self._faults: dict[str, Fault] = {}
        self._before: dict[str, Callable[[], object]] = {}
        self._calls_left: int | None = None
        self._torn_bytes = 0
        self.room: int | None = None
        self.inodes: int | None = None
        self.calls: list[str] = []
        self.open_descriptors: set[int] = set()
        self.medium = DurableState()

    # Faults, set by a test.

    def fail(
        self, operation: str, error: int, *, times: int | None = None, after: int = 0, torn_bytes: int = 0
    ) -> None:
        """Make an operation fail with that errno `times` times (None: until `mend`), after `after` more successes.

        A failing write first writes `torn_bytes` of its data.
        """
        self._faults[operation] = Fault(error, times, after)
        if operation == "write":
            self._torn_bytes = torn_bytes

    def mend(self) -> None:
        self._faults.clear()
        self._torn_bytes = 0

    def before(self, operation: str, action: Callable[[], object]) -> None:
        """Call `action` once, before the next operation of that name."""
        self._before[operation] = action

    def die_after(self, calls: int) -> None:
        """Let that many operations succeed, and raise `ProcessDied` in the next. A write then writes half its data."""
        self._calls_left = calls

    def _check(self, operation: str) -> None:
        action = self._before.pop(operation, None)
        if action is not None:
            action()
        if self._calls_left is not None:
            if self._calls_left <= 0:
                raise ProcessDied
            self._calls_left -= 1
        self.calls.append(operation)
        fault = self._faults.get(operation)
        if fault is not None and fault.strikes():
            raise OSError(fault.error, os.strerror(fault.error))

    def _take_room(self, size: int) -> None:
        if self.room is not None:
            if size > self.room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.room -= size

    def _give_room(self, size: int) -> None:
        if self.room is not None:
            self.room += size

    def _take_inode(self, path: bytes) -> None:
        if self.inodes is not None and not os.path.exists(path):
            if not self.inodes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.inodes -= 1

    def _give_inode(self, path: bytes) -> None:
        if self.inodes is not None and os.path.exists(path):
            self.inodes += 1

    # `Disk`.

    def make_folder(self, path: bytes) -> None:
        self._take_inode(path)
        super().make_folder(path)

    def list_files(self, folder: bytes) -> list[bytes]:
        self._check("list")
        self.medium.know(folder)
        return super().list_files(folder)

    def open_append(self, path: bytes) -> int:
        self._check("open")
        self.medium.know(os.path.dirname(path))
        self._take_inode(path)
        descriptor = super().open_append(path)
        self.open_descriptors.add(descriptor)
        return descriptor

    def duplicate(self, descriptor: int) -> int:
        copy = super().duplicate(descriptor)
        self.open_descriptors.add(copy)
        return copy

    def close(self, descriptor: int) -> None:
        self.open_descriptors.remove(descriptor)
        super().close(descriptor)

    def write(self, descriptor: int, data: bytes) -> None:
        try:
            self._check("write")
        except OSError:
            self._write_some(descriptor, data, self._torn_bytes)
            raise
        except ProcessDied:
            self._write_some(descriptor, data, len(data) // 2)
            raise
        try:
            self._take_room(len(data))
        except OSError:
            self._write_some(descriptor, data, self.room or 0)
            raise
        super().write(descriptor, data)

    def _write_some(self, descriptor: int, data: bytes, size: int) -> None:
        torn = data[: size if self.room is None else min(size, self.room)]
        super().write(descriptor, torn)
        self._give_room(-len(torn))

    def sync(self, descriptor: int) -> None:
        try:
            self._check("sync")
        except OSError:
            self.medium.sync_failed(descriptor)
            raise
        super().sync(descriptor)
        self.medium.synced(descriptor)

    def sync_folder(self, path: bytes) -> None:
        self._check("sync_folder")
        super().sync_folder(path)
        self.medium.folder_synced(path)

    def cut(self, descriptor: int, size: int) -> None:
        self._check("cut")
        before = self.size(descriptor)
        super().cut(descriptor, size)
        self._give_room(max(0, before - size))

    def rename(self, old: bytes, new: bytes) -> None:
        self._check("rename")
        self.medium.know(os.path.dirname(old))
        self.medium.know(os.path.dirname(new))
        replaced = os.path.getsize(new) if os.path.exists(new) else 0
        if os.path.exists(old):
            self.medium.forget(new)
            self._give_inode(new)
        super().rename(old, new)
        self._give_room(replaced)

    def erase(self, path: bytes) -> None:
        self._check("erase")
        self.medium.know(os.path.dirname(path))
        size = os.path.getsize(path) if os.path.exists(path) else 0
        self.medium.forget(path)
        self._give_inode(path)
        super().erase(path)
        self._give_room(size)

    def erase_folder(self, path: bytes) -> None:
        self._check("erase_folder")
        self._give_inode(path)
        super().erase_folder(path)

    def free_bytes(self, folder: bytes) -> int:
        return super().free_bytes(folder) if self.room is None else self.room

    def allocate(self, path: bytes, size: int) -> None:
        self._check("allocate")
        before = os.path.getsize(path) if os.path.exists(path) else 0
        if self.room is not None and size - before > self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._take_inode(path)
        self._take_room(size - before)
        super().allocate(path, size)

    def open_read(self, path: bytes) -> int:
        self._check("open_read")
        self.medium.know(os.path.dirname(path))
        descriptor = super().open_read(path)
        self.open_descriptors.add(descriptor)
        return descriptor

    def read(self, descriptor: int, offset: int, size: int) -> bytes:
        self._check("read")
        return super().read(descriptor, offset, size)

    def crash_point(self, step: str) -> None:
        self._check(step)


class UnsyncedDisk(Disk):
    """The real disk without real syncs: data need not survive a crash of this machine."""

    def sync(self, descriptor: int) -> None:
        """Do nothing. Tests use `DurableState` in place of the real medium."""

    def sync_folder(self, path: bytes) -> None:
        """Do nothing."""


class KillableDisk(FaultyDisk, UnsyncedDisk):
    """A faulty disk that stays unchanged after the simulated process has died.

    A Deferred catches `ProcessDied` in a callback, so code may run that would not run in a dead process. `is_dead` is
    True from then on, and the disk refuses all operations.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_dead = False

    def _check(self, operation: str) -> None:
        try:
            super()._check(operation)
        except ProcessDied:
            self.is_dead = True
            raise

    def write(self, descriptor: int, data: bytes) -> None:
        if self.is_dead:
            # A dead process must not write the second half of the data.
            raise ProcessDied
        super().write(descriptor, data)
