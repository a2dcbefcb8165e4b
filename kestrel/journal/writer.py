"""The current file of one queue, as far as it is written."""

from __future__ import annotations

from collections.abc import Callable

from kestrel.disk.files import Disk
from kestrel.journal.fileset import current_name, rotated_name


class JournalWriter:
    """Appends records to the current file and knows how much of it is good.

    `size` counts whole records that were written, `synced_size` those known to be on the medium. The file is
    opened on the first write and may be closed and opened again at any time, so that idle queues hold no
    descriptor. `next_number` gives the number of a file that is set aside.
    """

    def __init__(self, disk: Disk, folder: bytes, queue: bytes, next_number: Callable[[], int]) -> None:
        self._disk = disk
        self._folder = folder
        self._queue = queue
        self._path = folder + b"/" + current_name(queue)
        self._next_number = next_number
        self._descriptor = -1
        self._folder_is_synced = False
        self.size = 0
        self.synced_size = 0
        self.set_aside_bytes = 0
        """What this writer left behind in files it set aside."""

    def open(self) -> None:
        """Open the file, which is made when missing."""
        if self._descriptor < 0:
            self._descriptor = self._disk.open_append(self._path)

    def open_existing(self) -> None:
        """Open the file that was replayed; what it holds counts as written and synced."""
        self.open()
        self.size = self.synced_size = self._disk.size(self._descriptor)

    def append(self, records: bytes) -> None:
        """Write whole records, or on an OSError none: torn bytes are cut, or left behind in a file set aside."""
        self.open()
        try:
            self._disk.write(self._descriptor, records)
        except OSError:
            try:
                self._disk.cut(self._descriptor, self.size)
            except OSError:
                self.set_aside()
            raise
        self.size += len(records)

    def cut_to_synced(self) -> None:
        """Remove what a failed sync left in doubt, and go on in a new file: this one cannot be trusted again."""
        self.open()
        self._disk.cut(self._descriptor, self.synced_size)
        self.size = self.synced_size
        self.set_aside()

    def set_aside(self) -> int:
        """Make the current file a rotated one and go on in a new file. Returns the rotated file's number."""
        number = self._next_number()
        self._disk.rename(self._path, self._folder + b"/" + rotated_name(self._queue, number))
        self.close()
        self._folder_is_synced = False
        self.set_aside_bytes += self.size
        self.size = self.synced_size = 0
        self.open()
        return number

    def descriptor_for_sync(self) -> int:
        """A descriptor of the file for a thread to sync and close; closing the writer meanwhile is no harm."""
        self.open()
        return self._disk.duplicate(self._descriptor)

    def sync(self, descriptor: int) -> None:
        """Sync through a descriptor from `descriptor_for_sync`, and close it. Runs in a thread."""
        try:
            self._disk.sync(descriptor)
            if not self._folder_is_synced:
                self._disk.sync_folder(self._folder)
                self._folder_is_synced = True
        finally:
            self._disk.close(descriptor)

    def close(self) -> None:
        """Give the descriptor back; the next write opens the file again."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            self._disk.close(descriptor)
