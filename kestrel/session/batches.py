"""The commands that take many items at a time, and finish them by number."""

from __future__ import annotations

from typing import Final, cast

from kestrel import commands
from kestrel.errors import QueueFailed
from kestrel.item import Item
from kestrel.protocols.codec import ITEM_BYTES, BatchCodec, QueueInfo
from kestrel.queues.queue import Queue
from kestrel.queues.waiters import Waiter
from kestrel.session.monitor import NO_LIMIT, Monitoring
from kestrel.session.session import Handlers, Session
from kestrel.storage.total_memory import MemoryShare


def get_many(session: Session, command: commands.GetMany) -> None:
    """Take items until there are enough, or the time is up."""
    session.access.check_get(command.queue)
    session.counters.cmd_get += 1
    queue = session.manager.readable(command.queue)
    if queue is None or command.max_items == 0:
        session.outbox.reply(_codec(session).items(command, ()))
    else:
        _Collecting(session, command, queue).begin()


class _Collecting:
    """A `GetMany` under way (`kestrel.session.monitor.Audience`).

    What it takes are open reads inside, so that nothing is lost with a client that leaves meanwhile. They become the
    client's, or are finished, with the reply.
    """

    def __init__(self, session: Session, command: commands.GetMany, queue: Queue) -> None:
        self._session = session
        self._command = command
        self._queue = queue
        self._contents = queue.contents
        self._items: list[Item] = []
        self._bytes = 0
        self._is_full = False
        self._is_over = False
        self._waits = False
        self._memory = MemoryShare(session.manager.memory_limit)
        self._monitoring = Monitoring(self, queue, NO_LIMIT, patient=command.wait_ms > 0)
        self.go_on_later = session.go_on_later

    def begin(self) -> None:
        """Take what is there, and wait for more if the client does."""
        self._monitoring.go_on()
        if self._is_over:
            return
        self._waits = True
        if self._command.wait_ms <= 0:
            self._session.wait_for_storage(self._stop)
        elif not self._session.wait_for_client(self._command.wait_ms, self._stop, self._time_is_up):
            self._stop()

    def may_open(self) -> bool:
        """Whether there is room for one more item in the reply, in memory, and in what the connection may hold."""
        if self._is_full or len(self._items) == self._command.max_items:
            return False
        if self._items and self._session.manager.memory_limit.is_reached:
            return False
        if self._command.auto_abort_ms <= 0:
            return True
        session = self._session
        return session.leases_taken[self._queue.name] + len(self._items) < session.settings.max_open_reads

    def is_held_up(self) -> bool:
        """Never: there is one reply."""
        return False

    def deliver(self, item: Item) -> None:
        """One more item, unless the reply has no room for it; then it goes back."""
        if not self._are_ours():
            self._items.clear()  # they went back by themselves
            self._bytes = 0
            self._contents = self._queue.contents
        size = len(item.data) + ITEM_BYTES
        if self._items and self._bytes + size > _codec(self._session).max_reply_bytes:
            self._is_full = True
            self._queue.put_back([item.xid], failed=False)
            return
        self._items.append(item)
        self._bytes += size
        self._is_full = len(self._items) >= _codec(self._session).max_reply_items
        self._memory.is_now(self._bytes)

    def _time_is_up(self) -> None:
        if not self._items and self._queue.is_finding_head:
            self._monitoring.settle_for_what_is_there()
        else:
            self._monitoring.end(None)

    def monitor_ended(self, error: Exception | None) -> None:
        """Nothing more comes: give out what there is."""
        if error is None and self._items and not self._queue.is_deleted and not self._are_ours():
            error = QueueFailed("the queue's storage failed: the items went back to the queue")
        if error is None:
            self._reply(self._given_up())
        else:
            self._stop()
            self._session.refuse(error)
        self._is_over = True
        if self._waits:
            self._session.answered()

    def _are_ours(self) -> bool:
        """Whether what was taken is still open."""
        return self._queue.contents is self._contents and self._contents.failure is None

    def _given_up(self) -> list[Item]:
        """What was taken, which is not ours any more; nothing if it has gone with the queue."""
        items, self._items = self._items, []
        self._memory.is_now(0)
        return [] if self._queue.is_deleted else items

    def _stop(self) -> None:
        """The client is gone, or has its answer: what is still ours goes back."""
        self._monitoring.cancel()
        self._put_back(self._given_up())

    def _put_back(self, items: list[Item]) -> None:
        if items and self._are_ours():
            self._queue.put_back([item.xid for item in items], failed=False)

    def _reply(self, items: list[Item]) -> None:
        session, command, queue = self._session, self._command, self._queue
        is_leased = command.auto_abort_ms > 0
        if is_leased and not session.leases.can_be_ended:
            self._put_back(items)
            items = []
        if items:
            session.counters.get_hits += len(items)
        else:
            session.counters.get_misses += 1
        leased = session.leases
        ids = [0] * len(items)
        if is_leased:
            ids = [leased.open(queue, item, command.auto_abort_ms, session.leases_taken) for item in items]
        reply = _codec(session).items(command, [(item.data, number) for item, number in zip(items, ids, strict=True)])

        def sent(as_it_stands: bool) -> None:
            if is_leased:
                if not as_it_stands:
                    leased.take_back(queue, ids)
            elif not as_it_stands:
                self._put_back(items)
            elif self._are_ours():
                queue.confirm([item.xid for item in items])

        session.outbox.reply(
            reply,
            queue.touch() if items else queue.unsettled_batch,
            sent=sent if items else None,
            was_waited_for=bool(items) and self._waits and command.wait_ms > 0,
        )


