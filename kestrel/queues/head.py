"""The head of a queue: what is found there once what has expired and what is to be discarded is gone, and what is on
disk alone has come into memory."""

from __future__ import annotations

from abc import abstractmethod

from twisted.logger import Logger
from twisted.python.failure import Failure

from kestrel.errors import KestrelError, QueueFailed
from kestrel.item import Item
from kestrel.queues.context import QueueContext
from kestrel.queues.counters import QueueCounters
from kestrel.queues.expiry import MAX_MOVED_PER_SLICE, MAX_SWEPT_PER_SLICE, is_expired
from kestrel.queues.head_loader import HeadLoader
from kestrel.queues.limits import QueueLimits
from kestrel.queues.moves import Moves
from kestrel.storage.barrier import Batch, Committed

log = Logger(__name__)


class HeadOwner(Committed):
    """What a head needs of its queue."""

    name: bytes
    limits: QueueLimits
    counters: QueueCounters
    moves: Moves

    @abstractmethod
    def touch(self) -> Batch:
        """Something was recorded."""

    @abstractmethod
    def serve(self) -> None:
        """Serve those in line."""

    @abstractmethod
    def serve_later(self) -> None:
        """Serve those in line in another turn."""

    @abstractmethod
    def answer_all(self, error: Exception | None = None) -> None:
        """Answer everyone in line."""


class Head:
    """The head of one queue."""

    def __init__(self, queue: HeadOwner, context: QueueContext) -> None:
        self._queue = queue
        self._now_ms = context.now_ms
        self._filling = HeadLoader(queue.serve, self._fill_failed)
        self._discarding_for_bytes: int | None = None
        """The size of the last item taken over a limit, while heads are still to be discarded for it."""

    def forget(self) -> None:
        """The queue has other contents, or none."""
        self._filling.forget()
        self._discarding_for_bytes = None

    def ready_item(self) -> Item | None:
        """The head, if it is in memory, nothing is to be discarded first and it has not expired."""
        if self._discarding_for_bytes is not None:
            return None
        store = self._queue.store
        item = store.peek()
        if item is not None and self.item_has_expired(item):
            self.sweep()
            item = store.peek()
            if item is not None and self.item_has_expired(item):
                return None
        return item

    # What has expired.

    @property
    def has_expired(self) -> bool:
        """Whether it has expired, and a sweep has not come to it yet."""
        store = self._queue.store
        item = store.peek() if store.failure is None else None
        return item is not None and self.item_has_expired(item)

    def item_has_expired(self, item: Item) -> bool:
        """Whether that item of the queue has expired."""
        max_age_ms = self._queue.limits.max_age_ms
        may_expire = item.expiry_ms or max_age_ms is not None  # most never do: spare them the look at the clock
        return bool(may_expire) and is_expired(item, max_age_ms, self._now_ms())

    def sweep(self, most: int = MAX_SWEPT_PER_SLICE) -> int:
        """Expire items in memory, at most `most`, and return how many. Placeholders are dropped and not counted as
        expired."""
        queue = self._queue
        store, moves, target = queue.store, queue.moves, queue.limits.expires_to
        if target is not None:
            most = min(most, MAX_MOVED_PER_SLICE)
        swept = expired = 0
        item = store.peek()
        while item is not None and swept < most and self.item_has_expired(item):
            is_placeholder = item.is_placeholder
            if target is None or is_placeholder:
                store.take(False)
            elif moves.is_full:
                break
            else:
                store.take(True)
                moves.begin(item, target, drops=True)
            swept += 1
            expired += not is_placeholder
            item = store.peek()
        if swept:
            queue.counters.expired_items += expired
            queue.touch()
        return swept

    # What is to be discarded.

    @property
    def is_discarding(self) -> bool:
        """Whether heads are still to be discarded, so that nobody gets an item before."""
        return self._discarding_for_bytes is not None

    def discard_for(self, size: int) -> None:
        """Drop heads until there was room for the last item that was put, which has that size."""
        self._discarding_for_bytes = size
        self.continue_discarding()

    def cancel_discarding(self) -> None:
        """The queue was flushed."""
        self._discarding_for_bytes = None

    def continue_discarding(self) -> None:
        """Drop what is owed, in turns; what has expired leaves as it would have."""
        size, queue = self._discarding_for_bytes, self._queue
        if size is None:
            return
        store, limits = queue.store, queue.limits
        before = queue.counters.discarded
        for _ in range(MAX_SWEPT_PER_SLICE):
            if not limits.is_full(store.items - 1, store.bytes - size):
                self._discarding_for_bytes = None
                break
            if self.has_expired and self.sweep(1):
                continue
            if self.has_expired and queue.moves.failure is None:
                break  # as many are on their way as may be; when one arrives it goes on
            if store.take(False) is not None:
                queue.counters.discarded += 1
            elif self.fill():
                break
            elif store.peek() is None:
                self._discarding_for_bytes = None
                break
        else:
            queue.serve_later()
        if queue.counters.discarded != before:
            queue.touch()

    # What is on disk alone.

    @property
    def is_loading(self) -> bool:
        """Whether it is being brought into memory."""
        return self._filling.store is self._queue.store

    def load(self) -> None:
        """Bring it into memory, if it is not there: nobody waits for it, but it may have expired."""
        store = self._queue.store
        if store.items and store.failure is None and store.peek() is None:
            self.fill()

    def fill(self) -> bool:
        """Bring it into memory. False when what is in memory tells the truth."""
        return self._filling.begin(self._queue.store)

    def _fill_failed(self, failure: Failure) -> None:
        queue, error = self._queue, failure.value
        log.error("The head of queue {queue!r} cannot be read: {error}", queue=queue.name, error=str(error))
        queue.touch()  # if its storage has found that it cannot go on, a commit is where it may say so
        queue.answer_all(error if isinstance(error, KestrelError) else QueueFailed("the head cannot be read"))
