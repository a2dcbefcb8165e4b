"""The current file of one queue, as far as it is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from kestrel.disk import steps
from kestrel.disk.copy import copy_range
from kestrel.disk.files import Disk, is_full
from kestrel.disk.reader import FileReader
from kestrel.journal.deletion import mark_deleted
from kestrel.journal.fileset import current_name, rotated_name, temporary_name


class Sync(NamedTuple):
    """What one sync covers: so much of the current file, and rotated files."""

    descriptor: int
    file: int
    size: int
    rotated: Sequence[bytes]
    syncs_folder: bool


class JournalWriter:
    """Appends records to the current file and knows how much of it is good.

    `size` counts whole records that were written. `synced_size` counts those that a sync is known to have reached.
    `acknowledged_size` counts those that no failure removes, because a client was told so or they were loaded. The file
    is opened on demand and may be closed at any time, so that idle queues hold no descriptor. `next_number` returns the
    number of a file that is retired.
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
        self.size = 0
        self.synced_size = 0
        self.acknowledged_size = 0
        self.file = 0
        """Which of the files it is that this writer wrote to one after the other."""
        self.unsynced_files: list[bytes] = []
        """The names of rotated files that no sync is known to have reached whole, the oldest first."""

    def open(self) -> None:
        """Open the file, which is made when missing."""
        if self._descriptor < 0:
            self._descriptor = self._disk.open_append(self._path)

    def open_existing(self) -> None:
        """Open the file that was replayed; its contents are kept, and are perhaps not synced.

        A missing file is created, so that the queue exists after a restart. On a full medium the first write does that.
        """
        try:
            self.open()
        except OSError as error:
            if not is_full(error):
                raise
            return
        self.size = self.acknowledged_size = self._disk.size(self._descriptor)

    def close(self) -> None:
        """Give the descriptor back."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            self._disk.close(descriptor)

    def append(self, records: bytes) -> None:
        """Write whole records. After an OSError none of them counts, and `truncate_failed_write` removes them."""
        self.truncate_failed_write()
        self.open()
        try:
            self._disk.write(self._descriptor, records)
        except OSError:
            self._has_failed_write = True
            raise
        self.size += len(records)

    def empty(self) -> None:
        """Nothing that the current file holds counts: it is empty from now on. An OSError leaves it as it was."""
        self.truncate_failed_write()
        self.open()
        self._disk.cut(self._descriptor, 0)
        self.size = self.synced_size = self.acknowledged_size = 0

    def acknowledge(self) -> None:
        """Somebody is told that what is written so far is kept."""
        self.acknowledged_size = self.size

    @property
    def needs_sync(self) -> bool:
        """Whether something is to be kept that no sync has reached."""
        return self.acknowledged_size > self.synced_size or bool(self.unsynced_files)

    @property
    def is_synced(self) -> bool:
        """Whether all that is written is known to be safe."""
        return self.size == self.synced_size and not self.unsynced_files

    def synced(self, sync: Sync) -> None:
        """That sync has worked."""
        self.forget(sync.rotated)
        if sync.file == self.file:
            self.synced_size = max(self.synced_size, sync.size)
            self.acknowledged_size = max(self.acknowledged_size, self.synced_size)
            self._folder_is_synced = True

    def forget(self, rotated: Sequence[bytes]) -> None:
        """These rotated files are synced, or gone."""
        forgotten = set(rotated)
        self.unsynced_files = [file_name for file_name in self.unsynced_files if file_name not in forgotten]

    def sync_failed(self) -> None:
        """What was written since the last sync does not count. This file is never synced again."""
        self.size = self.synced_size
        self._has_failed_write = self._has_failed_to_sync = True

    def truncate_to(self, size: int, number: int | None) -> None:
        """What stands behind `size` in the current file, or in the one that got that number, does not count."""
        if number is None:
            self.size = size
            self._has_failed_write = True
            return
        descriptor = self._disk.open_append(self._rotated_path(number))
        try:
            self._disk.cut(descriptor, size)
        finally:
            self._disk.close(descriptor)

    def truncate_failed_write(self) -> None:
        """Take from the file what a failure left behind its `size`. An OSError leaves that to be done again.

        A file that can be cut is cut, and set aside if its sync failed; else the good part goes to a new file.
        """
        if not self._has_failed_write:
            return
        try:
            self.open()
            self._disk.cut(self._descriptor, self.size)
            if self._has_failed_to_sync:
                self.retire_current()
        except OSError:
            self._copy_to_new_file()
        self._has_failed_write = self._has_failed_to_sync = False

    def retire_current(self) -> int:
        """Make the current file a rotated one; the next write begins a new one. Returns the rotated file's number."""
        number = self._next_number()
        self._disk.rename(self._path, self._rotated_path(number))
        self._disk.reached(steps.ROTATED)
        self.close()
        self._folder_is_synced = False
        self.file += 1
        if self.size != self.synced_size:
            self.unsynced_files.append(rotated_name(self._queue, number))
        self.size = self.synced_size = self.acknowledged_size = 0
        return number

    def rotate(self) -> int:
        """Begin a new current file and return the number that the old one has now.

        The new file is created first: where that fails, the old one is still there to be written to. Raises OSError,
        and nothing has changed.
        """
        self.open()  # there is no old one where a start set aside a file that its last record closes
        following = self._folder + b"/" + temporary_name(self._queue, self._next_number())
        self._disk.close(self._disk.open_append(following))
        try:
            number = self.retire_current()
        except OSError:
            self._disk.erase(following)
            raise
        with suppress(OSError):  # without a current file the next write creates one
            self._disk.rename(following, self._path)
        return number

    def drop_files(self) -> None:
        """Delete all files of the queue, for `erase_deleted` to erase, and begin again without one. Raises OSError."""
        mark_deleted(self._disk, self._folder, self._queue, self._next_number)
        self.close()
        self._folder_is_synced = self._has_failed_write = self._has_failed_to_sync = False
        self.file += 1
        self.unsynced_files = []
        self.size = self.synced_size = self.acknowledged_size = 0

    def _rotated_path(self, number: int) -> bytes:
        return self._folder + b"/" + rotated_name(self._queue, number)

    def _copy_to_new_file(self) -> None:
        self.close()
        temporary = self._folder + b"/" + temporary_name(self._queue, self._next_number())
        with FileReader(self._disk, self._path) as reader:
            copy_range(self._disk, reader, 0, self.size, temporary)
        self._disk.reached(steps.COPY_WRITTEN)
        self._disk.rename(temporary, self._path)
        self._disk.reached(steps.COPY_PUBLISHED)
        self._folder_is_synced = False
        self.synced_size = 0

    def begin_sync(self) -> Sync:
        """What a thread has to sync to make all safe that is written now; closing the writer meanwhile is no harm."""
        was_open = self._descriptor >= 0
        self.open()
        try:
            descriptor = self._disk.duplicate(self._descriptor)
        finally:
            if not was_open:
                self.close()
        return Sync(descriptor, self.file, self.size, self.unsynced_files[:], not self._folder_is_synced)

    def run_sync(self, sync: Sync) -> None:
        """Sync that, and close its descriptor. Runs in a thread."""
        disk = self._disk
        try:
            for file_name in sync.rotated:  # in this order, so that a crash leaves no gap
                self._sync_rotated(file_name)
            disk.sync(sync.descriptor)
            if sync.syncs_folder:
                disk.sync_folder(self._folder)
        finally:
            disk.close(sync.descriptor)

    def _sync_rotated(self, file_name: bytes) -> None:
        try:
            descriptor = self._disk.open_read(self._folder + b"/" + file_name)
        except FileNotFoundError:  # replaced meanwhile, by one that was synced
            return
        try:
            self._disk.sync(descriptor)
        finally:
            self._disk.close(descriptor)
