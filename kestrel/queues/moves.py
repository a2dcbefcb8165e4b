"""Moves of items from one queue to another, because they expired or failed too often.

A moving item is an open read of its queue until it is committed in the target, and is then confirmed. So it is never
lost. A crash in between leaves it in both queues. It is put to the target only when the changes of its own queue are
committed, because its put may still be refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Final, Protocol, TypeAlias

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger

from kestrel.errors import ClientError, KestrelError
from kestrel.escaping import count, show_name
from kestrel.item import Item
from kestrel.queues.context import QueueContext
from kestrel.queues.timer import Timer
from kestrel.storage.barrier import Batch
from kestrel.storage.interfaces import IQueueStorage

log = Logger(__name__)

MAX_CONCURRENT_MOVES: Final = 1000
"""Limit of a queue's concurrent moves. Above it, no further expired items are moved."""

MOVES_PER_SLICE: Final = 64

MOVE_RETRY_S: Final = 1.0


class MoveSource(Protocol):
    """The part of the source queue that moves use."""

    name: bytes
    store: IQueueStorage

    @property
    def unsettled_batch(self) -> Batch | None:
        """The latest batch that is not settled, if any."""

    def owns_store(self, store: IQueueStorage) -> bool:
        """Return True if `store` is the queue's current store and has not failed."""

    def confirm(self, xids: list[int]) -> Batch:
        """Confirm open reads, which removes their items. Return the batch."""

    def put_back(self, xids: list[int], *, failed: bool) -> Batch:
        """Put open reads back at the head, `xids[0]` first. With `failed`, each item's error count rises."""

    def serve(self) -> None:
        """Serve the waiters."""


MoveEnded: TypeAlias = Callable[[str | None], object]
"""Callback, called once with None when the item is committed in its target, or with the reason why it is not."""


class _Move:
    __slots__ = ("done", "drops", "ended", "error", "item", "needs_queue", "number", "store", "target", "unsettled")

    def __init__(
        self,
        number: int,
        store: IQueueStorage,
        item: Item,
        target: bytes,
        drops: bool,
        ended: MoveEnded | None,
        needs_queue: bool,
    ) -> None:
        self.number = number
        self.store = store
        self.item = item
        self.target = target
        self.drops = drops
        self.ended = ended
        self.needs_queue = needs_queue
        self.done: set[bytes] = set()
        """The queues in which the item is committed: a target may lead to several."""
        self.unsettled = 0
        self.error: Exception | None = None
        """The reason why the item was lost in one of them."""

    def end(self, why_not: str | None) -> None:
        if self.ended is not None:
            self.ended(why_not)


