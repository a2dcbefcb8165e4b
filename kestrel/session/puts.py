"""The command that puts: one item or many, to one queue."""

from __future__ import annotations

from typing import Final

from kestrel import commands
from kestrel.errors import KestrelError
from kestrel.session.session import Handlers, Session
from kestrel.storage.barrier import Batch


def put(session: Session, command: commands.Put) -> None:
    """Append items to a queue."""
    session.access.check_put(command.queue)
    expiry_ms = command.expiry_ms
    if expiry_ms and command.expiry_is_relative:
        expiry_ms = max(1, session.manager.now_ms() + expiry_ms)  # 0 would be never
    if len(command.items) == 1:
        _put_one(session, command, expiry_ms)
    else:
        _Putting(session, command, expiry_ms).begin()


def _put_one(session: Session, command: commands.Put, expiry_ms: int) -> None:
    """The shortest way, since most puts go it."""
    session.counters.cmd_set += 1
    batch = session.manager.put(command.queue, command.items[0], expiry_ms)
    session.outbox.reply(session.codec.stored(command, 0 if batch is None else 1), batch)


class _Putting:
    """A put of any number of items, which may take several turns. The reply says how many are in and safe."""

    def __init__(self, session: Session, command: commands.Put, expiry_ms: int) -> None:
        self._session = session
        self._command = command
        self._expiry_ms = expiry_ms
        self._done = 0
        self._batches: dict[Batch, int] = {}
        """How many items are in each."""
        self._is_stopped = False

    def begin(self) -> None:
        """The first turn. Raises a `KestrelError` where nothing was stored."""
        is_over = self._is_over_after_a_turn()
        if is_over and len(self._batches) <= 1:
            batch, stored = next(iter(self._batches.items()), (None, 0))
            self._session.outbox.reply(self._session.codec.stored(self._command, stored), batch)
            return
        self._session.wait_for_server(self._stop)
        if is_over:
            self._wait_until_safe()
        else:
            self._session.go_on_later(self._go_on)

    def _is_over_after_a_turn(self) -> bool:
        """Put as many as this turn has time for. Raises a `KestrelError` only where none was stored."""
        turns, items = self._session.turns, self._command.items
        began = turns.seconds()
        while self._done < len(items):
            if not self._put(items[self._done]):
                return True
            self._done += 1
            if turns.is_long(began):
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

    def _go_on(self) -> None:
        """The next turn; but behind items that were lost no others are put."""
        if self._is_stopped:
            return
        is_lost = any(batch.is_settled and batch.failure is not None for batch in self._batches)
        try:
            is_over = is_lost or self._is_over_after_a_turn()
        except KestrelError as error:
            self._session.refuse(error)
            self._session.answered()
            return
        if is_over:
            self._wait_until_safe()
        else:
            self._session.go_on_later(self._go_on)

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
        self._session.answered()

    def _stop(self) -> None:
        """The client is gone, or has its answer."""
        self._is_stopped = True


PUTS: Final[Handlers] = {commands.Put: put}
