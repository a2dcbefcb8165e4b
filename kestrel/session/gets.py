"""Handlers of the commands that take items one by one: get, peek, monitor and confirm."""

from __future__ import annotations

from collections import deque
from typing import Final

from kestrel import commands, errors
from kestrel.item import Item
from kestrel.queues.queue import Queue
from kestrel.queues.waiters import Waiter
from kestrel.session.item_feed import ItemFeed
from kestrel.session.session import Handlers, Session
from kestrel.storage.barrier import Batch
from kestrel.storage.interfaces import IQueueStorage


def get(session: Session, command: commands.Get) -> None:
    """End one or all open reads if asked to, then take or peek the head, or wait for an item."""
    name = command.queue
    ended: Batch | None = None
    if command.closes:
        ended = session.open_reads.close_oldest(name)
    if command.closes_all:
        ended = session.open_reads.close_all(name)
    if command.aborts:
        ended = session.open_reads.abort_oldest(name)
    if command.aborts or (command.closes and not command.opens):
        session.outbox.reply(session.codec.no_item(command), ended)
        return
    queue = session.manager.plain_queue(name)
    session.access.check_get(name, queue)
    if command.peeks:
        session.counters.cmd_peek += 1
    else:
        if command.opens or session.open_reads.has_any:
            session.open_reads.check_take(name, command.opens, session.settings.max_open_transactions)
        session.counters.cmd_get += 1
    if queue is None:
        queue = session.manager.queue_to_read(name)
    if queue is None:
        session.outbox.reply(session.codec.no_item(command), ended)
        return
    item = queue.peek_now() if command.peeks else queue.take_now(command.opens)
    if item is not None:
        _reply_with_item(session, command, queue, item, is_open=command.opens)
    else:
        _wait(session, command, queue, ended)


def _reply_with_item(session: Session, command: commands.Get, queue: Queue, item: Item, *, is_open: bool) -> None:
    """Reply with an item that was peeked, or taken with or without an open read (`is_open`).

    An open read that the client asked for is forgotten if the client gets an error instead. A blocking get always takes
    with an open read. If the client did not ask to open it, it is confirmed when the reply is sent, or put back if it
    is not.
    """
    reply = session.codec.item(command, item.data)
    session.counters.get_hits += 1
    if command.peeks:
        session.outbox.reply(reply, queue.unsettled_batch)
    elif not is_open:
        session.outbox.reply(reply, queue.open_batch)
    elif command.opens:
        open_reads, name, store, xid = session.open_reads, queue.name, queue.store, item.xid
        open_reads.add(queue, item)
        session.outbox.reply(reply, queue.open_batch, lost=lambda: open_reads.forget(name, store, xid))
    else:
        _reply_with_waiter_item(session, queue, item, reply)


def _reply_with_waiter_item(session: Session, queue: Queue, item: Item, reply: bytes) -> None:
    """Reply with a waiter's item: confirm it when the reply is sent, or put it back."""
    store, xid = queue.store, item.xid

    def sent(was_sent: bool) -> None:
        if not queue.owns_store(store):
            return  # the open read ended with its store
        if was_sent:
            queue.confirm([xid])
        else:
            queue.put_back([xid], failed=False)

    session.outbox.reply(reply, queue.open_batch, sent=sent, answers_waiter=True)


def _wait(session: Session, command: commands.Get, queue: Queue, ended: Batch | None) -> None:
    """Wait for an item, or at least until the queue is known to be empty. `ended` is the batch of an ended read."""
    is_blocking = command.wait_ms > 0
    is_open = not command.peeks and (command.opens or is_blocking)
    store = queue.store

    def on_result(item: Item | None, error: Exception | None) -> None:
        if ended is not None and not ended.is_settled and not queue.owns_store(store) and not queue.is_deleted:
            # The read that this command closed has come back, and this may be its item.
            error = errors.QueueFailed(store.failure or "the item went back to the queue")
            if item is not None and is_open:
                queue.put_back([item.xid], failed=False)
        if error is not None:
            session.refuse(error)
        elif item is None:
            session.counters.get_misses += 1
            if not command.peeks:
                queue.histograms.add_miss(session.clock.seconds() - waiter.began_s, is_blocking=is_blocking)
            session.outbox.reply(session.codec.no_item(command), queue.unsettled_batch or ended)
        else:
            _reply_with_item(session, command, queue, item, is_open=is_open)
        session.finish_command()

    waiter = Waiter(on_result, opens=is_open, peeks=command.peeks, is_blocking=is_blocking)

    def stop() -> None:
        queue.waiters.leave(waiter)

    def ended_or_lost() -> None:
        """Answer with an error instead of waiting on if the batch that closed the last read failed."""
        if ended is not None and ended.failure is not None and queue.waiters.leave(waiter):
            on_result(None, ended.failure)

    def timed_out() -> None:
        if queue.is_head_pending:
            # The queue may not be empty. The waiter is answered when the head is loaded.
            queue.waiters.make_non_blocking(waiter)
            return
        stop()
        on_result(None, None)

    if not is_blocking:
        session.wait_for_server(stop)
    elif not session.wait_for_client(command.wait_ms, stop, timed_out):
        return
    queue.join(waiter)
    if ended is not None:
        ended.when_settled(ended_or_lost)


