"""The commands that take many items at a time, and finish them by number."""

from __future__ import annotations

from typing import Final

from kestrel import commands
from kestrel.errors import QueueFailed
from kestrel.item import Item
from kestrel.protocols.codec import ITEM_OVERHEAD_BYTES
from kestrel.queues.queue import Queue
from kestrel.session.codecs import get_many_codec
from kestrel.session.item_feed import NO_LIMIT, ItemFeed
from kestrel.session.session import Handlers, Session


def get_many(session: Session, command: commands.GetMany) -> None:
    """Take items until there are enough, or the time is up."""
    session.access.check_get(command.queue)
    session.counters.cmd_get += 1
    queue = session.manager.queue_to_read(command.queue)
    if queue is None or command.max_items == 0:
        session.outbox.reply(get_many_codec(session).items(command, ()))
    else:
        _GetManySink(session, command, queue).begin()


class _GetManySink:
    """A `GetMany` under way (`kestrel.session.item_feed.ItemSink`).

    What it takes are open reads inside, so that nothing is lost with a client that leaves meanwhile. They become the
    client's, or are finished, when the reply has left.
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
        """Take what is there, and wait for more if the client does."""
        self._feed.continue_now()
        if self._is_over:
            return
        self._waits = True
        if self._command.wait_ms <= 0:
            self._session.wait_for_server(self._stop)
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
        return session.lease_counts.of(self._queue.name) + len(self._items) < session.settings.max_open_reads

    def is_backpressured(self) -> bool:
        """Never: there is one reply."""
        return False

    def deliver(self, item: Item) -> None:
        """One more item, unless the reply has no room for it; then it goes back."""
        if not self._queue.owns_store(self._store):
            self._store = self._queue.store
            self._items.clear()  # they went back by themselves
            self._bytes = 0
        size = len(item.data) + ITEM_OVERHEAD_BYTES
        codec = get_many_codec(self._session)
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
        """Nothing more comes: give out what there is."""
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
        """The client is gone, or has its answer: what is still ours goes back."""
        self._feed.cancel()
        items, self._items = self._items, []
        self._put_back(items)

    def _put_back(self, items: list[Item]) -> None:
        if items and self._queue.owns_store(self._store):
            self._queue.put_back([item.xid for item in items], failed=False)

    def _take_deliverable(self) -> list[Item]:
        """Those that the client is to have: what has expired meanwhile goes back, and leaves as it would have."""
        items, self._items = self._items, []
        if not self._queue.owns_store(self._store):
            return []  # they went with the queue
        if self._command.auto_abort_ms > 0 and not self._session.leases.can_be_confirmed:
            self._put_back(items)
            return []
        if not self._has_waited:
            return items
        given: list[Item] = []
        expired: list[Item] = []
        for item in items:  # asked once of each: time goes on
            (expired if self._queue.head.item_has_expired(item) else given).append(item)
        self._put_back(expired)
        return given

    @property
    def _has_waited(self) -> bool:
        """Whether the client did: not all was there at once, and it had asked to wait."""
        return self._waits and self._command.wait_ms > 0

    def _reply(self) -> None:
        session, command, queue = self._session, self._command, self._queue
        items = self._take_deliverable()
        if not items:
            session.counters.get_misses += 1
            queue.histograms.add_miss(session.clock.seconds() - self._began_s, is_blocking=command.wait_ms > 0)
            session.outbox.reply(get_many_codec(session).items(command, ()), queue.unsettled_batch)
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
            get_many_codec(session).items(command, numbered),
            queue.touch(),
            sent=sent,
            answers_waiter=self._has_waited,
        )


def confirm_ids(session: Session, command: commands.ConfirmIds) -> None:
    """Finish open reads, whichever connection took them."""
    count, batch = session.leases.confirm(command.queue, command.ids)
    session.outbox.reply(session.codec.number(command, count), batch)


def abort_ids(session: Session, command: commands.AbortIds) -> None:
    """Give open reads back, whichever connection took them."""
    count, batch = session.leases.abort(command.queue, command.ids)
    session.outbox.reply(session.codec.number(command, count), batch)


GET_MANY: Final[Handlers] = {
    commands.GetMany: get_many,
    commands.ConfirmIds: confirm_ids,
    commands.AbortIds: abort_ids,
}
