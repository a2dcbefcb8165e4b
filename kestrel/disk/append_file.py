"""A file that grows at its end, with its complete, synced and acknowledged lengths."""

from __future__ import annotations

from kestrel.disk.files import Disk


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
