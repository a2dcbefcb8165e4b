"""Delayed items: a client puts an item now, and it becomes visible in its queue later.

All delayed items are stored in one hidden queue, `DELAYED_QUEUE`. The data of each begins with a line: the time when it
is due, its expiry time, and its target. `DelayedItems` is the only consumer of the hidden queue. It takes each item as
an open read, and moves it to its target when it is due (`kestrel.queues.moves`). So delayed items survive restarts as
open reads do, and a crash may duplicate an item that is moving but never loses one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from attrs import evolve
from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure

from kestrel.config.model import QueueSettings
from kestrel.errors import KestrelError, QueueFailed, StorageRefused
from kestrel.escaping import show_name
from kestrel.item import Item
from kestrel.names import DELAYED_QUEUE
from kestrel.queues.context import QueueContext
from kestrel.queues.queue import Queue
from kestrel.queues.timer import Timer
from kestrel.queues.waiters import Waiter
from kestrel.storage.barrier import Batch
from kestrel.storage.interfaces import IQueueStorage
from kestrel.storage.total_memory import MemoryLimit

log = Logger(__name__)

MAX_MOVING_PER_TARGET: Final = 64

RELEASED_PER_SLICE: Final = 200

DROPPED_PER_SLICE: Final = 500

RETRY_MS: Final = 1000
"""Time after which a target that refused an item gets the next one, and a failed hidden queue is tried again."""

MIN_TIMES: Final = 100
"""Number of times of targets above which those that have changed are removed."""

MAX_TIMER_MS: Final = 60_000
"""Longest run of the timer, after which a change of the wall clock is noticed."""


_NOT_DROPPED: Final = "the delayed items were not dropped, because their storage failed"


class _Header(NamedTuple):
    due_ms: int
    expiry_ms: int
    target: bytes
    size: int


def _encode_header(target: bytes, due_ms: int, expiry_ms: int) -> bytes:
    return b"%d %d %b\n" % (due_ms, expiry_ms, target)


def _parse_header(data: bytes) -> _Header:
    """Return the header at the beginning of `data`. Raises ValueError if there is none."""
    size = data.index(b"\n") + 1
    due_ms, expiry_ms, target = data[: size - 1].split(b" ")
    return _Header(int(due_ms), int(expiry_ms), target, size)


class _Target:
    """The delayed items of one queue or alias."""

    __slots__ = ("is_refusing", "moving", "name", "next_ms", "not_before_ms", "waiting")

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.waiting: list[tuple[int, int, Item]] = []
        """A heap of the items that do not move yet, each with its due time and its xid."""
        self.moving = 0
        self.is_refusing = False
        """Whether a limit of the target refused the last item. Then items are moved one at a time."""
        self.not_before_ms = 0
        """Time before which a refusing target gets no item."""
        self.next_ms: int | None = None
        """The target's time in the heap of all targets, or None."""

    @property
    def can_move_more(self) -> bool:
        return bool(self.waiting) and self.moving < (1 if self.is_refusing else MAX_MOVING_PER_TARGET)


class _PendingDrop:
    """A drop that waits until the `left` items that were in the hidden queue are taken. A `name` of None is for all."""

    __slots__ = ("batch", "left", "name")

    def __init__(self, name: bytes | None, left: int) -> None:
        self.name = name
        self.left = left
        self.batch = Batch()