class Moves:
    """The moves of one queue's items.

    Items are put in slices, in order for each target. A target that cannot take an item now is tried again after a
    while, and delays only its own items.
    """

    def __init__(self, source: MoveSource, context: QueueContext) -> None:
        self._source = source
        self._context = context
        self._under_way: set[_Move] = set()
        self._unput: dict[bytes, deque[_Move]] = {}
        """The moves that wait to be put, by target."""
        self._blocked: dict[bytes, KestrelError] = {}
        """Targets that could not take an item, and the reason."""
        self._resting: set[bytes] = set()
        """Blocked targets that are not to be tried now."""
        self._begun = 0
        self._returning: list[_Move] = []
        """Refused items, which are put back together, in order."""
        self._is_turn_due = False
        self._retry = Timer(context.clock, self._try_again)
        self._is_stopped = False
        self._stopping: Deferred[None] | None = None
        self.moved = 0
        """Items that are committed in their new queue."""
        self.refused = 0
        """Items that their new queue refused."""
        self._unlogged_refusals = 0

    @property
    def is_full(self) -> bool:
        """Whether no further expired items may be moved before some moves have ended."""
        return len(self._under_way) >= MAX_CONCURRENT_MOVES

    @property
    def failure(self) -> KestrelError | None:
        """The reason why some items cannot be put now, or None."""
        return next(iter(self._blocked.values()), None)

    def begin(
        self,
        item: Item,
        target: bytes,
        *,
        drops: bool,
        ended: MoveEnded | None = None,
        needs_queue: bool = False,
    ) -> None:
        """Move an item, which is an open read and has touched the barrier, to the queue or alias `target`.

        If the target refuses the item, it is dropped with `drops`, or else put back. With `ended`, the item keeps its
        expiry time, and is put back without an error. With `needs_queue`, a target that keeps the item in no queue
        refuses it, such as a fanoutOnly parent without children. Does nothing after `stop`.
        """
        if self._is_stopped:
            return
        self._begun += 1
        move = _Move(self._begun, self._source.store, item, target, drops, ended, needs_queue)
        self._under_way.add(move)
        batch = self._source.unsettled_batch
        if batch is None:
            self._put_later(move)
        else:
            batch.when_settled(partial(self._put_later, move))

    def forget(self) -> None:
        """Forget all moves: the queue's store was replaced, or the queue was deleted."""
        forgotten = list(self._under_way)
        self._under_way.clear()
        self._unput.clear()
        self._blocked.clear()
        self._resting.clear()
        self._returning.clear()
        self._retry.stop()
        self._tell_stopped()
        for move in forgotten:
            move.end("the queue was deleted, or its storage failed")

    def put_back_waiting(self) -> None:
        """Put back the items with a callback `ended` that no target has yet. Their callbacks get a reason."""
        waiting = [move for move in self._under_way if move.ended is not None and not (move.unsettled or move.done)]
        for move in sorted(waiting, key=attrgetter("number")):
            self._returning.append(move)
            self._is_over(move)
            move.end("it was put back")
        self._return()

    def stop(self) -> Deferred[None]:
        """Start no further puts. Fires when the batches of all earlier puts are settled.

        Expired items are moved again after the next start. Failed items are put back now, and their failure is counted.
        """
        self._is_stopped = True
        self._retry.stop()
        waiting = sorted((move for move in self._under_way if not move.unsettled), key=attrgetter("number"))
        self._unput.clear()
        self._under_way.difference_update(waiting)
        self._returning += [move for move in waiting if not move.drops]
        self._return()
        if not self._under_way:
            return succeed(None)
        self._stopping = Deferred()
        return self._stopping

    def _tell_stopped(self) -> None:
        stopping, self._stopping = self._stopping, None
        if stopping is not None:
            stopping.callback(None)

    # Slices.

    def _put_later(self, move: _Move) -> None:
        if move in self._under_way:  # it was not forgotten meanwhile
            self._unput.setdefault(move.target, deque()).append(move)
            self._continue_later()

    def _continue_later(self) -> None:
        if not self._is_turn_due:
            self._is_turn_due = True
            self._context.scheduler.continue_later(self._go_on)

    def _go_on(self) -> None:
        self._is_turn_due = False
        scheduler = self._context.scheduler
        began, put = scheduler.seconds(), 0
        for target in list(self._unput):
            unput = self._unput.get(target)
            while unput and target not in self._resting:
                if put >= MOVES_PER_SLICE or scheduler.exceeds_tick(began):
                    self._continue_later()
                    return
                self._put(unput.popleft())
                put += 1
            if not unput:
                self._unput.pop(target, None)
        self._return()

    def _put(self, move: _Move) -> None:
        if move not in self._under_way:  # it was forgotten meanwhile
            return
        try:
            expiry_ms = 0 if move.ended is None else move.item.expiry_ms
            batches = self._context.put(move.target, move.item.data, move.done, expiry_ms)
        except ClientError:
            self._refuse(move)
        except KestrelError as error:
            self._hold(move, error)
        else:
            is_nowhere = move.needs_queue and not batches
            if (batches is None or is_nowhere) and not move.done:
                self._refuse(move)
            elif not batches:
                self._arrived(move)
            else:
                move.unsettled = len(batches)
                for queue, batch in batches.items():
                    batch.when_settled(partial(self._settled, move, queue, batch))

    def _settled(self, move: _Move, queue: bytes, batch: Batch) -> None:
        if move not in self._under_way:
            return
        move.unsettled -= 1
        if batch.failure is None:
            move.done.add(queue)
        else:
            move.error = batch.failure
        if move.unsettled:
            return
        error, move.error = move.error, None
        if error is None:
            self._arrived(move)
        else:  # it is put again only where it was lost
            self._hold(move, error if isinstance(error, KestrelError) else KestrelError(str(error)))

    def _arrived(self, move: _Move) -> None:
        self.moved += 1
        self._end(move)
        move.end(None)

    def _end(self, move: _Move) -> None:
        if self._source.owns_store(move.store):
            self._source.confirm([move.item.xid])
        self._is_over(move)

    def _is_over(self, move: _Move) -> None:
        was_full = self.is_full
        self._under_way.discard(move)
        self._blocked.pop(move.target, None)
        if was_full:
            self._context.scheduler.continue_later(self._source.serve)
        if not self._under_way:
            self._tell_stopped()

    # Refused and blocked items.

    def _refuse(self, move: _Move) -> None:
        self.refused += 1
        if not self._unlogged_refusals:
            self._context.barrier.at_end_of_tick(self._log_refusals)
        self._unlogged_refusals += 1
        if move.drops:
            self._end(move)
        else:
            self._returning.append(move)
            self._is_over(move)
            move.end(f"{show_name(move.target)} does not accept an item, because of a limit in its settings")

    def _return(self) -> None:
        returning, self._returning = self._returning, []
        for failed in (True, False):
            xids = [move.item.xid for move in returning if (move.ended is None) is failed]
            if xids and self._source.store.failure is None:
                self._source.put_back(xids, failed=failed)

    def _log_refusals(self) -> None:
        refused, self._unlogged_refusals = self._unlogged_refusals, 0
        log.warn(
            "The target queue refused {items} of queue {queue}",
            items=count(refused, "item"),
            queue=show_name(self._source.name),
        )

    def _hold(self, move: _Move, error: KestrelError) -> None:
        if self._is_stopped:
            self._under_way.discard(move)
            if not self._under_way:
                self._tell_stopped()
            return
        self._unput.setdefault(move.target, deque()).append(move)
        self._resting.add(move.target)
        if move.target not in self._blocked:
            log.error(
                "Items of queue {queue} cannot be moved to {target} yet: {reason}",
                queue=show_name(self._source.name),
                target=show_name(move.target),
                reason=str(error),
            )
            self._blocked[move.target] = error
            self._context.scheduler.continue_later(self._source.serve)  # its waiters get the error
        if not self._retry.is_running:
            self._retry.start(MOVE_RETRY_S)

    def _try_again(self) -> None:
        for target in self._resting:
            self._unput[target] = deque(sorted(self._unput.get(target, ()), key=attrgetter("number")))
        self._resting.clear()
        self._continue_later()
