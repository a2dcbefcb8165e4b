"""Handlers of commands that only thrift has: take many items at once, finish them by id, inspect and list queues."""

from __future__ import annotations

from typing import Final

from kestrel import commands
from kestrel.errors import KestrelError, QueueFailed
from kestrel.item import Item
from kestrel.protocols.codec import ITEM_OVERHEAD_BYTES, QueueInfo
from kestrel.protocols.thrift_binary import LENGTH_BYTES
from kestrel.queues.queue import Queue
from kestrel.queues.waiters import Waiter
from kestrel.session.item_feed import NO_LIMIT, ItemFeed
from kestrel.session.session import Handlers, Session


def get_many(session: Session, command: commands.GetMany) -> None:
    """Take items until the request is filled or its wait time is over, and reply with them."""
    session.access.check_get(command.queue)
    session.counters.cmd_get += 1
    queue = session.manager.queue_to_read(command.queue)
    if queue is None or command.max_items == 0:
        session.outbox.reply(session.codec.items(command, ()))
    else:
        _GetManySink(session, command, queue).begin()


class _GetManySink:
    """A `GetMany` in progress (`kestrel.session.item_feed.ItemSink`).

    All items are taken as open reads, so none is lost if the client disconnects. When the reply is sent, they become
    leased reads or are confirmed.
    """

    def __init__(self, session: Session, command: commands.GetMany, queue: Queue) -> None:
        self._session = session
        self._command = command
        self._queue = queue
        self._store = queue.store
        self._began_s = session.clock.seconds()
        self._items: list[Item] = []
        self._bytes = 0
        self._is_full = False
        self._is_over = False
        self._waits = False
        self._feed = ItemFeed(self, queue, NO_LIMIT, is_blocking=command.wait_ms > 0)
        self.continue_later = session.continue_later

    def begin(self) -> None:
        """Take the available items, and wait for more if the client asked to wait."""
        self._feed.continue_now()
        if self._is_over:
            return
        self._waits = True
        if self._command.wait_ms <= 0:
            self._session.wait_for_server(self._stop)
        elif not self._session.wait_for_client(self._command.wait_ms, self._stop, self._time_is_up):
            self._stop()

    def may_open(self) -> bool:
        """Return True if one more item fits in the reply, in memory, and in the connection's limit of open reads."""
        if self._is_full or len(self._items) == self._command.max_items:
            return False
        if self._items and self._session.manager.memory_limit.is_reached:
            return False
        if self._command.auto_abort_ms <= 0:
            return True
        session = self._session
        return session.lease_counts.of(self._queue.name) + len(self._items) < session.settings.max_open_transactions

    def is_backpressured(self) -> bool:
        """Return False: a `GetMany` has only one reply."""
        return False

    def deliver(self, item: Item) -> None:
        """Add an item to the reply. An item that does not fit is put back."""
        if not self._queue.owns_store(self._store):
            self._store = self._queue.store
            self._items.clear()  # the queue's recovery has put them back
            self._bytes = 0
        size = len(item.data) + ITEM_OVERHEAD_BYTES
        codec = self._session.codec
        if self._items and self._bytes + size > codec.max_reply_bytes:
            self._is_full = True
            self._queue.put_back([item.xid], failed=False)
            return
        self._items.append(item)
        self._bytes += size
        self._is_full = len(self._items) >= codec.max_reply_items

    def _time_is_up(self) -> None:
        if not self._items and self._queue.is_head_pending:
            self._feed.make_non_blocking()
        else:
            self._feed.end(None)

    def feed_ended(self, error: Exception | None) -> None:
        """Reply with the items taken so far, or refuse the command with the error."""
        queue = self._queue
        if error is None and self._items and not queue.is_deleted and not queue.owns_store(self._store):
            error = QueueFailed("the queue's storage failed: the items went back to the queue")
        if error is None:
            self._reply()
        else:
            self._stop()
            self._session.refuse(error)
        self._is_over = True
        if self._waits:
            self._session.finish_command()

    def _stop(self) -> None:
        """Put back the items that are not in a reply, because the command was finished or canceled."""
        self._feed.cancel()
        items, self._items = self._items, []
        self._put_back(items)

    def _put_back(self, items: list[Item]) -> None:
        if items and self._queue.owns_store(self._store):
            self._queue.put_back([item.xid for item in items], failed=False)

    def _take_deliverable(self) -> list[Item]:
        """Return the items to reply with. Items that expired during a wait are put back, and expire there."""
        items, self._items = self._items, []
        if not self._queue.owns_store(self._store):
            return []  # they were lost with the queue's store
        if self._command.auto_abort_ms > 0 and not self._session.leases.can_be_confirmed:
            self._put_back(items)
            return []
        if not self._has_waited:
            return items
        given: list[Item] = []
        expired: list[Item] = []
        for item in items:  # one check per item: the clock advances meanwhile
            (expired if self._queue.head.item_has_expired(item) else given).append(item)
        self._put_back(expired)
        return given

    @property
    def _has_waited(self) -> bool:
        """Whether the client asked to wait and some items were not there at once."""
        return self._waits and self._command.wait_ms > 0

    def _reply(self) -> None:
        session, command, queue = self._session, self._command, self._queue
        items = self._take_deliverable()
        if not items:
            session.counters.get_misses += 1
            queue.histograms.add_miss(session.clock.seconds() - self._began_s, is_blocking=command.wait_ms > 0)
            session.outbox.reply(session.codec.items(command, ()), queue.unsettled_batch)
            return
        session.counters.get_hits += len(items)
        is_leased = command.auto_abort_ms > 0
        numbers = session.leases.numbers(len(items)) if is_leased else [0] * len(items)
        if is_leased:
            session.lease_counts.change(queue.name, len(items))

        def sent(was_sent: bool) -> None:
            is_given = was_sent and queue.owns_store(self._store)
            if is_given and is_leased:
                for number, item in zip(numbers, items, strict=True):
                    session.leases.open(number, queue, item, command.auto_abort_ms, session.lease_counts)
            elif is_given:
                queue.confirm([item.xid for item in items])
            else:
                self._put_back(items)
                if is_leased:
                    session.lease_counts.change(queue.name, -len(items))

        numbered = [(item.data, number) for item, number in zip(items, numbers, strict=True)]
        session.outbox.reply(
            session.codec.items(command, numbered),
            queue.touch(),
            sent=sent,
            answers_waiter=self._has_waited,
        )


