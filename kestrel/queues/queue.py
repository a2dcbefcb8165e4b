"""The life of one queue: who takes its items, what expires, and what happens when its storage fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from twisted.logger import Logger
from twisted.python.failure import Failure

from kestrel.config.model import QueueSettings
from kestrel.errors import KestrelError, QueueFailed
from kestrel.item import Item
from kestrel.queues.counters import QueueCounters
from kestrel.queues.waiters import Waiter, WaitingLine
from kestrel.storage.barrier import Barrier, Batch
from kestrel.storage.interfaces import IQueueStorage, IStorage

log = Logger()

SERVED_AT_ONCE: Final = 64
"""Then it is the turn of others; the rest of the line is served in the next tick."""


class Queue:
    """A named queue over its contents in a storage.

    Everything that changes the contents touches the barrier; the batch it returns is what the reply has to
    wait for. When the storage fails, `contents` is replaced by what the storage still holds: an open read
    belongs to the contents that it was taken from.
    """

    def __init__(
        self,
        name: bytes,
        settings: QueueSettings,
        storage: IStorage,
        contents: IQueueStorage,
        barrier: Barrier,
        now_ms: Callable[[], int],
    ) -> None:
        self.name = name
        self.settings = settings
        self.storage = storage
        self.contents = contents
        self.open_batch: Batch | None = None
        self.committing: Batch | None = None
        self.is_deleted = False
        self.counters = QueueCounters(contents.replayed_items, now_ms())
        self.waiting = WaitingLine()
        self._barrier = barrier
        self._now_ms = now_ms
        self._is_serving = False
        self._filling: IQueueStorage | None = None

    def touch(self) -> Batch:
        """Something was recorded: the batch that it is part of."""
        return self._barrier.touch(self)

    @property
    def is_loading_head(self) -> bool:
        """Whether those in line wait for the storage rather than for an item to be put."""
        return self._filling is self.contents

    @property
    def unsettled_batch(self) -> Batch | None:
        """The latest batch that is not safe yet, which whoever merely looks at the queue has to wait for."""
        return self.open_batch or self.committing

    # Items in.

    def put(self, data: bytes, expiry_ms: int) -> Batch:
        """Append an item. Raises the errors of `IStorage.put`."""
        self.sweep()
        self.storage.put((self.contents,), data, self._now_ms(), expiry_ms)
        self.counters.total_items += 1
        batch = self.touch()
        if self.waiting:
            self.serve()
        return batch

    # Items out.

    def sweep(self) -> int:
        """Drop the expired items at the head, as far as it is in memory. Returns how many."""
        contents = self.contents
        swept = 0
        item = contents.peek()
        while item is not None and 0 < item.expiry_ms < self._now_ms():
            contents.take(False)
            swept += 1
            item = contents.peek()
        if swept:
            self.counters.expired_items += swept
            self.touch()
        return swept

    def take_now(self, opens: bool) -> Item | None:
        """The head, if it is in memory and nobody stands in line for it."""
        if self.waiting:
            return None
        self.sweep()
        return self._take(opens)

    def peek_now(self) -> Item | None:
        """A look at the head, if it is in memory and nobody stands in line for it."""
        if self.waiting:
            return None
        self.sweep()
        return self.contents.peek()

    def _take(self, opens: bool) -> Item | None:
        item = self.contents.take(opens)
        if item is not None:
            self.counters.age_ms = max(0, self._now_ms() - item.add_ms)
            self.touch()
        return item

    def join(self, waiter: Waiter) -> None:
        """Stand in line for the head; the waiter may be served before this returns."""
        self.waiting.join(waiter)
        self.serve()

    def serve(self) -> None:
        """Serve those in line as far as there are items, and answer the impatient when there are none."""
        if self._is_serving or self.is_loading_head:
            return
        self._is_serving = True
        try:
            for _ in range(SERVED_AT_ONCE):
                if not self.waiting or not self._serve_first():
                    break
            else:
                self._barrier.at_end_of_tick(self.serve)
        except KestrelError as error:
            self.answer_all(error)
        finally:
            self._is_serving = False

    def _serve_first(self) -> bool:
        """Serve the first in line. False when that must wait."""
        waiter = self.waiting.first()
        self.sweep()
        item = self.contents.peek() if waiter.peeks else self._take(waiter.opens)
        if item is None:
            loading = self.contents.fill()
            if loading is not None:
                self._filling = contents = self.contents
                loading.addCallbacks(self._filled, self._fill_failed, callbackArgs=(contents,), errbackArgs=(contents,))
                return self._filling is None
            if self.contents.peek() is not None:
                return True
            for each in self.waiting.impatient():
                self.waiting.leave(each)
                each.item_arrived(None, None)
            return False
        self.waiting.leave(waiter)
        waiter.item_arrived(item, None)
        return True

    def _filled(self, _: object, contents: IQueueStorage) -> None:
        if self._filling is contents:
            self._filling = None
            self.serve()

    def _fill_failed(self, failure: Failure, contents: IQueueStorage) -> None:
        if self._filling is not contents:
            return  # they have been opened anew since
        self._filling = None
        error = failure.value
        log.error("The head of queue {queue!r} cannot be read: {error}", queue=self.name, error=str(error))
        self.touch()  # if its storage has found that it cannot go on, a commit is where it may say so
        self.answer_all(error if isinstance(error, KestrelError) else QueueFailed("the head cannot be read"))

    def answer_all(self, error: Exception | None = None) -> None:
        """Answer everyone in line: as an empty queue does, or with that error."""
        for waiter in self.waiting.all():
            self.waiting.leave(waiter)
            waiter.item_arrived(None, error)

    # Open reads, which belong to the contents they were taken from.

    def confirm(self, xids: list[int]) -> Batch:
        """Finish open reads."""
        self.contents.confirm(xids)
        return self.touch()

    def put_back(self, xids: list[int], *, failed: bool) -> Batch:
        """Return open reads to the head, xids[0] first in line."""
        self.contents.put_back(xids, failed)
        batch = self.touch()
        if self.waiting:
            self.serve()
        return batch

    def flush(self) -> Batch:
        """Drop all but the open reads."""
        self.contents.clear()
        self.counters.total_flushes += 1
        self.counters.age_ms = 0
        return self.touch()

    # A storage that fails.

    def commit_failed(self, failure: Exception) -> None:
        """The contents are dead: go on with what the storage still holds."""
        try:
            self.reopen()
        except KestrelError as error:
            log.error("Queue {queue!r} cannot be opened: {reason}", queue=self.name, reason=str(error))
            self.answer_all(error)

    def reopen(self) -> None:
        """Open dead contents anew; raises `QueueFailed` when that fails too."""
        if not self.is_deleted and self.contents.failure is not None:
            self.contents = self.storage.queue(self.name, self.settings)
            self._filling = None
            self.serve()
