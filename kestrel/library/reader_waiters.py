"""The line of those who wait for a reader's items, and how it is served."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from kestrel.errors import KestrelError
from kestrel.library.reader_head import ReaderHead
from kestrel.queues.expiry import MAX_SWEPT_PER_SLICE
from kestrel.queues.waiters import Waiter, WaiterQueue
from kestrel.storage.interfaces import IQueueStorage

MAX_READER_SERVED_PER_SLICE: Final = 64
"""Then it is the turn of others; the rest of the line is served in a later one."""


class ReaderWaitersOwner(Protocol):
    """What a line needs of its reader (`kestrel.library.reader.Reader`)."""

    store: IQueueStorage
    is_closed: bool


class ReaderWaiters:
    """Those who wait, first come, first served; `continue_later` calls back in a later turn."""

    def __init__(
        self, reader: ReaderWaitersOwner, head: ReaderHead, continue_later: Callable[[Callable[[], None]], None]
    ) -> None:
        self._reader = reader
        self._head = head
        self._continue_later = continue_later
        self.waiters = WaiterQueue()
        self.is_busy = False
        """Whether somebody up the stack serves, or sweeps; what comes to be done meanwhile waits for that one,"""
        self._is_due = False
        """who then sees that there is more to do."""
        self._is_later = False
        self._sweeps = False
        """Whether what has expired is to go, though nobody waits."""

    @property
    def is_head_pending(self) -> bool:
        """Whether those in line wait for the storage, or a sweep, rather than for an item to be put."""
        return self._head.is_loading or self._head.has_expired or self._head.is_over_limit

    def join(self, waiter: Waiter) -> None:
        """Stand in line; the waiter may be served before this returns."""
        self.waiters.join(waiter)
        self.serve()

    def has_changed(self) -> None:
        """There may be more items, or other limits: see that none is too many or too old, and serve."""
        self._sweeps = True
        self.serve()

    def sweep(self, most: int) -> int:
        """Expire so many at most; returns how many. What a hook does to the reader meanwhile waits."""
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
        """Serve those in line as far as there are items, and answer the impatient when there are none."""
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
        """Do one thing for those in line. False when there is nothing to do, or it must wait."""
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
        """There is no item, unless the disk has brought one. Whether there is one after all."""
        if self._reader.store.peek() is not None:
            return True
        for waiter in self.waiters.non_blocking():
            if self.waiters.leave(waiter):
                waiter.on_result(None, None)
        return False

    def answer_all(self, error: Exception | None = None) -> None:
        """Answer everyone in line: as an empty queue does, or with that error."""
        for waiter in self.waiters.all():
            if self.waiters.leave(waiter):
                waiter.on_result(None, error)
