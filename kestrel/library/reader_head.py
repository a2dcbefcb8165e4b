"""The head of a reader: what has expired, what is one too many, and what is on the disk alone."""

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
    """What a head needs of its reader (`kestrel.library.reader.Reader`)."""

    config: JournaledQueueReaderConfig
    store: IQueueStorage
    counts: ReaderCounts

    @property
    def items(self) -> int:
        """How many items it holds, open ones counted."""

    @property
    def bytes(self) -> int:
        """Their data."""

    def to_queue_item(self, item: Item) -> QueueItem:
        """The item as programs see it."""

    def touch(self) -> object:
        """Something was done to the contents."""

    def serve(self) -> None:
        """Serve those in line."""

    def answer_all(self, error: Exception | None = None) -> None:
        """Answer everyone in line."""


class ReaderHead:
    """The head of one reader."""

    def __init__(self, reader: ReaderHeadOwner, now_ms: Callable[[], int]) -> None:
        self._reader = reader
        self._now_ms = now_ms
        self._filling = HeadLoader(self._filled, self._fill_failed)
        self._waiting: list[Deferred[None]] = []

    def forget(self) -> None:
        """The reader has other contents."""
        self._filling.forget()
        self._tell(None)

    # What has expired.

    @property
    def has_expired(self) -> bool:
        """Whether it has expired, as far as it is in memory."""
        store = self._reader.store
        item = store.peek() if store.failure is None else None
        return item is not None and self.item_has_expired(item)

    def item_has_expired(self, item: Item) -> bool:
        """Whether that item has expired: its time, or the end of its age, has come."""
        max_age_ms = self._reader.config.max_age_ms
        if not item.expiry_ms and max_age_ms is None:
            return False
        now_ms = self._now_ms()
        return 0 < item.expiry_ms <= now_ms or (max_age_ms is not None and item.add_ms + max_age_ms <= now_ms)

    def sweep(self, most: int) -> int:
        """Expire items, as far as they are in memory, and at most so many. Returns how many."""
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

    # What is one too many.

    @property
    def is_over_limit(self) -> bool:
        """Whether items are to be dropped for newer ones."""
        reader = self._reader
        config = reader.config
        if config.full_policy is not FullPolicy.DROP_OLDEST or reader.store.failure is not None:
            return False
        too_many = config.max_items is not None and reader.items > config.max_items
        too_large = config.max_size_bytes is not None and reader.bytes > config.max_size_bytes
        return (too_many or too_large) and reader.store.items > 0

    def discard(self) -> bool:
        """Drop what is one too many; a part of it, if that is much. False when it must wait for the disk."""
        reader = self._reader
        for _ in range(MAX_SWEPT_PER_SLICE):
            if not self.is_over_limit:
                break
            if reader.store.take(False) is None:
                return not self.fill()
            reader.counts.discarded += 1
            reader.touch()
        return True

    # What is on the disk alone.

    @property
    def is_loading(self) -> bool:
        """Whether it is being brought into memory."""
        return self._filling.store is self._reader.store

    def fill(self) -> bool:
        """Bring it into memory. False when what is in memory tells the truth."""
        return self._filling.begin(self._reader.store)

    def filled(self) -> Deferred[None]:
        """Fires when it is no longer being brought into memory; fails with why it cannot be read."""
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
        log.error("The head of a reader cannot be read: {error}", error=str(error))
        self._reader.touch()  # if its storage has found that it cannot go on, a commit is where it may say so
        self._tell(error)
        self._reader.answer_all(error)

    def _tell(self, error: Exception | None) -> None:
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done.callback(None) if error is None else done.errback(error)


def call_hook(hook: Callable[..., Any], *args: object) -> Any:
    """What a program's hook returns; None, and a word in the log, where it raises."""
    try:
        return hook(*args)
    except Exception:
        log.failure("A hook of a reader failed")
        return None
