"""Queues of objects: a journaled queue with a codec and a single reader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NoReturn, Protocol, TypeVar

from twisted.internet.defer import Deferred, succeed

from kestrel.library.journaled_config import QueueItem
from kestrel.library.reader import Reader

T = TypeVar("T")
R = TypeVar("R")


class ItemCodec(Protocol[T]):
    """A converter between objects and the bytes of items."""

    def encode(self, item: T) -> bytes:
        """Return the bytes of `item`."""

    def decode(self, data: bytes) -> T:
        """Return the object that `data` encodes."""


class UnderlyingQueue(Protocol):
    """The journaled queue that holds the bytes (`kestrel.library.journaled_queue.FolderJournaledQueue`)."""

    def put(self, data: bytes) -> Deferred[None] | None:
        """Put an item for every reader. Fires when the item is safe; None means that it was refused."""

    def flush(self) -> None:
        """Drop all items of all readers, except open reads."""

    def close(self) -> Deferred[None]:
        """Close the queue when all changes are safe."""


class _SingleReaderQueue(Generic[T]):
    """The base class of the queues of objects."""

    def __init__(self, queue: UnderlyingQueue, reader: Reader, codec: ItemCodec[T]) -> None:
        self._queue = queue
        self._reader = reader
        self._codec = codec

    def __len__(self) -> int:
        return self._reader.items

    @property
    def size(self) -> int:
        """Number of items, including open reads."""
        return self._reader.items

    @property
    def waiter_count(self) -> int:
        """Number of consumers that wait for an item."""
        return self._reader.waiter_count

    def put(self, item: T) -> Deferred[bool]:
        """Append an item. Fire with True when it is as safe as `sync_journal_ms` promises, with False if it is refused.

        Fails with `QueueFailed` if the item was lost. Raises the exceptions of the codec and of `JournaledQueue.put`.
        """
        safe = self._queue.put(self._codec.encode(item))
        return succeed(False) if safe is None else safe.addCallback(lambda _: True)

    def put_head(self, item: T) -> NoReturn:
        """Raise TypeError: a journal is only written at its end."""
        raise TypeError("a journaled queue cannot put an item at its head: a journal is only written at its end")

    def flush(self) -> None:
        """Drop all items, except open reads."""
        self._queue.flush()

    def evict_waiters(self) -> None:
        """Answer every waiting consumer with None, as if the queue were empty."""
        self._reader.evict_waiters()

    def close(self) -> Deferred[None]:
        """Close the underlying queue, as `JournaledQueue.close` does."""
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
    """A queue of objects that commits each item when it is delivered; made by `to_blocking_queue`.

    A crash may deliver the last items again. If the codec cannot decode an item, the get fails with the codec's
    exception. The item returns to the head with one more error, unless `error_handler` removes it. None cannot be an
    item: a get that returns None found nothing.
    """

    def put(self, item: T) -> Deferred[bool]:
        """Append an item. Fire with True when it is as safe as `sync_journal_ms` promises, with False if it is refused.

        Fails with `QueueFailed` if the item was lost. Raises TypeError for None, and the exceptions of the codec.
        """
        if item is None:
            raise TypeError("None cannot be an item: get() returns None if there is no item")
        return super().put(item)

    def get(self, deadline_s: float | None = None) -> Deferred[T | None]:
        """Take the next item. Fire with None after `deadline_s` seconds; without a deadline, wait until there is an
        item.
        """
        return self._get(deadline_s, self._wrap)

    def poll(self) -> Deferred[T | None]:
        """Take the next item without waiting for a put. Fire with None if there is none."""
        return self.get(0)

    def poll_if(self, predicate: Callable[[T], bool]) -> NoReturn:
        """Raise TypeError: a journaled queue cannot examine its head before it delivers it."""
        raise TypeError("a journaled queue does not support poll_if(): it delivers its head without a predicate")

    def _wrap(self, item: QueueItem, decoded: T) -> T:
        self._reader.commit(item.id)
        return decoded


class Transaction(Generic[T]):
    """An item that was delivered and is not yet committed."""

    __slots__ = ("_id", "_reader", "item")

    def __init__(self, item: T, reader: Reader, item_id: int) -> None:
        self.item = item
        self._reader = reader
        self._id = item_id

    def commit(self) -> bool:
        """Remove the item permanently. Return False if it is no longer open."""
        return self._reader.commit(self._id)

    def rollback(self) -> bool:
        """Return the item to the head of the queue with one more error. Return False if it is no longer open."""
        return self._reader.unget(self._id)


class TransactionalJournaledBlockingQueue(_SingleReaderQueue[T]):
    """A queue of objects that delivers each item in a transaction; made by `to_transactional_blocking_queue`.

    If the codec cannot decode an item, the item is rolled back and the get fails with the codec's exception.
    """

    def get(self, deadline_s: float | None = None) -> Deferred[Transaction[T] | None]:
        """Take the next item in a transaction. Fire with None after `deadline_s` seconds; without a deadline, wait for
        an item.
        """
        return self._get(deadline_s, self._wrap)

    def poll(self) -> Deferred[Transaction[T] | None]:
        """Take the next item in a transaction without waiting for a put. Fire with None if there is none."""
        return self.get(0)

    def _wrap(self, item: QueueItem, decoded: T) -> Transaction[T]:
        return Transaction(decoded, self._reader, item.id)