def _codec(session: Session) -> BatchCodec:
    """Only a protocol that has these commands is asked to answer them."""
    return cast(BatchCodec, session.codec)


def confirm_ids(session: Session, command: commands.ConfirmIds) -> None:
    """Finish open reads, whichever connection took them."""
    count, batch = session.leases.confirm(command.queue, command.ids)
    session.outbox.reply(session.codec.number(command, count), batch)


def abort_ids(session: Session, command: commands.AbortIds) -> None:
    """Give open reads back, whichever connection took them."""
    count, batch = session.leases.abort(command.queue, command.ids)
    session.outbox.reply(session.codec.number(command, count), batch)


def inspect(session: Session, command: commands.Inspect) -> None:
    """Look at the head of a queue and a few of its figures."""
    session.access.check_get(command.queue)
    session.counters.cmd_peek += 1
    queue = session.manager.readable(command.queue)
    if queue is None:
        session.outbox.reply(_codec(session).queue_info(command, QueueInfo()))
        return

    def tell(head: Item | None) -> None:
        info = _info(queue, head, session.manager.now_ms())
        session.outbox.reply(_codec(session).queue_info(command, info), queue.unsettled_batch)

    def head_is_known(head: Item | None, error: Exception | None) -> None:
        if error is None:
            tell(head)
        else:
            session.refuse(error)
        session.answered()

    head = queue.peek_now()
    if head is not None:
        tell(head)
    else:
        waiter = Waiter(head_is_known, opens=False, peeks=True, patient=False)

        def stop() -> None:
            queue.waiting.leave(waiter)

        session.wait_for_storage(stop)
        queue.join(waiter)


def _info(queue: Queue, head: Item | None, now_ms: int) -> QueueInfo:
    contents = queue.contents
    return QueueInfo(
        head=None if head is None else head.data,
        items=contents.items,
        bytes=contents.bytes,
        journal_bytes=contents.stats.get("journal_bytes", 0),
        age_ms=0 if head is None else max(0, now_ms - head.add_ms),
        waiters=len(queue.waiting),
        open_reads=contents.open_reads,
    )


BATCHES: Final[Handlers] = {
    commands.GetMany: get_many,
    commands.ConfirmIds: confirm_ids,
    commands.AbortIds: abort_ids,
    commands.Inspect: inspect,
}
