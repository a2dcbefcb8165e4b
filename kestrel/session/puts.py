"""The command that puts: one item or many, to one queue."""

from __future__ import annotations

from functools import partial
from typing import Final

from kestrel import commands
from kestrel.errors import KestrelError, StorageRefused
from kestrel.session.session import Handlers, Session
from kestrel.storage.barrier import Batch
from kestrel.storage.uncommitted import PUT_BYTES, PlaceInLine

_PENDING_ITEM_OVERHEAD_BYTES: Final = 56
"""What an item that is still to be put takes besides its data."""


def put(session: Session, command: commands.Put) -> None:
    """Append items to a queue."""
    session.access.check_put(command.queue)
    expiry_ms = command.expiry_ms
    if expiry_ms and command.expiry_is_relative:
        expiry_ms = max(1, session.manager.now_ms() + expiry_ms)  # 0 would be never
    if len(command.items) == 1 and not (session.uncommitted.is_full and session.manager.is_durable(command.queue)):
        _put_one(session, command, expiry_ms)
    else:
        _SlicedPut(session, command, expiry_ms).begin()


def _put_one(session: Session, command: commands.Put, expiry_ms: int) -> None:
    """The shortest way, since most puts go it."""
    session.counters.cmd_set += 1
    batch = session.manager.put(command.queue, command.items[0], expiry_ms)
    session.outbox.reply(session.codec.stored(command, 0 if batch is None else 1), batch)


class _SlicedPut:
    """A put of any number of items, which may take several turns. The reply says how many are in and safe."""

    def __init__(self, session: Session, command: commands.Put, expiry_ms: int) -> None:
        self._session = session
        self._command = command
        self._expiry_ms = expiry_ms
        self._done = 0
        self._batches: dict[Batch, int] = {}
        """How many items are in each."""
        self._place: PlaceInLine | None = None
        self._is_admitted = False
        """Whether the next item is put however little room there is."""
        self._is_stopped = False

    def begin(self) -> None:
        """The first turn. Raises a `KestrelError` where nothing was stored."""
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
        elif self._place is None:
            self._session.continue_later(self._continue)

    @property
    def _must_wait(self) -> bool:
        """Whether there is too much that is not safe yet, and this would be more of it."""
        uncommitted = self._session.uncommitted
        has_room = self._is_admitted or (uncommitted.has_room if self._done else not uncommitted.is_full)
        return not has_room and self._session.manager.is_durable(self._command.queue)

    def _wait_for_room_if_needed(self) -> bool:
        """Whether the rest may go on: soon, or when the storage has room. Raises a `KestrelError` only where nothing
        was stored."""
        if not self._must_wait:
            return True
        items = self._command.items[self._done :]
        size = sum(map(len, items)) + len(items) * PUT_BYTES
        go_on = partial(self._session.continue_later, self._continue)
        try:
            self._place = self._session.uncommitted.wait(size, go_on)
        except StorageRefused:
            if not self._batches:
                raise
            return False
        return True

    def _put_for_one_slice(self) -> bool:
        """Put as many as this turn has time for. Raises a `KestrelError` only where none was stored."""
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
        """Put one. False when no further one is to be put."""
        self._session.counters.cmd_set += 1
        try:
            batch = self._session.manager.put(self._command.queue, data, self._expiry_ms)
        except KestrelError:
            if not self._batches:
                raise
            return False  # the reply says how many went in; who sends the rest again is told why
        if batch is None:
            return not self._command.stops_at_refusal
        self._batches[batch] = self._batches.get(batch, 0) + 1
        return True

    def _continue(self) -> None:
        """The next turn."""
        if self._is_stopped:
            return
        place, self._place = self._place, None
        if place is None:
            self._put_more()
            return
        uncommitted = self._session.uncommitted
        uncommitted.begins(place)
        self._is_admitted = True
        try:
            self._put_more()
        finally:
            uncommitted.let_in()  # it may have put less than there was room for, or nothing

    def _put_more(self) -> None:
        """Go on; but behind items that were lost no others are put."""
        is_lost = any(batch.is_settled and batch.failure is not None for batch in self._batches)
        try:
            is_over = is_lost or self._put_for_one_slice() or not self._wait_for_room_if_needed()
        except KestrelError as error:
            self._session.refuse(error)
            self._session.finish_command()
            return
        if is_over:
            self._wait_until_safe()
        elif self._place is None:
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
        """The client is gone, or has its answer."""
        self._is_stopped = True
        if self._place is not None:
            self._session.uncommitted.leave(self._place)


PUTS: Final[Handlers] = {commands.Put: put}
