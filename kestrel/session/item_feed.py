"""Items streamed to a client as open reads until the time or a limit is reached, for monitor and get many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from kestrel.errors import KestrelError
from kestrel.item import Item
from kestrel.queues.queue import Queue
from kestrel.queues.waiters import Waiter

MAX_FED_ITEMS_PER_SLICE: Final = 64

NO_LIMIT: Final = -1
"""No limit of items beyond the sink's own limit of open reads."""


class ItemSink(Protocol):
    """The receiver of an `ItemFeed`'s items. It calls `ItemFeed.continue_later` when backpressure ends."""

    def may_open(self) -> bool:
        """Return True if the connection may take one more open read of the queue."""

    def is_backpressured(self) -> bool:
        """Return True if replies must be sent before more are made."""

    def continue_later(self, work: Callable[[], None]) -> None:
        """Call `work` in the next tick."""

    def deliver(self, item: Item) -> None:
        """Receive an item, taken as an open read."""

    def feed_ended(self, error: Exception | None) -> None:
        """Receive the end of the feed, with the error that ended it, if any."""


class ItemFeed:
    """A stream of one queue's items. It takes available items, then waits at the end of the waiters.

    A feed that is not `is_blocking` ends when the queue is empty.
    """

    def __init__(self, sink: ItemSink, queue: Queue, max_items: int, *, is_blocking: bool = True) -> None:
        self._sink = sink
        self._queue = queue
        self._items_left = max_items
        self._is_blocking = is_blocking
        self._waiter: Waiter | None = None
        self._is_over = False
        self._is_slice_due = False

    def continue_now(self) -> None:
        """Take the available items, then wait."""
        self._is_slice_due = False
        try:
            self._take_items()
        except KestrelError as error:
            self.end(error)

    def _take_items(self) -> None:
        for _ in range(MAX_FED_ITEMS_PER_SLICE):
            if self._is_over or self._waiter is not None or self._sink.is_backpressured():
                return
            if not self._items_left or self._queue.is_deleted or not self._sink.may_open():
                self.end(None)
                return
            item = self._queue.take_now(opens=True)
            if item is None:
                self._waiter = Waiter(self._item_arrived, opens=True, peeks=False, is_blocking=self._is_blocking)
                self._queue.join(self._waiter)
                return
            self._deliver(item)
        self.continue_later()

    def continue_later(self) -> None:
        """Continue in the next tick."""
        if not self._is_slice_due and not self._is_over:
            self._is_slice_due = True
            self._sink.continue_later(self.continue_now)

    def _deliver(self, item: Item) -> None:
        self._items_left -= 1
        self._sink.deliver(item)

    def _item_arrived(self, item: Item | None, error: Exception | None) -> None:
        self._waiter = None
        if item is None:  # the queue was deleted or failed, or the server is stopping
            self.end(error)
            return
        self._deliver(item)
        self.continue_now()

    def make_non_blocking(self) -> None:
        """Stop waiting for further items, and end when the queue is known to be empty."""
        self._is_blocking = False
        if self._waiter is not None:
            self._queue.waiters.make_non_blocking(self._waiter)

    def end(self, error: Exception | None) -> None:
        """End the feed, and tell the sink."""
        if not self._is_over:
            self.cancel()
            self._sink.feed_ended(error)

    def cancel(self) -> None:
        """End the feed without telling the sink."""
        self._is_over = True
        if self._waiter is not None:
            self._queue.waiters.leave(self._waiter)
            self._waiter = None
