"""The head of a reader: expiry, dropping of items over a limit, and loading from disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from kestrel.errors import KestrelError, QueueFailed
from kestrel.item import Item
from kestrel.library.full_policy import FullPolicy
from kestrel.library.journaled_config import JournaledQueueReaderConfig, QueueItem
from kestrel.library.reader_counts import ReaderCounts
from kestrel.queues.expiry import MAX_SWEPT_PER_SLICE
from kestrel.queues.head_loader import HeadLoader
from kestrel.storage.interfaces import IQueueStorage

log = Logger(__name__)


class ReaderHeadOwner(Protocol):
    """The reader that a head belongs to (`kestrel.library.reader.Reader`)."""

    config: JournaledQueueReaderConfig
    store: IQueueStorage
    counts: ReaderCounts

    @property
    def items(self) -> int:
        """Number of items, including open reads."""

    @property
    def bytes(self) -> int:
        """Bytes of data in the items, including open reads."""

    def to_queue_item(self, item: Item) -> QueueItem:
        """Convert a stored item for the program."""

    def touch(self) -> object:
        """Add the reader to the current batch after a change."""

    def serve(self) -> None:
        """Serve waiting consumers."""

    def answer_all(self, error: Exception | None = None) -> None:
        """Answer every waiting consumer with None, or with `error`."""


class ReaderHead:
    """The head of one reader."""

    def __init__(self, reader: ReaderHeadOwner, now_ms: Callable[[], int]) -> None:
        self._reader = reader
        self._now_ms = now_ms
        self._filling = HeadLoader(self._filled, self._fill_failed)
        self._waiting: list[Deferred[None]] = []

    def forget(self) -> None:
        """Ignore a load in progress, because the reader has another store."""
        self._filling.forget()
        self._tell(None)

    # Expiry.

    @property
    def has_expired(self) -> bool:
        """Whether the item at the head is in memory and has expired."""
        store = self._reader.store
        item = store.peek() if store.failure is None else None
        return item is not None and self.item_has_expired(item)

    def item_has_expired(self, item: Item) -> bool:
        """Return True if an item has reached its expiry time or the reader's maximum age."""
        max_age_ms = self._reader.config.max_age_ms
        if not item.expiry_ms and max_age_ms is None:
            return False
        now_ms = self._now_ms()
        return 0 < item.expiry_ms <= now_ms or (max_age_ms is not None and item.add_ms + max_age_ms <= now_ms)

    def sweep(self, most: int) -> int:
        """Remove at most `most` expired items that are in memory, and return their number."""
        reader, swept = self._reader, 0
        process = reader.config.process_expired_item
        while swept < most and self.has_expired:
            item = reader.store.take(False)
            assert item is not None
            swept += 1
            reader.counts.expired += 1
            reader.touch()
            if process is not None:
                call_hook(process, reader.to_queue_item(item))
        return swept

    # Limits.

    @property
    def is_over_limit(self) -> bool:
        """Whether items must be dropped because of `FullPolicy.DROP_OLDEST`."""
        reader = self._reader
        config = reader.config
        if config.full_policy is not FullPolicy.DROP_OLDEST or reader.store.failure is not None:
            return False
        too_many = config.max_items is not None and reader.items > config.max_items
        too_large = config.max_size_bytes is not None and reader.bytes > config.max_size_bytes
        return (too_many or too_large) and reader.store.items > 0

    def discard(self) -> bool:
        """Drop items over the limit, at most one slice of them. Return False if the head must be loaded from disk
        first.
        """
        reader = self._reader
        for _ in range(MAX_SWEPT_PER_SLICE):
            if not self.is_over_limit:
                break
            if reader.store.take(False) is None:
                return not self.fill()
            reader.counts.discarded += 1
            reader.touch()
        return True

    # Loading from disk.

    @property
    def is_loading(self) -> bool:
        """Whether the head is being loaded from disk."""
        return self._filling.store is self._reader.store

    def fill(self) -> bool:
        """Begin to load the head from disk. Return False if that is not necessary."""
        return self._filling.begin(self._reader.store)

    def filled(self) -> Deferred[None]:
        """Return a Deferred that fires when the current load has ended, and fails if the head cannot be read."""
        done: Deferred[None] = Deferred()
        self._waiting.append(done)
        return done

    def _filled(self) -> None:
        self._tell(None)
        self._reader.serve()

    def _fill_failed(self, failure: Failure) -> None:
        error: Any = failure.value
        if not isinstance(error, KestrelError):
            error = QueueFailed("the head cannot be read")
        log.error("Cannot read the head of a reader: {error}", error=str(error))
        self._reader.touch()  # a failed storage reports its failure in a commit
        self._tell(error)
        self._reader.answer_all(error)

    def _tell(self, error: Exception | None) -> None:
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done.callback(None) if error is None else done.errback(error)


def call_hook(hook: Callable[..., Any], *args: object) -> Any:
    """Call a program's hook and return its result. If it raises, log the exception and return None."""
    try:
        return hook(*args)
    except Exception:
        log.failure("A hook of a reader failed")
        return None
