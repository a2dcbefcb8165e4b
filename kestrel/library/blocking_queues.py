"""A journaled queue as one queue of objects: with a codec, and with one reader, whose name nobody has to know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NoReturn, Protocol, TypeVar

from twisted.internet.defer import Deferred, succeed

from kestrel.library.journaled_config import QueueItem
from kestrel.library.reader import Reader

T = TypeVar("T")
R = TypeVar("R")


class ItemCodec(Protocol[T]):
    """Turns objects into the bytes of items, and back."""

    def encode(self, item: T) -> bytes:
        """The bytes that stand for it."""

    def decode(self, data: bytes) -> T:
        """The object that these bytes stand for."""


class UnderlyingQueue(Protocol):
    """The queue behind (`kestrel.library.folder_journaled_queue.FolderJournaledQueue`)."""

    def put(self, data: bytes) -> Deferred[None] | None:
        """Put an item for every reader. None when it is refused, else fires when it is safe."""

    def flush(self) -> None:
        """Drop all items of all readers, but for open reads."""

    def close(self) -> Deferred[None]:
        """Make all that was done safe, and close it."""


class _SingleReaderQueue(Generic[T]):
    """What both queues of objects have in common."""

    def __init__(self, queue: UnderlyingQueue, reader: Reader, codec: ItemCodec[T]) -> None:
        self._queue = queue
        self._reader = reader
        self._codec = codec

    def __len__(self) -> int:
        return self._reader.items

    @property
    def size(self) -> int:
        """How many items it holds, open reads counted."""
        return self._reader.items

    @property
    def waiter_count(self) -> int:
        """How many consumers wait for an item to come."""
        return self._reader.waiter_count

    def put(self, item: T) -> Deferred[bool]:
        """Append an item: True when it is as safe as `sync_journal_ms` promises, False if it is refused.

        Fails with `QueueFailed` if it was lost. Raises what the codec raises, and what `JournaledQueue.put` raises.
        """
        safe = self._queue.put(self._codec.encode(item))
        return succeed(False) if safe is None else safe.addCallback(lambda _: True)

    def put_head(self, item: T) -> NoReturn:
        """Nothing: a journal is written at its end. Raises TypeError."""
        raise TypeError("a journaled queue takes no item at its head: its journal is written at its end")

    def flush(self) -> None:
        """Drop every item that is not an open read."""
        self._queue.flush()

    def evict_waiters(self) -> None:
        """Answer everyone in line as an empty queue does."""
        self._reader.evict_waiters()

    def close(self) -> Deferred[None]:
        """Close the queue behind, as `JournaledQueue.close`."""
        return self._queue.close()

    def _get(self, deadline_s: float | None, wrap: Callable[[QueueItem, T], R]) -> Deferred[R | None]:
        return self._reader.get(deadline_s).addCallback(self._decoded, wrap)

    def _decoded(self, item: QueueItem | None, wrap: Callable[[QueueItem, T], R]) -> R | None:
        if item is None:
            return None
        try:
            decoded = self._codec.decode(item.data)
        except Exception:
            self._reader.unget(item.id)
            raise
        return wrap(item, decoded)


class JournaledBlockingQueue(_SingleReaderQueue[T]):
    """What `to_blocking_queue` returns: an item is done when it is given. A crash may give the last ones again.

    An item that the codec cannot decode goes back to the head with one more error (`error_handler` may take it away),
    and the get fails as the codec did. None is no item: a get that brings None has found nothing.
    """

    def put(self, item: T) -> Deferred[bool]:
        """Append an item, as a queue with transactions does. Raises TypeError for None."""
        if item is None:
            raise TypeError("None is no item: a get answers None when there is none")
        return super().put(item)

    def get(self, deadline_s: float | None = None) -> Deferred[T | None]:
        """The next item, as `Reader.get`; None when so many seconds have gone by, without a deadline never."""
        return self._get(deadline_s, self._wrap)

    def poll(self) -> Deferred[T | None]:
        """The next item if there is one for this consumer now, else None."""
        return self.get(0)

    def poll_if(self, predicate: Callable[[T], bool]) -> NoReturn:
        """Nothing: the head of a journaled queue is not looked at before it is given. Raises TypeError."""
        raise TypeError("a journaled queue gives its head to whoever is next: it cannot be asked with a predicate")

    def _wrap(self, item: QueueItem, decoded: T) -> T:
        self._reader.commit(item.id)
        return decoded


class Transaction(Generic[T]):
    """An item that was given, and is not done yet."""

    __slots__ = ("_id", "_reader", "item")

    def __init__(self, item: T, reader: Reader, item_id: int) -> None:
        self.item = item
        self._reader = reader
        self._id = item_id

    def commit(self) -> bool:
        """It is done, as `Reader.commit`."""
        return self._reader.commit(self._id)

    def rollback(self) -> bool:
        """It goes to the next consumer, with one more error, as `Reader.unget`."""
        return self._reader.unget(self._id)


class TransactionalJournaledBlockingQueue(_SingleReaderQueue[T]):
    """What `to_transactional_blocking_queue` returns: an item that is given is done when its transaction is committed.

    What the codec cannot decode is rolled back, and the get fails.
    """

    def get(self, deadline_s: float | None = None) -> Deferred[Transaction[T] | None]:
        """A transaction with the next item; otherwise as `JournaledBlockingQueue.get`."""
        return self._get(deadline_s, self._wrap)

    def poll(self) -> Deferred[Transaction[T] | None]:
        """The same, if there is an item for this consumer now, else None."""
        return self.get(0)

    def _wrap(self, item: QueueItem, decoded: T) -> Transaction[T]:
        return Transaction(decoded, self._reader, item.id)
