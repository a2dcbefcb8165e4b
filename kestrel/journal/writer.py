"""The writer of a queue's current journal file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from kestrel.disk import crash_points
from kestrel.disk.files import Disk, is_full
from kestrel.disk.reader import FileReader, copy_range
from kestrel.journal.fileset import current_name, mark_deleted, rotated_name, temporary_name


class Sync(NamedTuple):
    """The scope of one fsync: `size` bytes of the current file, the `rotated` files, and whether also the folder."""

    descriptor: int
    file: int
    size: int
    rotated: Sequence[bytes]
    syncs_folder: bool


class JournalWriter:
    """A writer that appends records to the current file and tracks how much of it is valid.

    `size` is the size of the complete records written. `synced_size` is the part that is known to be synced.
    `acknowledged_size` is the part that a failure must not remove, because clients know of it or it was loaded. The
    file is opened on demand and may be closed at any time, so that idle queues use no file descriptor. `next_number`
    returns the number for a file that is rotated.
    """

    def __init__(self, disk: Disk, folder: bytes, queue: bytes, next_number: Callable[[], int]) -> None:
        self._disk = disk
        self._folder = folder
        self._queue = queue
        self._path = folder + b"/" + current_name(queue)
        self._next_number = next_number
        self._descriptor = -1
        self._folder_is_synced = False
        self._has_failed_write = False
        self._has_failed_to_sync = False
        self._rotated_end: tuple[int, int] | None = None
        """Number of a rotated file whose end must be cut, and the size of its valid part. None if there is none."""
        self.size = 0
        self.synced_size = 0
        self.acknowledged_size = 0
        self.file = 0
        """Number of times that this writer has started a new file."""
        self.unsynced_files: list[bytes] = []
        """Names of rotated files that are not known to be synced completely, oldest first."""

    def open(self) -> None:
        """Open the current file. Create it if it is missing."""
        if self._descriptor < 0:
            self._descriptor = self._disk.open_append(self._path)

    def open_existing(self) -> None:
        """Open the replayed file. Its contents are kept, and count as acknowledged but not as synced.

        A missing file is created, so that the queue exists after a restart. On a full disk the first write does that.
        """
        try:
            self.open()
        except OSError as error:
            if not is_full(error):
                raise
            return
        self.size = self.acknowledged_size = self._disk.size(self._descriptor)

    def close(self) -> None:
        """Close the file descriptor."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            self._disk.close(descriptor)

    def append(self, records: bytes) -> None:
        """Append complete records. After an OSError none of them counts, and `truncate_failed_write` removes them."""
        if self._has_failed_write:
            self.truncate_failed_write()
        if self._descriptor < 0:
            self.open()
        try:
            self._disk.write(self._descriptor, records)
        except OSError:
            self._has_failed_write = True
            raise
        self.size += len(records)

    def empty(self) -> None:
        """Truncate the current file to nothing. Raise OSError if it is unchanged."""
        self.truncate_failed_write()
        self.open()
        self._disk.cut(self._descriptor, 0)
        self.size = self.synced_size = self.acknowledged_size = 0

    @property
    def needs_sync(self) -> bool:
        """True if acknowledged records or rotated files are not synced."""
        return self.acknowledged_size > self.synced_size or bool(self.unsynced_files)

    @property
    def is_synced(self) -> bool:
        """True if all written records are synced."""
        return self.size == self.synced_size and not self.unsynced_files

    def synced(self, sync: Sync) -> bool:
        """Record that `sync` has succeeded. Return True, because the sync need not be repeated."""
        self.forget(sync.rotated)
        if sync.file == self.file:
            self.synced_size = max(self.synced_size, sync.size)
            self.acknowledged_size = max(self.acknowledged_size, self.synced_size)
            self._folder_is_synced = True
        return True

    def forget(self, rotated: Sequence[bytes]) -> None:
        """Remove rotated files from `unsynced_files`, because they are synced or erased."""
        forgotten = set(rotated)
        self.unsynced_files = [file_name for file_name in self.unsynced_files if file_name not in forgotten]

    def sync_failed(self) -> None:
        """Discard the records written since the last sync. This file is never synced again."""
        self.size = self.synced_size
        self._has_failed_write = self._has_failed_to_sync = True

    def truncate_to(self, size: int, number: int | None) -> None:
        """Discard the records after `size` in the current file, or in the file that was rotated to `number`.

        `truncate_failed_write` removes them.
        """
        self._has_failed_write = True
        if number is None:
            self.size = size
        else:
            self._rotated_end = number, size

    def truncate_failed_write(self) -> None:
        """Remove the bytes after `size` that a failed write or sync has left. After an OSError the next call retries.

        The file is truncated, and also rotated if its sync failed. If it cannot be truncated, its valid part is copied
        to a new file.
        """
        if not self._has_failed_write:
            return
        if self._rotated_end is not None:
            self._cut_rotated(*self._rotated_end)
            self._rotated_end = None
        try:
            self.open()
            self._disk.cut(self._descriptor, self.size)
            if self._has_failed_to_sync:
                self.retire_current()
        except OSError:
            self._copy_to_new_file()
        self._has_failed_write = self._has_failed_to_sync = False

    def retire_current(self) -> int:
        """Rotate the current file and return its number. The next write creates a new current file."""
        number = self._next_number()
        self._disk.rename(self._path, self._rotated_path(number))
        self._disk.crash_point(crash_points.ROTATED)
        self.close()
        self._folder_is_synced = False
        self.file += 1
        if self.size != self.synced_size:
            self.unsynced_files.append(rotated_name(self._queue, number))
        self.size = self.synced_size = self.acknowledged_size = 0
        return number

    def rotate(self) -> int:
        """Rotate the current file, create a new one, and return the number of the rotated file.

        The new file is created first, so that the old one can still be written to if that fails. Raise OSError if
        nothing has changed.
        """
        # The current file is missing if a start rotated a file that ended with a STATE_DUMP.
        self.open()
        following = self._folder + b"/" + temporary_name(self._queue, self._next_number())
        self._disk.close(self._disk.open_append(following))
        try:
            number = self.retire_current()
        except OSError:
            self._disk.erase(following)
            raise
        # If the rename fails, the next write creates a current file.
        with suppress(OSError):
            self._disk.rename(following, self._path)
        return number

    def drop_files(self) -> None:
        """Delete all files of the queue, for `erase_deleted` to erase, and start without a file. Raise OSError."""
        mark_deleted(self._disk, self._folder, self._queue, self._next_number)
        self.close()
        self._folder_is_synced = self._has_failed_write = self._has_failed_to_sync = False
        self.file += 1
        self.unsynced_files = []
        self.size = self.synced_size = self.acknowledged_size = 0

    def _rotated_path(self, number: int) -> bytes:
        return self._folder + b"/" + rotated_name(self._queue, number)

    def _cut_rotated(self, number: int, size: int) -> None:
        descriptor = self._disk.open_append(self._rotated_path(number))
        try:
            self._disk.cut(descriptor, size)
        finally:
            self._disk.close(descriptor)

    def _copy_to_new_file(self) -> None:
        self.close()
        temporary = self._folder + b"/" + temporary_name(self._queue, self._next_number())
        with FileReader(self._disk, self._path) as reader:
            copy_range(self._disk, reader, 0, self.size, temporary)
        self._disk.crash_point(crash_points.COPY_WRITTEN)
        self._disk.rename(temporary, self._path)
        self._disk.crash_point(crash_points.COPY_PUBLISHED)
        self._folder_is_synced = False
        self.synced_size = 0

    def begin_sync(self) -> Sync:
        """Return the scope of an fsync that makes all written records durable, for `run_sync`.

        It has its own file descriptor, so the writer may be closed meanwhile.
        """
        was_open = self._descriptor >= 0
        self.open()
        try:
            descriptor = self._disk.duplicate(self._descriptor)
        finally:
            if not was_open:
                self.close()
        return Sync(descriptor, self.file, self.size, self.unsynced_files[:], not self._folder_is_synced)

    def run_sync(self, sync: Sync) -> None:
        """Sync the files of `sync` and close its descriptor. Runs in a thread."""
        disk = self._disk
        try:
            # Oldest first, so that a crash leaves no gap.
            for file_name in sync.rotated:
                self._sync_rotated(file_name)
            disk.sync(sync.descriptor)
            if sync.syncs_folder:
                disk.sync_folder(self._folder)
        finally:
            disk.close(sync.descriptor)

    def _sync_rotated(self, file_name: bytes) -> None:
        try:
            descriptor = self._disk.open_read(self._folder + b"/" + file_name)
        except FileNotFoundError:
            # A pack, which was synced, has replaced the file.
            return
        try:
            self._disk.sync(descriptor)
        finally:
            self._disk.close(descriptor)
