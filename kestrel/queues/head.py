"""The head of a queue, after expired items are swept, items to discard are dropped, and items on disk are loaded."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from kestrel.errors import KestrelError, QueueFailed
from kestrel.escaping import show_name
from kestrel.item import Item
from kestrel.queues.context import QueueContext
from kestrel.queues.counters import QueueCounters
from kestrel.queues.limits import MAX_MOVED_PER_SLICE, MAX_SWEPT_PER_SLICE, QueueLimits
from kestrel.queues.moves import Moves
from kestrel.storage.barrier import Batch, CommittedQueue
from kestrel.storage.interfaces import IQueueStorage

log = Logger(__name__)


class HeadLoader:
    """The loading of a queue's head. A result for a store that was replaced meanwhile is ignored.

    `filled` is called when the head is in memory, `failed` when it cannot be read.
    """

    def __init__(self, filled: Callable[[], object], failed: Callable[[Failure], object]) -> None:
        self._tell_filled = filled
        self._tell_failed = failed
        self.store: IQueueStorage | None = None
        """The store whose head is being loaded, or None."""

    def begin(self, store: IQueueStorage) -> bool:
        """Begin to load the head of `store`. Return False if the head in memory is already right."""
        if self.store is store:
            return True
        loading = store.fill()
        if loading is None:
            return False
        self.store = store
        loading.addCallbacks(self._filled, self._failed, callbackArgs=(store,), errbackArgs=(store,))
        return self.store is store

    def forget(self) -> None:
        """Ignore the result: the queue has another store, or none."""
        self.store = None

    def _filled(self, _: object, store: IQueueStorage) -> None:
        if self.store is store:
            self.store = None
            self._tell_filled()

    def _failed(self, failure: Failure, store: IQueueStorage) -> None:
        if self.store is store:  # otherwise the queue was reopened meanwhile
            self.store = None
            self._tell_failed(failure)


class HeadOwner(CommittedQueue):
    """The part of a queue that its head uses."""

    name: bytes
    limits: QueueLimits
    counters: QueueCounters
    moves: Moves
    on_expired: Callable[[list[Item]], object] | None
    """Called with the items that a sweep has dropped, before their removal is committed."""

    @abstractmethod
    def touch(self) -> Batch:
        """Record a change, and return its batch."""

    @abstractmethod
    def serve(self) -> None:
        """Serve the waiters."""

    @abstractmethod
    def serve_later(self) -> None:
        """Serve the waiters in a later tick."""

    @abstractmethod
    def answer_all(self, error: Exception | None = None) -> None:
        """Answer all waiters with an error, or as an empty queue does."""


class Head:
    """The head of one queue."""

    def __init__(self, queue: HeadOwner, context: QueueContext) -> None:
        self._queue = queue
        self._context = context
        self._filling = HeadLoader(self._filled, self._fill_failed)
        self._load_listeners: list[Deferred[None]] = []
        self.discarding_for_bytes: int | None = None
        """The size of the last item put over a limit, while heads are still to be discarded for it. No client gets an
        item meanwhile.
        """

    def forget(self) -> None:
        """Reset the state: the queue has another store, or none."""
        self._filling.forget()
        self._tell_load_ended(None)
        self.discarding_for_bytes = None

    def ready_item(self) -> Item | None:
        """Return the first item that has not expired, after sweeping expired items before it.

        Return None if the item is not in memory, the sweep does not reach it, or heads are still to be discarded.
        """
        if self.discarding_for_bytes is not None:
            return None
        store = self._queue.store
        item = store.peek()
        if item is not None and self.item_has_expired(item):
            self.sweep()
            item = store.peek()
            if item is not None and self.item_has_expired(item):
                return None
        return item

    # Expiry.

    @property
    def has_expired(self) -> bool:
        """Whether the head is in memory, has expired and is not swept yet."""
        store = self._queue.store
        item = store.peek() if store.failure is None else None
        return item is not None and self.item_has_expired(item)

    def item_has_expired(self, item: Item) -> bool:
        """Return True if the queue's `item` has expired."""
        limits = self._queue.limits
        if not item.expiry_ms and limits.max_age_ms is None:
            return False  # most items never expire, and need no look at the clock
        return limits.is_expired(item, self._context.now_ms())

    def sweep(self, most: int = MAX_SWEPT_PER_SLICE) -> int:
        """Expire up to `most` items in memory, and return the number of items removed, including placeholders.

        Placeholders are not added to the counter `expired_items`. Fewer items expire at a time if they move to another
        queue.
        """
        queue = self._queue
        store, moves, target, on_expired = queue.store, queue.moves, queue.limits.expires_to, queue.on_expired
        dropped: list[Item] = []
        if target is not None:
            most = min(most, MAX_MOVED_PER_SLICE)
        swept = expired = 0
        item = store.peek()
        while item is not None and swept < most and self.item_has_expired(item):
            is_placeholder = item.is_placeholder
            if target is None or is_placeholder:
                store.take(False)
                if on_expired is not None:
                    dropped.append(item)
            elif moves.is_full:
                break
            else:
                taken = store.take(True)
                assert taken is not None
                queue.touch()
                moves.begin(taken, target, drops=True)
            swept += 1
            expired += not is_placeholder
            item = store.peek()
        if swept:
            queue.counters.expired_items += expired
            queue.touch()
        if on_expired is not None and dropped:
            on_expired(dropped)  # last, because it may use the queue
        return swept

    # Discarding.

    def discard_for(self, size: int) -> None:
        """Drop heads while the queue is full without counting the last item put, of `size` bytes.

        What does not fit in one slice continues in later ticks.
        """
        self.discarding_for_bytes = size
        self.continue_discarding()

    def cancel_discarding(self) -> None:
        """Stop discarding, because the queue was flushed."""
        self.discarding_for_bytes = None

    def continue_discarding(self) -> None:
        """Run one slice of `discard_for`, if it has not ended. Expired items leave as they otherwise would."""
        size, queue = self.discarding_for_bytes, self._queue
        if size is None:
            return
        store, limits = queue.store, queue.limits
        before = queue.counters.discarded
        for _ in range(MAX_SWEPT_PER_SLICE):
            if not limits.is_exceeded(store, size):
                self.discarding_for_bytes = None
                break
            if self.has_expired and self.sweep(1):
                continue
            if self.has_expired and queue.moves.failure is None:
                break  # the most moves are in progress; it continues when one ends
            if store.take(False) is not None:
                queue.counters.discarded += 1
            elif self.fill():
                break
            elif store.peek() is None:
                self.discarding_for_bytes = None
                break
        else:
            queue.serve_later()
        if queue.counters.discarded != before:
            queue.touch()

    # Loading from disk.

    @property
    def is_loading(self) -> bool:
        """Whether the head is being loaded into memory."""
        return self._filling.store is self._queue.store

    def load(self) -> None:
        """Begin to load the head into memory if it is not there, since it may have expired."""
        store = self._queue.store
        if store.items and store.failure is None and store.peek() is None:
            self.fill()

    def fill(self) -> bool:
        """Begin to load the head. Return False if the head in memory is already right."""
        return self._filling.begin(self._queue.store)

    def load_ended(self) -> Deferred[None]:
        """Return a Deferred that fires when the current load has ended, and fails if the head cannot be read."""
        ended: Deferred[None] = Deferred()
        self._load_listeners.append(ended)
        return ended

    def _filled(self) -> None:
        self._tell_load_ended(None)
        self._queue.serve()

    def _fill_failed(self, failure: Failure) -> None:
        queue, error = self._queue, failure.value
        log.error("The head of queue {queue} cannot be read: {error}", queue=show_name(queue.name), error=str(error))
        queue.touch()  # if the storage has found that it failed, a commit reports it
        known = error if isinstance(error, KestrelError) else QueueFailed("the head cannot be read")
        self._tell_load_ended(known)
        queue.answer_all(known)

    def _tell_load_ended(self, error: KestrelError | None) -> None:
        if self._load_listeners:
            listeners, self._load_listeners = self._load_listeners, []
            for ended in listeners:
                ended.callback(None) if error is None else ended.errback(error)
