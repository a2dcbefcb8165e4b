"""Handler of the put command: one item or many, to one queue."""

from __future__ import annotations

from functools import partial
from typing import Final

from kestrel import commands
from kestrel.errors import KestrelError, StorageRefused
from kestrel.session.session import Handlers, Session
from kestrel.storage.barrier import Batch
from kestrel.storage.uncommitted_budget import PUT_BYTES, PutWaiter

_PENDING_ITEM_OVERHEAD_BYTES: Final = 56
"""Memory of a pending item beyond its data."""


def put(session: Session, command: commands.Put) -> None:
    """Append items to a queue or alias, and reply with the number of stored items."""
    manager = session.manager
    queue = manager.plain_queue(command.queue)
    session.access.check_put(command.queue, queue)
    expiry_ms = command.expiry_ms and _absolute_expiry_ms(session, command)
    if len(command.items) == 1 and not (session.uncommitted.is_full and manager.is_durable(command.queue)):
        session.counters.cmd_set += 1
        data = command.items[0]
        if queue is None:
            batch = manager.put(command.queue, data, expiry_ms)
        else:
            batch = manager.put_plain(queue, data, expiry_ms)
        session.outbox.reply(session.codec.stored(command, 0 if batch is None else 1), batch)
    else:
        _SlicedPut(session, command, expiry_ms).begin()


def put_delayed(session: Session, command: commands.DelayedPut) -> None:
    """Store items that are put to a queue or alias later, and reply with the number of stored items."""
    session.access.check_put(command.queue)
    _SlicedPut(session, command, _absolute_expiry_ms(session, command), command.delay_ms).begin()


def _absolute_expiry_ms(session: Session, command: commands.Put) -> int:
    """Return the expiry time in milliseconds since the epoch, or 0 for never."""
    if command.expiry_ms and command.expiry_is_relative:
        return max(1, session.manager.now_ms() + command.expiry_ms)  # 0 would mean never
    return command.expiry_ms


class _SlicedPut:
    """A put of any number of items, which may take several ticks. The reply has the number of committed items."""

    def __init__(self, session: Session, command: commands.Put, expiry_ms: int, delay_ms: int = 0) -> None:
        self._session = session
        self._command = command
        self._expiry_ms = expiry_ms
        self._due_ms = session.manager.now_ms() + delay_ms if delay_ms else 0
        """Time at which the items become visible, or 0 for now."""
        self._done = 0
        self._batches: dict[Batch, int] = {}
        """Number of items in each batch."""
        self._waiter: PutWaiter | None = None
        self._is_admitted = False
        """Whether the next item is put even if there is no room."""
        self._is_stopped = False

    def begin(self) -> None:
        """Run the first slice. Raises a `KestrelError` if an error occurs before any item is stored."""
        is_over = self._put_for_one_slice() or not self._wait_for_room_if_needed()
        if is_over and len(self._batches) <= 1:
            batch, stored = next(iter(self._batches.items()), (None, 0))
            self._session.outbox.reply(self._session.codec.stored(self._command, stored), batch)
            return
        self._session.wait_for_server(self._stop)
        left = self._command.items[self._done :]
        self._session.pending_put_bytes = sum(map(len, left)) + len(left) * _PENDING_ITEM_OVERHEAD_BYTES
        if is_over:
            self._wait_until_safe()
        elif self._waiter is None:
            self._session.continue_later(self._continue)

    @property
    def _must_wait(self) -> bool:
        """Whether too many bytes are uncommitted to put the next item."""
        uncommitted = self._session.uncommitted
        has_room = self._is_admitted or (uncommitted.has_room if self._done else not uncommitted.is_full)
        return not has_room and (self._due_ms > 0 or self._session.manager.is_durable(self._command.queue))

    def _wait_for_room_if_needed(self) -> bool:
        """Start to wait for room if the next item needs it; `_continue` resumes the put. Return True if the put goes
        on.

        Return False if the wait is refused after some items were stored: the remaining items are not put. Raises
        `StorageRefused` if it is refused and no item was stored.
        """
        if not self._must_wait:
            return True
        items = self._command.items[self._done :]
        size = sum(map(len, items)) + len(items) * PUT_BYTES
        resume = partial(self._session.continue_later, self._continue)
        try:
            self._waiter = self._session.uncommitted.wait(size, resume)
        except StorageRefused:
            if not self._batches:
                raise
            return False
        return True

    def _put_for_one_slice(self) -> bool:
        """Put items while there is time in the slice and room for them. Return True when the put is finished.

        Raises a `KestrelError` if an error occurs before any item is stored.
        """
        scheduler, items = self._session.scheduler, self._command.items
        began = scheduler.seconds()
        while self._done < len(items):
            if self._must_wait:
                return False
            self._is_admitted = False
            if not self._put(items[self._done]):
                return True
            self._done += 1
            if scheduler.exceeds_tick(began):
                break
        return self._done == len(items)

    def _put(self, data: bytes) -> bool:
        """Put one item. Return False if no further item should be put."""
        self._session.counters.cmd_set += 1
        manager, queue = self._session.manager, self._command.queue
        try:
            if self._due_ms:
                batch = manager.put_delayed(queue, data, self._expiry_ms, self._due_ms)
            else:
                batch = manager.put(queue, data, self._expiry_ms)
        except KestrelError:
            if not self._batches:
                raise
            return False  # The reply has the number of stored items. A client that sends the rest again gets the error.
        if batch is None:
            return not self._command.stops_at_refusal
        self._batches[batch] = self._batches.get(batch, 0) + 1
        return True

    def _continue(self) -> None:
        """Run the next slice."""
        if self._is_stopped:
            return
        waiter, self._waiter = self._waiter, None
        if waiter is None:
            self._put_more()
            return
        uncommitted = self._session.uncommitted
        uncommitted.begin_put(waiter)
        self._is_admitted = True
        try:
            self._put_more()
        finally:
            uncommitted.admit_waiters()  # less may have been put than was reserved, or nothing

    def _put_more(self) -> None:
        """Continue, unless an earlier batch of this command was lost."""
        is_lost = any(batch.is_settled and batch.failure is not None for batch in self._batches)
        try:
            is_over = is_lost or self._put_for_one_slice() or not self._wait_for_room_if_needed()
        except KestrelError as error:
            self._session.refuse(error)
            self._session.finish_command()
            return
        if is_over:
            self._wait_until_safe()
        elif self._waiter is None:
            self._session.continue_later(self._continue)

    def _wait_until_safe(self) -> None:
        missing = len(self._batches)

        def settled() -> None:
            nonlocal missing
            missing -= 1
            if not missing and not self._is_stopped:
                self._answer()

        if not missing:
            self._answer()
        for batch in self._batches:
            batch.when_settled(settled)

    def _answer(self) -> None:
        stored = sum(count for batch, count in self._batches.items() if batch.failure is None)
        failure = next((batch.failure for batch in self._batches if batch.failure is not None), None)
        if failure is not None and not stored:
            self._session.refuse(failure)
        else:
            self._session.outbox.reply(self._session.codec.stored(self._command, stored))
        self._session.finish_command()

    def _stop(self) -> None:
        """Cancel the put: the client disconnected or was answered."""
        self._is_stopped = True
        if self._waiter is not None:
            self._session.uncommitted.cancel(self._waiter)


PUTS: Final[Handlers] = {commands.Put: put, commands.DelayedPut: put_delayed}
