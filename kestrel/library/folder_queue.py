"""One queue of a `QueueFolder`."""

from __future__ import annotations

from functools import partial
from typing import Any, Final, Protocol

from twisted.internet.defer import Deferred, fail

from kestrel.errors import KestrelError, QueueFailed
from kestrel.item import Item
from kestrel.library.arguments import check_item
from kestrel.library.deferred_waiter import DeferredWaiter
from kestrel.library.durability import DurabilityTracker
from kestrel.queues.manager import QueueManager
from kestrel.queues.queue import Queue
from kestrel.queues.tick_scheduler import TickScheduler
from kestrel.queues.waiters import Waiter
from kestrel.storage.barrier import Batch
from kestrel.storage.interfaces import IQueueStorage

XIDS: Final = 1 << 31
"""Number of xids for open reads of one queue store. A store that replaces a failed one uses the next range of xids."""


class QueueFolderLike(Protocol):
    """The folder of a queue (`kestrel.library.queue_folder.QueueFolder`)."""

    reactor: Any
    scheduler: TickScheduler
    queues: dict[bytes, FolderQueue]

    @property
    def is_closed(self) -> bool:
        """Whether the folder is closed or being closed."""

    @property
    def manager(self) -> QueueManager:
        """The folder's queues by name. Raises `StorageError` unless the folder is open."""

    def queue(self, name: bytes) -> FolderQueue:
        """Return the queue `name`, and create it if necessary."""


