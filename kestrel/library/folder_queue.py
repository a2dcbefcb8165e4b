"""One queue of a program, in a folder of journals."""

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
"""How many numbers the contents of a queue have for open reads. Contents that replace them get the next so many."""


class QueueFolderLike(Protocol):
    """The folder of a queue (`kestrel.library.queue_folder.QueueFolder`)."""

    reactor: Any
    scheduler: TickScheduler
    queues: dict[bytes, FolderQueue]

    @property
    def is_closed(self) -> bool:
        """Whether it takes nothing more."""

    @property
    def manager(self) -> QueueManager:
        """The queues by their names. Raises `StorageError` unless open."""

    def queue(self, name: bytes) -> FolderQueue:
        """The queue of that name, which comes into being if it must."""


class FolderQueue:
    """One queue of an open folder: what `QueueFolder.queue` returns.

    All but what returns a Deferred raises `StorageError` at once when the folder is not open or the storage fails; a
    Deferred fails with it.
    """

    def __init__(self, name: bytes, folder: QueueFolderLike) -> None:
        self.name = name
        self.folder = folder
        folder.queues[name] = self
        self._store: IQueueStorage | None = None
        self._first_xid = 0
        """Added to the numbers of open reads of these contents."""
        self._durability = DurabilityTracker()
        self._joining = 0

    @property
    def is_closed(self) -> bool:
        """Whether its folder has been closed, or is being closed: it takes nothing more."""
        return self.folder.is_closed

    @property
    def items(self) -> int:
        """How many items are in it, in memory or not; open reads are not counted."""
        return self.underlying().store.items

    @property
    def open_reads(self) -> int:
        """How many of its items are open reads, those that are moving to another queue among them."""
        return self.underlying().store.open_reads

    # Items in.

    def add(self, data: bytes, expiry_ms: int = 0) -> bool:
        """Append an item. False when a limit refuses it: the queue is full, or the item too large.

        `expiry_ms` is when it expires, in milliseconds since the epoch; 0 is never, but for the queue's own maxAge.
        Raises `StorageRefused` while the disk is full.
        """
        check_item(data, expiry_ms)
        return self._is_done(self.folder.manager.put(self.name, data, expiry_ms))

    def continue_(self, xid: int, data: bytes, expiry_ms: int = 0) -> bool:
        """Finish an open read and add an item, in one record: both or neither, whatever happens.

        False when a limit refuses the item, and the read stays open. So it does when this raises, as `add`, or
        `TooFewOpenReads` where the read is not open any more: then the item is another's, and this one is not added.
        A queue with children adds first, and finishes the read when that is safe: a crash may leave both.
        """
        check_item(data, expiry_ms)
        own_xid = self._own_xid(xid)
        return self._is_done(self.folder.manager.continue_(self.name, own_xid, data, expiry_ms))

    # Items out.

    def peek(self) -> Item | None:
        """The head of the queue, which stays there; None as `remove`."""
        item = self.underlying().peek_now()
        return None if item is None else self.to_program_item(item)

    def remove(self, opened: bool = False) -> Item | None:
        """Take the head of the queue; `opened` as an open read, to be confirmed, continued or put back by its `xid`.

        None when none is at hand: the queue is empty, others wait for its items, or its head is on the disk alone, as
        may be in a queue of more than `max_memory_size_bytes`. `wait_remove(0)` tells for certain.
        """
        queue = self.underlying()
        item = queue.take_now(opened)
        return None if item is None else self.finish_take(queue, item, opened)

    def wait_remove(self, deadline_s: float | None = None, opened: bool = False) -> Deferred[Item | None]:
        """Take the head of the queue as soon as there is one; first come, first served.

        Fires with None when so many seconds have gone by (0 waits for the disk alone, None for ever), or when the
        folder is closed.
        """
        return self._wait(deadline_s, opened, peeks=False)

    def wait_peek(self, deadline_s: float | None = None) -> Deferred[Item | None]:
        """The head of the queue, which stays there, as soon as there is one; as `wait_remove`."""
        return self._wait(deadline_s, False, peeks=True)

    def _wait(self, deadline_s: float | None, opens: bool, peeks: bool) -> Deferred[Item | None]:
        try:
            self.underlying()
        except KestrelError as error:
            return fail(error)
        place = DeferredWaiter(self, self.folder.reactor, deadline_s, opens=opens, peeks=peeks)
        if not self._joining and self.folder.scheduler.has_time():
            place.join()
        else:  # whoever takes item after item lets the reactor go on in between
            self._joining += 1
            self.folder.scheduler.continue_later(partial(self._join_later, place))
        return place.result

    def _join_later(self, place: DeferredWaiter[Queue, Item]) -> None:
        self._joining -= 1
        place.join()

    # Open reads.

    def confirm_remove(self, xid: int) -> bool:
        """Finish an open read: its item is gone for good. False when it is not open: it timed out, or was ended.

        Raises `QueueFailed` where the storage has failed since, and its item is back in the queue.
        """
        own_xid, queue = self._own_xid(xid), self.underlying()
        return own_xid in queue.open_read_table and self._is_done(queue.confirm([own_xid]))

    def unremove(self, xid: int) -> bool:
        """Return an open read to the head of the queue, and count that it failed; otherwise as `confirm_remove`."""
        own_xid, queue = self._own_xid(xid), self.underlying()
        return own_xid in queue.open_read_table and self._is_done(queue.abort([own_xid]))

    # What was done is safe, or lost.

    def safe(self) -> Deferred[None]:
        """Fires when all that was done to this queue so far is as safe as its `sync_journal_ms` promises.

        Fails with `QueueFailed` if something of it was lost, or of what was done since the last `safe`: the queue is
        what it was before that.
        """
        return self._durability.safe()

    def _is_done(self, batch: Batch | None) -> bool:
        """Whether something was done; then it is part of that batch."""
        if batch is None:
            return False
        self._durability.add_batch(batch)
        return True

    # The queue behind it, whose contents are others when its storage has failed.

    def underlying(self) -> Queue:
        """The queue as the server has it."""
        return self._known(self.folder.manager.queue(self.name))

    def _known(self, queue: Queue) -> Queue:
        """The same queue, when it is known which contents it has by now."""
        if queue.store is not self._store:
            if self._store is not None:
                self._first_xid += XIDS
            self._store = queue.store
        return queue

    def _own_xid(self, xid: int) -> int:
        """The number by which the contents know that read."""
        self.underlying()
        if xid < self._first_xid:
            raise QueueFailed("the queue's storage failed while the read was open: its item is back in the queue")
        return xid - self._first_xid

    def finish_take(self, queue: Queue, item: Item, opened: bool) -> Item:
        """An item was taken for the program: what it gets."""
        self._is_done(queue.touch())
        if opened:
            queue.add_open_read(item)
        self._known(queue)
        return self.to_program_item(item)

    def deliver(self, line: Queue, item: Item, waiter: Waiter) -> Item:
        """An item arrived for one who waited: what the program gets."""
        return self.to_program_item(item) if waiter.peeks else self.finish_take(line, item, waiter.opens)

    def to_program_item(self, item: Item) -> Item:
        """The program's own copy: that in the queue gets another number when it is opened again.

        An open read has a number that no earlier contents have given.
        """
        xid = self._first_xid + item.xid if item.xid else 0
        return Item(item.data, item.add_ms, item.expiry_ms, item.errors, xid)
