"""Transfers: an operator moves many items of a queue to another, such as those of an error queue back to its source.

Each item moves like one that expires (`kestrel.queues.moves`), so none is lost. A crash may leave the few that are
moving in both queues.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kestrel.errors import ClientError, KestrelError
from kestrel.escaping import show_name
from kestrel.item import Item
from kestrel.queues.manager import QueueManager
from kestrel.queues.queue import Queue
from kestrel.queues.tick_scheduler import TickScheduler
from kestrel.queues.waiters import Waiter

MAX_UNDER_WAY: Final = 64
"""Number of items that a transfer moves at the same time."""

MAX_TRANSFERS: Final = 100
"""Number of transfers that run, or are remembered after their end."""


class Transfer:
    """The transfer of up to `items` items from the head of `queue` to the queue or alias `target`.

    It takes items in slices, and only while fewer than `MAX_UNDER_WAY` of them are on their way.
    """

    def __init__(
        self, queue: Queue, target: bytes, items: int, scheduler: TickScheduler, takes_writes: Callable[[], bool]
    ) -> None:
        self.target = target
        self.items = items
        self.moved = 0
        """Items that are committed in the target."""
        self.reason: str | None = None
        """The reason why the transfer took fewer items than it should, or None."""
        self._queue = queue
        self._scheduler = scheduler
        self._takes_writes = takes_writes
        self._taken = 0
        self._under_way = 0
        self._is_looking = False
        """Whether the next slice is due, or waits for the head."""
        self._continue()

    @property
    def is_running(self) -> bool:
        """True until all items that were taken have arrived or are back in their queue, and no others will be taken."""
        return self._under_way > 0 or self._takes_more

    @property
    def delay(self) -> str | None:
        """The reason why the target accepts no items at present, or None. The transfer tries again every second."""
        failure = self._queue.moves.failure
        return str(failure) if failure is not None and self._under_way else None

    @property
    def _takes_more(self) -> bool:
        return self.reason is None and self._taken < self.items

    def stop(self, reason: str) -> None:
        """Take no further items. Those that are being put still arrive, and the others go back."""
        if self.is_running:
            self.reason = self.reason or reason
            self._queue.moves.put_back_waiting()

    def _take_no_more(self, reason: str) -> None:
        if self._takes_more:
            self.reason = reason

    def _continue(self) -> None:
        """Ask for the head, which may be on disk, unless enough items are on their way."""
        if self._takes_more and not self._is_looking and self._under_way <= MAX_UNDER_WAY // 2:
            self._is_looking = True
            self._queue.join(Waiter(self._head_known, opens=False, peeks=True, is_blocking=False))

    def _head_known(self, item: Item | None, error: Exception | None) -> None:
        if item is not None:
            self._scheduler.continue_later(self._take)
            return
        self._is_looking = False
        self._take_no_more("the queue is empty" if error is None else str(error))

    def _take(self) -> None:
        self._is_looking = False
        if not self._takes_writes():
            self.stop("the server takes no writes now")
            return
        queue, began_s = self._queue, self._scheduler.seconds()
        try:
            while self._takes_more and self._under_way < MAX_UNDER_WAY and queue.head.ready_item() is not None:
                item = queue.store.take(True)
                assert item is not None
                self._taken += 1
                self._under_way += 1
                queue.touch()
                queue.moves.begin(item, self.target, drops=False, ended=self._item_ended, needs_queue=True)
                if self._scheduler.exceeds_tick(began_s):
                    break
        except KestrelError as error:
            self._take_no_more(str(error))
        self._continue()

    def _item_ended(self, why_not: str | None) -> None:
        self._under_way -= 1
        if why_not is None:
            self.moved += 1
        else:
            self.reason = self.reason or why_not
        self._continue()


class Transfers:
    """The transfers of a server, at most one for each source. They stop when `takes_writes` returns False."""

    def __init__(
        self, manager: QueueManager, scheduler: TickScheduler, takes_writes: Callable[[], bool] = lambda: True
    ) -> None:
        self._manager = manager
        self._scheduler = scheduler
        self._takes_writes = takes_writes
        self._by_source: dict[bytes, Transfer] = {}

    def of(self, source: bytes) -> Transfer | None:
        """Return the transfer from that queue which runs or has ended last, or None."""
        return self._by_source.get(source)

    def start(self, source: Queue, target: bytes, items: int) -> Transfer:
        """Start to move up to `items` items, and at most those that are in `source` now.

        Raises `ClientError` with the reason if the items cannot be moved.
        """
        running = self._by_source.get(source.name)
        if running is not None and running.is_running:
            raise ClientError(f"items of {show_name(source.name)} are already moving to {show_name(running.target)}")
        self._check_target(source.name, target)
        self._by_source.pop(source.name, None)
        while len(self._by_source) >= MAX_TRANSFERS:
            oldest = next((name for name, each in self._by_source.items() if not each.is_running), None)
            if oldest is None:
                raise ClientError(f"too many queues are being moved; limit={MAX_TRANSFERS}")
            del self._by_source[oldest]
        transfer = Transfer(source, target, min(items, source.store.items), self._scheduler, self._takes_writes)
        self._by_source[source.name] = transfer
        return transfer

    def stop(self) -> None:
        """Stop all transfers, because the server stops."""
        for transfer in self._by_source.values():
            transfer.stop("the server stops")

    def _check_target(self, source: bytes, target: bytes) -> None:
        manager = self._manager
        alias = manager.aliases.get(target)
        if alias is None and manager.known(target) is None:
            raise ClientError(f"there is no queue {show_name(target)}")
        queues = (target,) if alias is None else alias.queues
        children = [child for queue in queues for child in manager.children_of(queue)]
        if source in queues or source in children:
            raise ClientError(f"a put to {show_name(target)} goes to {show_name(source)}, too")
        if not children and all(manager.settings_for(queue).fanout_only for queue in queues):
            raise ClientError(f"{show_name(target)} has no children and keeps no items (fanoutOnly)")
