"""The current file of one queue, as far as it is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kestrel.disk.files import Disk
from kestrel.journal.fileset import current_name, rotated_name, temporary_name

_CHUNK_BYTES: Final = 1 << 20


class JournalWriter:
    """Appends records to the current file and knows how much of it is good.

    `size` counts whole records that were written, `synced_size` those that a sync is known to have reached, and
    `kept_size` those that stay in the file whatever fails, because somebody was told so or they were loaded. The
    file is opened when it is needed and may be closed at any time, so that idle queues hold no descriptor.
    `next_number` gives the number of a file that is set aside.
    """

    def __init__(self, disk: Disk, folder: bytes, queue: bytes, next_number: Callable[[], int]) -> None:
        self._disk = disk
        self._folder = folder
        self._queue = queue
        self._path = folder + b"/" + current_name(queue)
        self._next_number = next_number
        self._descriptor = -1
        self._folder_is_synced = False
        self._is_in_doubt = False
        self._has_failed_to_sync = False
        self.size = 0
        self.synced_size = 0
        self.kept_size = 0
        self.set_aside_files = 0
        """How many files this writer has set aside; it also tells one current file from the next."""
        self.set_aside_bytes = 0
        """What is in them."""

    def open(self) -> None:
        """Open the file, which is made when missing."""
        if self._descriptor < 0:
            self._descriptor = self._disk.open_append(self._path)

    def open_existing(self) -> None:
        """Open the file that was replayed. What it holds is kept; whether it is synced nobody knows."""
        self.open()
        self.size = self.kept_size = self._disk.size(self._descriptor)

    def close(self) -> None:
        """Give the descriptor back."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            self._disk.close(descriptor)

    def append(self, records: bytes) -> None:
        """Write whole records. After an OSError none of them counts, and `settle_doubt` takes them from the file."""
        self.settle_doubt()
        self.open()
        try:
            self._disk.write(self._descriptor, records)
        except OSError:
            self._is_in_doubt = True
            raise
        self.size += len(records)

    def promise(self) -> None:
        """Somebody is told that what is written so far is kept."""
        self.kept_size = self.size

    @property
    def keeps_unsynced(self) -> bool:
        """Whether something is to be kept that no sync has reached."""
        return self.kept_size > self.synced_size

    def synced(self, size: int) -> None:
        """A sync of this file has reached so much of it, and its entry in the folder."""
        self.synced_size = max(self.synced_size, size)
        self.kept_size = max(self.kept_size, self.synced_size)
        self._folder_is_synced = True

    def sync_failed(self) -> None:
        """What was written since the last sync does not count. This file is never synced again."""
        self.size = self.synced_size
        self._is_in_doubt = self._has_failed_to_sync = True

    def settle_doubt(self) -> None:
        """Take from the file what a failure left behind its `size`. An OSError leaves that to be done again.

        A file that can be cut is cut, and set aside if its sync failed; else the good part goes to a new file.
        """
        if not self._is_in_doubt:
            return
        try:
            self.open()
            self._disk.cut(self._descriptor, self.size)
            if self._has_failed_to_sync:
                self.set_aside()
        except OSError:
            self._copy_to_new_file()
        self._is_in_doubt = self._has_failed_to_sync = False

    def set_aside(self) -> int:
        """Make the current file a rotated one; the next write begins a new one. Returns the rotated file's number."""
        number = self._next_number()
        self._disk.rename(self._path, self._folder + b"/" + rotated_name(self._queue, number))
        self.close()
        self._folder_is_synced = False
        self.set_aside_files += 1
        self.set_aside_bytes += self.size
        self.size = self.synced_size = self.kept_size = 0
        return number

    def _copy_to_new_file(self) -> None:
        self.close()
        contents = self._disk.map(self._path)
        temporary = self._folder + b"/" + temporary_name(self._queue, self._next_number())
        descriptor = self._disk.open_append(temporary)
        try:
            for offset in range(0, self.size, _CHUNK_BYTES):
                self._disk.write(descriptor, contents[offset : min(offset + _CHUNK_BYTES, self.size)])
            self._disk.sync(descriptor)
        finally:
            self._disk.close(descriptor)
        self._disk.rename(temporary, self._path)
        self._folder_is_synced = False
        self.synced_size = 0

    def descriptor_for_sync(self) -> int:
        """A descriptor of the file for a thread to sync and close; closing the writer meanwhile is no harm."""
        was_open = self._descriptor >= 0
        self.open()
        try:
            return self._disk.duplicate(self._descriptor)
        finally:
            if not was_open:
                self.close()

    def sync(self, descriptor: int) -> None:
        """Sync through a descriptor from `descriptor_for_sync`, and close it. Runs in a thread."""
        try:
            self._disk.sync(descriptor)
            if not self._folder_is_synced:
                self._disk.sync_folder(self._folder)
        finally:
            self._disk.close(descriptor)