class FolderQueue:
    """A queue of an open folder, returned by `QueueFolder.queue`.

    Methods that return a Deferred fail with `StorageError` if the folder is not open or the storage fails. The others
    raise it.
    """

    def __init__(self, name: bytes, folder: QueueFolderLike) -> None:
        self.name = name
        self.folder = folder
        folder.queues[name] = self
        self._store: IQueueStorage | None = None
        self._first_xid = 0
        """Added to the xids of the current queue store."""
        self._durability = DurabilityTracker()
        self._joining = 0

    @property
    def is_closed(self) -> bool:
        """Whether the folder is closed or being closed."""
        return self.folder.is_closed

    @property
    def items(self) -> int:
        """Number of items, in memory or on disk, without open reads."""
        return self.underlying().store.items

    @property
    def open_reads(self) -> int:
        """Number of open reads, including items that are moving to another queue."""
        return self.underlying().store.open_reads

    # Adding.

    def add(self, data: bytes, expiry_ms: int = 0) -> bool:
        """Append an item. Return False if a limit refuses it: the queue is full, or the item too large.

        `expiry_ms` is the time at which the item expires, in milliseconds since the epoch; with 0 only maxAge applies.
        Raises `StorageRefused` while the disk is full.
        """
        check_item(data, expiry_ms)
        return self._is_done(self.folder.manager.put(self.name, data, expiry_ms))

    def continue_(self, xid: int, data: bytes, expiry_ms: int = 0) -> bool:
        """Finish an open read and append an item, in one journal record.

        Return False if a limit refuses the item. Raises the errors of `add`, and `TooFewOpenReads` if the read is no
        longer open. In each of these cases the item is not added, and an open read stays open. With fanout queues, the
        item is added first, and the read is finished when the item is safe: a crash may leave both.
        """
        check_item(data, expiry_ms)
        own_xid = self._own_xid(xid)
        return self._is_done(self.folder.manager.continue_(self.name, own_xid, data, expiry_ms))

    # Taking and peeking.

    def peek(self) -> Item | None:
        """Return the head of the queue without removing it, or None if no item is available in memory."""
        item = self.underlying().peek_now()
        return None if item is None else self.to_program_item(item)

    def remove(self, opened: bool = False) -> Item | None:
        """Take the head of the queue. With `opened` it becomes an open read, to be confirmed, continued or returned by
        its `xid`.

        Return None if no item is available: the queue is empty, other consumers wait, or the head is only on disk, as
        in a queue larger than `max_memory_size_bytes`. Use `wait_remove(0)` to be certain.
        """
        queue = self.underlying()
        item = queue.take_now(opened)
        return None if item is None else self.finish_take(queue, item, opened)

    def wait_remove(self, deadline_s: float | None = None, opened: bool = False) -> Deferred[Item | None]:
        """Take the head of the queue as soon as there is one; consumers are served in order of arrival.

        Fires with None after `deadline_s` seconds, or when the folder is closed. With 0 it waits only for the disk,
        with None it has no deadline.
        """
        return self._wait(deadline_s, opened, peeks=False)

    def wait_peek(self, deadline_s: float | None = None) -> Deferred[Item | None]:
        """Peek at the head of the queue as soon as there is one, with the deadline of `wait_remove`."""
        return self._wait(deadline_s, False, peeks=True)

    def _wait(self, deadline_s: float | None, opens: bool, peeks: bool) -> Deferred[Item | None]:
        try:
            self.underlying()
        except KestrelError as error:
            return fail(error)
        place = DeferredWaiter(self, self.folder.reactor, deadline_s, opens=opens, peeks=peeks)
        if not self._joining and self.folder.scheduler.has_time():
            place.join()
        else:  # a consumer that takes item after item must not starve the reactor
            self._joining += 1
            self.folder.scheduler.continue_later(partial(self._join_later, place))
        return place.result

    def _join_later(self, place: DeferredWaiter[Queue, Item]) -> None:
        self._joining -= 1
        place.join()

    # Open reads.

    def confirm_remove(self, xid: int) -> bool:
        """Finish an open read and remove its item permanently. Return False if the read is not open, for example after
        a timeout.

        Raises `QueueFailed` if the storage has failed since the item was taken. The item is then back in the queue.
        """
        own_xid, queue = self._own_xid(xid), self.underlying()
        return own_xid in queue.open_read_table and self._is_done(queue.confirm([own_xid]))

    def unremove(self, xid: int) -> bool:
        """Return an open read to the head of the queue with one more error. Return False if the read is not open.

        Raises `QueueFailed` if the storage has failed since, which returned the item to the queue.
        """
        own_xid, queue = self._own_xid(xid), self.underlying()
        return own_xid in queue.open_read_table and self._is_done(queue.abort([own_xid]))

    # Durability.

    def safe(self) -> Deferred[None]:
        """Return a Deferred that fires when all changes to this queue so far are as safe as its `sync_journal_ms`
        promises.

        Fails with `QueueFailed` if one of them was lost, or a change since the last `safe`. The queue is then as it was
        before the lost changes.
        """
        return self._durability.safe()

    def _is_done(self, batch: Batch | None) -> bool:
        """Track the batch of a change. Return False if there was no change (None)."""
        if batch is None:
            return False
        self._durability.add_batch(batch)
        return True

    # The underlying queue, whose store is replaced when its storage fails.

    def underlying(self) -> Queue:
        """Return the underlying queue, as the server uses it."""
        return self._known(self.folder.manager.queue(self.name))

    def _known(self, queue: Queue) -> Queue:
        """Return `queue`. If it has another store than before, move to the next range of xids."""
        if queue.store is not self._store:
            if self._store is not None:
                self._first_xid += XIDS
            self._store = queue.store
        return queue

    def _own_xid(self, xid: int) -> int:
        """Return the current store's xid of an open read. Raises `QueueFailed` for a read of an earlier store."""
        self.underlying()
        if xid < self._first_xid:
            raise QueueFailed("the queue's storage failed while the read was open: its item is back in the queue")
        return xid - self._first_xid

    def finish_take(self, queue: Queue, item: Item, opened: bool) -> Item:
        """Record that the program took an item, and return the program's copy of it."""
        self._is_done(queue.touch())
        if opened:
            queue.add_open_read(item)
        self._known(queue)
        return self.to_program_item(item)

    def deliver(self, line: Queue, item: Item, waiter: Waiter) -> Item:
        """Return the program's copy of an item that arrived for a waiter."""
        return self.to_program_item(item) if waiter.peeks else self.finish_take(line, item, waiter.opens)

    def to_program_item(self, item: Item) -> Item:
        """Return a copy of the item for the program, since the queue's own item changes when it is opened again.

        An open read gets an xid that no earlier store has used.
        """
        xid = self._first_xid + item.xid if item.xid else 0
        return Item(item.data, item.add_ms, item.expiry_ms, item.errors, xid)