def confirm_ids(session: Session, command: commands.ConfirmIds) -> None:
    """Confirm open reads by id, whichever connection took them. Reply with the number of reads that were open."""
    count, batch = session.leases.confirm(command.queue, command.ids)
    session.outbox.reply(session.codec.number(command, count), batch)


def abort_ids(session: Session, command: commands.AbortIds) -> None:
    """Abort open reads by id, whichever connection took them. Reply with the number of reads that were open."""
    count, batch = session.leases.abort(command.queue, command.ids)
    session.outbox.reply(session.codec.number(command, count), batch)


def inspect(session: Session, command: commands.Inspect) -> None:
    """Reply with the head of a queue and some of its figures."""
    session.access.check_get(command.queue)
    session.counters.cmd_peek += 1
    queue = session.manager.queue_to_read(command.queue)
    if queue is None:
        session.outbox.reply(session.codec.queue_info(command, QueueInfo()))
        return

    def tell(head: Item | None) -> None:
        info = _info(queue, head, session.manager.now_ms())
        session.outbox.reply(session.codec.queue_info(command, info), queue.unsettled_batch)

    def head_is_known(head: Item | None, error: Exception | None) -> None:
        if error is None:
            tell(head)
        else:
            session.refuse(error)
        session.finish_command()

    head = queue.peek_now()
    if head is not None:
        tell(head)
        return
    waiter = Waiter(head_is_known, opens=False, peeks=True, is_blocking=False)

    def stop() -> None:
        queue.waiters.leave(waiter)

    session.wait_for_server(stop)
    queue.join(waiter)


def _info(queue: Queue, head: Item | None, now_ms: int) -> QueueInfo:
    store = queue.store
    return QueueInfo(
        head=None if head is None else head.data,
        items=store.items,
        bytes=store.bytes,
        journal_bytes=store.stats.get("journal_bytes", 0),
        age_ms=0 if head is None else max(0, now_ms - head.add_ms),
        waiters=len(queue.waiters),
        open_reads=store.open_reads,
    )


def list_queues(session: Session, command: commands.ListQueues) -> None:
    """Reply with the names of all queues, sorted. Raises `KestrelError` if they do not fit into one reply."""
    names = [queue.name for queue in session.manager.all_queues()]
    if sum(len(name) + LENGTH_BYTES for name in names) > session.codec.max_reply_bytes:
        raise KestrelError(f"the names of the {len(names)} queues exceed one reply")
    session.outbox.reply(session.codec.queue_names(command, names))


GET_MANY: Final[Handlers] = {
    commands.GetMany: get_many,
    commands.ConfirmIds: confirm_ids,
    commands.AbortIds: abort_ids,
    commands.Inspect: inspect,
    commands.ListQueues: list_queues,
}