def monitor(session: Session, command: commands.Monitor) -> None:
    """Stream items to the client as open reads."""
    ended = session.open_reads.close_all(command.queue) if command.closes_all else None
    session.access.check_get(command.queue)
    queue = session.manager.queue_to_read(command.queue)
    max_items = session.settings.max_open_transactions if command.max_items is None else command.max_items
    if queue is None or command.wait_ms <= 0 or max_items == 0:
        session.outbox.reply(session.codec.no_item(command), ended)
        return
    sink = _MonitorSink(session, command, queue, ended)
    if not sink.may_open():
        session.outbox.reply(session.codec.no_item(command), ended)
        return
    feed = sink.feed = ItemFeed(sink, queue, max_items)
    if session.wait_for_client(
        command.wait_ms, feed.cancel, lambda: feed.end(None), when_replies_sent=feed.continue_later
    ):
        feed.continue_now()
        if ended is not None:
            ended.when_settled(lambda: feed.end(ended.failure) if ended.failure else None)


class _MonitorSink:
    """A session that monitors a queue (`kestrel.session.item_feed.ItemSink`)."""

    feed: ItemFeed

    def __init__(self, session: Session, command: commands.Monitor, queue: Queue, ended: Batch | None) -> None:
        self._session = session
        self._command = command
        self._queue = queue
        self._ended = ended
        self._unsent_reads: deque[tuple[IQueueStorage, int]] = deque()
        """The store and the xid of each read whose reply is not sent yet."""
        self._is_over = False
        self._has_lost = False
        self.continue_later = session.continue_later

    def may_open(self) -> bool:
        return self._session.open_reads.count(self._queue.name) < self._session.settings.max_open_transactions

    def is_backpressured(self) -> bool:
        return self._session.is_backpressured

    def deliver(self, item: Item) -> None:
        session, queue = self._session, self._queue
        session.counters.get_hits += 1
        reply = session.codec.item(self._command, item.data)
        session.open_reads.add(queue, item)
        self._unsent_reads.append((queue.store, item.xid))
        session.outbox.reply(reply, queue.open_batch, sent=self._sent_one, lost=self._lost_one)

    def _sent_one(self, was_sent: bool) -> None:
        if was_sent:
            self._unsent_reads.popleft()

    def _lost_one(self) -> None:
        """End the monitor: an error was sent in place of an item, and the client expects no items after it."""
        if self._has_lost:
            return
        self._has_lost = True
        self.feed.cancel()
        self._session.outbox.forget(self._command)
        queue = self._queue
        for store, xid in self._unsent_reads:
            self._session.open_reads.forget(queue.name, store, xid)
        still_open = [
            xid for store, xid in self._unsent_reads if queue.owns_store(store) and xid in queue.open_read_table
        ]
        if still_open:
            queue.put_back(still_open, failed=False)
        if not self._is_over:
            self._is_over = True
            self._session.finish_command()

    def feed_ended(self, error: Exception | None) -> None:
        self._is_over = True
        if error is None:
            self._session.outbox.reply(self._session.codec.no_item(self._command), self._ended)
        else:
            self._session.refuse(error)
        self._session.finish_command()


def confirm(session: Session, command: commands.Confirm) -> None:
    """Confirm the oldest open reads."""
    batch = session.open_reads.confirm(command.queue, command.count)
    session.outbox.reply(session.codec.done(command), batch)


GETS: Final[Handlers] = {
    commands.Get: get,
    commands.Monitor: monitor,
    commands.Confirm: confirm,
}
