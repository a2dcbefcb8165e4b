"""The consumers that wait for a reader's items."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from kestrel.errors import KestrelError
from kestrel.library.reader_head import ReaderHead
from kestrel.queues.expiry import MAX_SWEPT_PER_SLICE
from kestrel.queues.waiters import Waiter, WaiterQueue
from kestrel.storage.interfaces import IQueueStorage

MAX_READER_SERVED_PER_SLICE: Final = 64
"""Maximum number of waiters served in one time slice. The rest are served in a later slice."""


class ReaderWaitersOwner(Protocol):
    """The reader that the waiters belong to (`kestrel.library.reader.Reader`)."""

    store: IQueueStorage
    is_closed: bool


class ReaderWaiters:
    """The waiters of a reader in order of arrival. `continue_later` schedules a call in a later tick."""

    def __init__(
        self, reader: ReaderWaitersOwner, head: ReaderHead, continue_later: Callable[[Callable[[], None]], None]
    ) -> None:
        self._reader = reader
        self._head = head
        self._continue_later = continue_later
        self.waiters = WaiterQueue()
        self.is_busy = False
        """Whether a call further up the stack serves or sweeps. Work that arises meanwhile is left to it."""
        self._is_due = False
        """Whether such work has arisen."""
        self._is_later = False
        self._sweeps = False
        """Whether to remove expired items even if there are no waiters."""

    @property
    def is_head_pending(self) -> bool:
        """Whether the waiters wait for the storage or a sweep rather than for a put."""
        return self._head.is_loading or self._head.has_expired or self._head.is_over_limit

    def join(self, waiter: Waiter) -> None:
        """Add a waiter to the line. The waiter may be served before this returns."""
        self.waiters.join(waiter)
        self.serve()

    def has_changed(self) -> None:
        """Drop items that have expired or exceed a limit, and serve the waiters, after a put or a change of limits."""
        self._sweeps = True
        self.serve()

    def sweep(self, most: int) -> int:
        """Expire at most `most` items and return their number. Serving that a hook triggers runs at the end."""
        if self.is_busy:
            return 0
        self.is_busy = True
        try:
            return self._head.sweep(most)
        finally:
            self.is_busy = False
            if self._is_due:
                self.serve()

    def serve(self) -> None:
        """Serve waiters while there are items. If there are none, answer the non-blocking waiters with None."""
        if self._reader.is_closed or self._head.is_loading:
            return
        if self.is_busy:
            self._is_due = True
            return
        self.is_busy = True
        try:
            for _ in range(MAX_READER_SERVED_PER_SLICE):
                self._is_due = False
                if not self._serve_one() and not self._is_due:
                    break
            else:
                self._serve_later()
        except KestrelError as error:
            self.answer_all(error)
        finally:
            self.is_busy = self._is_due = False

    def _serve_later(self) -> None:
        if not self._is_later:
            self._is_later = True
            self._continue_later(self._serve_now)

    def _serve_now(self) -> None:
        self._is_later = False
        self.serve()

    def _serve_one(self) -> bool:
        """Sweep, drop items or serve one waiter. Return False if there is nothing to do, or it must wait."""
        head = self._head
        if head.is_loading:
            return False
        if (self.waiters or self._sweeps) and head.has_expired:
            if head.sweep(MAX_SWEPT_PER_SLICE) < MAX_SWEPT_PER_SLICE:
                return True
            self._serve_later()
            return False
        self._sweeps = False
        if head.is_over_limit:
            return head.discard()
        return bool(self.waiters) and self._serve_first()

    def _serve_first(self) -> bool:
        store = self._reader.store
        if store.peek() is None:
            return not self._head.fill() and self._answer_non_blocking()
        waiter = self.waiters.first()
        item = store.peek() if waiter.peeks else store.take(True)
        self.waiters.leave(waiter)
        waiter.on_result(item, None)
        return True

    def _answer_non_blocking(self) -> bool:
        """Answer the non-blocking waiters with None. Return True instead if the disk has just supplied an item."""
        if self._reader.store.peek() is not None:
            return True
        for waiter in self.waiters.non_blocking():
            if self.waiters.leave(waiter):
                waiter.on_result(None, None)
        return False

    def answer_all(self, error: Exception | None = None) -> None:
        """Answer every waiter with None, or with `error`."""
        for waiter in self.waiters.all():
            if self.waiters.leave(waiter):
                waiter.on_result(None, error)
