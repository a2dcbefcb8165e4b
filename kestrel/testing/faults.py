"""A disk that fails where a test says."""

from __future__ import annotations

import errno
import os

from kestrel.disk.files import Disk


class FaultyDisk(Disk):
    """The real disk, but for what was arranged.

    `fail("write", errno.ENOSPC)` makes each call of that operation fail from now on, with `times` only so many of
    them; `mend` ends that. A failing write first writes `torn_bytes` of its data. `room` bounds the bytes that
    may still be written or allocated, None is no bound; erased and cut bytes are room again. `calls` names
    what was done, in order.
    """

    def __init__(self) -> None:
        self._failing: dict[str, tuple[int, int | None]] = {}
        self.torn_bytes = 0
        self.room: int | None = None
        self.calls: list[str] = []

    def fail(self, operation: str, error: int, times: int | None = None) -> None:
        """Let an operation fail with that errno."""
        self._failing[operation] = (error, times)

    def mend(self) -> None:
        """Let everything go well again."""
        self._failing.clear()
        self.torn_bytes = 0

    def _check(self, operation: str) -> None:
        self.calls.append(operation)
        error, times = self._failing.get(operation, (0, None))
        if not error:
            return
        if times is not None:
            if times <= 0:
                return
            self._failing[operation] = (error, times - 1)
        raise OSError(error, os.strerror(error))

    def _take_room(self, size: int) -> None:
        if self.room is not None:
            if size > self.room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.room -= size

    def _give_room(self, size: int) -> None:
        if self.room is not None:
            self.room += size

    def open_append(self, path: bytes) -> int:
        self._check("open")
        return super().open_append(path)

    def write(self, descriptor: int, data: bytes) -> None:
        try:
            self._check("write")
            self._take_room(len(data))
        except OSError:
            torn = data[: self.torn_bytes if self.room is None else min(self.room, len(data))]
            super().write(descriptor, torn)
            self._give_room(-len(torn))
            raise
        super().write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        self._check("sync")
        super().sync(descriptor)

    def sync_folder(self, path: bytes) -> None:
        self._check("sync_folder")
        super().sync_folder(path)

    def cut(self, descriptor: int, size: int) -> None:
        self._check("cut")
        before = self.size(descriptor)
        super().cut(descriptor, size)
        self._give_room(max(0, before - size))

    def rename(self, old: bytes, new: bytes) -> None:
        self._check("rename")
        super().rename(old, new)

    def erase(self, path: bytes) -> None:
        self._check("erase")
        size = os.path.getsize(path) if os.path.exists(path) else 0
        super().erase(path)
        self._give_room(size)

    def allocate(self, path: bytes, size: int) -> None:
        self._check("allocate")
        before = os.path.getsize(path) if os.path.exists(path) else 0
        self._take_room(size - before)
        super().allocate(path, size)
