"""A storage that runs code after each put, or refuses puts after some number of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kestrel.errors import StorageRefused
from kestrel.storage.memory import MemoryQueue
from kestrel.testing.storage import SteppedStorage


class LimitedStorage(SteppedStorage):
    """A storage that takes `room` more items (None: any number), and calls `at_put` after each."""

    def __init__(self, room: int | None = None) -> None:
        super().__init__()
        self.room = room
        self.at_put: Callable[[], object] = lambda: None

    def put(self, queues: Sequence[MemoryQueue], data: bytes, add_ms: int, expiry_ms: int) -> None:
        """Append the item, or report that the disk is full."""
        if self.room is not None:
            if not self.room:
                raise StorageRefused("disk full")
            self.room -= 1
        super().put(queues, data, add_ms, expiry_ms)
        self.at_put()