class DelayedItems:
    """The delayed items of a server.

    `open_queue` opens the hidden queue, which is created when it is first needed. Its `maxItems` limits the number of
    delayed items. They are kept in memory, so none is accepted while maxTotalMemory is reached.
    """

    def __init__(self, open_queue: Callable[[], Queue], context: QueueContext, memory_limit: MemoryLimit) -> None:
        self._open_queue = open_queue
        self._context = context
        self._memory_limit = memory_limit
        self.queue: Queue | None = None
        """The hidden queue, or None before it is needed."""
        self._store: IQueueStorage | None = None
        """The store that the open reads belong to."""
        self._targets: dict[bytes, _Target] = {}
        self._due: list[tuple[int, bytes]] = []
        """A heap of the times at which targets get their next items. It may include times that have changed."""
        self._timer = Timer(context.clock, self._release_due)
        self._timer_s = 0.0
        """Time at which the timer ends, by its clock."""
        self._retry = Timer(context.clock, self._try_again)
        self._pending_drops: list[_PendingDrop] = []
        self._is_stopped = False

    @staticmethod
    def settings(configured: QueueSettings) -> QueueSettings:
        """Return the settings of the hidden queue: those of the configuration without what ends or moves items."""
        return evolve(
            configured,
            keep_journal=True,
            fanout_only=False,
            max_age_ms=None,
            expire_to_queue=None,
            error_queue=None,
            open_transaction_timeout_ms=None,
            discard_old_when_full=False,
        )

    def use_settings(self, configured: QueueSettings) -> None:
        if self.queue is not None:
            self.queue.use_settings(self.settings(configured))

    # Opening.

    def open(self) -> None:
        """Open the hidden queue, which has items of an earlier run, or try again later."""
        try:
            self._opened()
        except KestrelError as error:
            log.error("Delayed items cannot be loaded yet: {reason}", reason=str(error))
            self._retry.start(RETRY_MS / 1000)

    def _opened(self) -> Queue:
        """Return the hidden queue, open. Raises `QueueFailed`."""
        if self.queue is None:
            self.queue = self._open_queue()
            self._wait()
        else:
            self.queue.reopen()
        return self.queue

    def _try_again(self) -> None:
        if self.queue is None:
            self.open()
        else:
            self._wait()

    def _wait(self) -> None:
        """Wait for the next item of the hidden queue."""
        if self.queue is not None and not self.queue.waiters.has_waiters:
            self.queue.join(Waiter(self._item_taken, opens=True, peeks=False, is_blocking=True))

    def _item_taken(self, item: Item | None, error: Exception | None) -> None:
        if self._is_stopped:
            return
        if item is None:  # the head cannot be read, or the storage failed and cannot be opened
            self._retry.start(RETRY_MS / 1000)
            return
        self._forget_items_of_failed_store()
        self._add(item)
        if self._pending_drops:
            self._run_pending_drops()
        self._wait()

    def _forget_items_of_failed_store(self) -> None:
        """Forget the items if their store has failed: the open reads are back in the hidden queue."""
        store = None if self.queue is None else self.queue.store
        if store is not self._store:
            self._store = store
            self._targets.clear()
            self._due.clear()
            pending, self._pending_drops = self._pending_drops, []
            for drop in pending:
                drop.batch.settle(QueueFailed(_NOT_DROPPED))

    # Puts.

    def put(self, target: bytes, data: bytes, due_ms: int, expiry_ms: int) -> Batch | None:
        """Store an item that is moved to the queue or alias `target` at `due_ms`.

        Return the batch that the reply waits for, or None if there are too many delayed items. Raises `QueueFailed` or
        `StorageRefused`, and then the item is not stored.
        """
        queue = self._opened()
        if queue.limits.is_full(self.items, 0):
            return None
        if self._memory_limit.is_reached:
            raise StorageRefused("delayed items are kept in memory, and maxTotalMemory is reached")
        stored = _encode_header(target, due_ms, expiry_ms) + data
        queue.storage.put((queue.store,), stored, self._context.now_ms(), 0)
        batch = queue.touch()
        batch.add_put(len(stored))
        queue.serve()
        return batch

    def _add(self, item: Item) -> None:
        try:
            header = _parse_header(item.data)
        except ValueError:
            log.error("An item of the queue {queue} has no due time: it stays there", queue=show_name(DELAYED_QUEUE))
            return
        target = self._targets.get(header.target)
        if target is None:
            target = self._targets[header.target] = _Target(header.target)
        heappush(target.waiting, (header.due_ms, item.xid, item))
        self._schedule(target)

    # Figures.

    @property
    def items(self) -> int:
        """Number of delayed items."""
        return 0 if self.queue is None else self.queue.store.items + self.queue.store.open_reads

    def items_of(self, name: bytes) -> int:
        """Return the number of delayed items of a queue or alias."""
        self._forget_items_of_failed_store()
        target = self._targets.get(name)
        return 0 if target is None else len(target.waiting) + target.moving

    # Moves to the targets.

    def _schedule(self, target: _Target) -> None:
        """Arrange that the target gets its next item in time."""
        if not target.can_move_more:
            return
        next_ms = max(target.waiting[0][0], target.not_before_ms)
        if target.next_ms is None or next_ms < target.next_ms:
            target.next_ms = next_ms
            heappush(self._due, (next_ms, target.name))
            if len(self._due) > 2 * len(self._targets) + MIN_TIMES:
                self._due = [(each.next_ms, each.name) for each in self._targets.values() if each.next_ms is not None]
                heapify(self._due)
            self._run_timer()

    def _run_timer(self) -> None:
        if not self._due or self._is_stopped:
            return
        now_ms = self._context.now_ms()
        left_s = min(max(0, self._due[0][0] - now_ms), MAX_TIMER_MS) / 1000
        ends_s = self._context.clock.seconds() + left_s
        if not self._timer.is_running or ends_s < self._timer_s:
            self._timer_s = ends_s
            self._timer.start(left_s)

    def _release_due(self) -> None:
        """Begin to move items that are due."""
        self._forget_items_of_failed_store()
        if self.queue is None or self.queue.store.failure is not None:
            return  # the items are taken again when the store is reopened
        now_ms, released = self._context.now_ms(), 0
        while self._due and self._due[0][0] <= now_ms and released < RELEASED_PER_SLICE:
            next_ms, name = heappop(self._due)
            target = self._targets.get(name)
            if target is None or target.next_ms != next_ms:
                continue
            target.next_ms = None
            while target.can_move_more and target.waiting[0][0] <= now_ms:
                self._move(target, heappop(target.waiting)[2])
                released += 1
            self._schedule(target)
        self._run_timer()

    def _move(self, target: _Target, item: Item) -> None:
        assert self.queue is not None
        header = _parse_header(item.data)
        shown = Item(item.data[header.size :], item.add_ms, header.expiry_ms, item.errors, item.xid)
        target.moving += 1
        self.queue.moves.begin(shown, target.name, drops=False, ended=partial(self._move_ended, target))

    def _move_ended(self, target: _Target, why_not: str | None) -> None:
        """Continue after a move. An item that did not arrive returns to the hidden queue, and is taken again."""
        target.moving -= 1
        target.is_refusing = why_not is not None
        target.not_before_ms = self._context.now_ms() + RETRY_MS if target.is_refusing else 0
        if self._targets.get(target.name) is not target:
            return
        if target.waiting or target.moving or target.is_refusing:
            self._schedule(target)
        else:
            del self._targets[target.name]

    # Dropping.

    def drop(self, name: bytes | None) -> Batch | None:
        """Drop the delayed items of a queue or alias, or all of them for None.

        Return the batch to wait for, or None if there are no delayed items. Items that are due and already moving still
        arrive. Raises `QueueFailed` if the storage of the delayed items has failed.
        """
        self._forget_items_of_failed_store()
        queue = self.queue
        if queue is None:
            if self._retry.is_running:
                raise QueueFailed(_NOT_DROPPED)
            return None
        if not queue.store.items:
            return self._drop(queue, name)
        pending = _PendingDrop(name, queue.store.items)  # after a start, they are not all taken yet
        self._pending_drops.append(pending)
        return pending.batch

    def _run_pending_drops(self) -> None:
        """Run the drops whose items are all taken. One item was taken since the last call."""
        for pending in list(self._pending_drops):
            pending.left -= 1
            if pending.left == 0 and self.queue is not None:
                self._pending_drops.remove(pending)
                dropped = self._drop(self.queue, pending.name)
                if dropped is None:
                    pending.batch.settle(None)
                else:
                    pending.batch.settle_with(dropped)

    def _drop(self, queue: Queue, name: bytes | None) -> Batch | None:
        names = list(self._targets) if name is None else [name]
        targets = [self._targets.pop(each) for each in names if each in self._targets]
        xids = [xid for target in targets for _, xid, _ in target.waiting]
        if not xids:
            return None
        store, dropped = queue.store, Batch()

        def drop(first: int) -> None:
            if not queue.owns_store(store):
                raise QueueFailed(_NOT_DROPPED)
            queue.confirm(xids[first : first + DROPPED_PER_SLICE])

        def is_done(failure: Failure | None) -> None:
            if failure is not None:
                dropped.settle(failure.value if isinstance(failure.value, KestrelError) else QueueFailed(_NOT_DROPPED))
                return
            dropped.settle_with(queue.touch())

        slices = range(0, len(xids), DROPPED_PER_SLICE)
        self._context.scheduler.for_each(slices, drop, 1).addBoth(is_done)
        return dropped

    # The end.

    def stop(self) -> Deferred[None]:
        """Move no further items, because the server stops. Fires when the batches of all moves are settled."""
        self._is_stopped = True
        self._timer.stop()
        self._retry.stop()
        return succeed(None) if self.queue is None else self.queue.stop()
