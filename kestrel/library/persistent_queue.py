"""Kestrel's queues inside a program: one queue with its own folder, or several in one folder."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, TypeAlias

from twisted.internet.defer import Deferred

from kestrel.config.model import Config, QueueSettings
from kestrel.config.resolved import ResolvedConfig
from kestrel.disk.files import Disk
from kestrel.errors import QueueFailed, StorageError
from kestrel.item import Item
from kestrel.library.folder import FolderPath, ProgramFolder, absolute, check_item, check_name, check_settings
from kestrel.library.handle import READ_WAS_RETURNED, QueueHandle, wait_for_all, when_batch_settled
from kestrel.queues.expiry_sweeper import ExpirySweeper
from kestrel.queues.manager import QueueManager
from kestrel.queues.queue import Queue
from kestrel.queues.waiters import Waiter
from kestrel.storage.barrier import Batch
from kestrel.storage.folder_resources import RESERVE_BYTES, wall_clock_ms
from kestrel.storage.interfaces import SettingsFor
from kestrel.storage.journal.storage import JournalStorage
from kestrel.storage.memory import MemoryStorage

Lookup: TypeAlias = "Callable[[bytes], FolderQueue | None]"
"""Function that returns the queue for a name that items move to, or None if there is none."""

XIDS: Final = 1 << 31
"""Number of xids for open reads of one queue store. A store that replaces a failed one uses the next range of xids."""


class QueueFolder(ProgramFolder):
    """The queues of one folder, which is locked from `open` to `close`.

    `reactor` provides timers, `callFromThread` and a thread pool. `settings_for` returns the settings of a queue when
    it is first used. `reserve_bytes` of disk space are reserved for use when the disk is full. `now_ms` is the wall
    clock.
    """

    def __init__(
        self,
        path: FolderPath,
        reactor: Any,
        *,
        settings_for: SettingsFor = lambda name: QueueSettings(),
        lookup: Lookup | None = None,
        expire_every_s: float | None = None,
        reserve_bytes: int = RESERVE_BYTES,
        now_ms: Callable[[], int] = wall_clock_ms,
        disk: Disk | None = None,
    ) -> None:
        super().__init__(reactor)
        self._lookup = lookup
        self._expire_every_s = expire_every_s
        storage = JournalStorage(
            absolute(path), reactor, self._in_thread, reserve_bytes=reserve_bytes, now_ms=now_ms, disk=disk
        )
        # `FolderQueue.remove` does not wait, so that all items of a small queue must be in memory from the start.
        storage.trusts_logs = False
        config = ResolvedConfig(Config())
        config.settings_for = lambda name: check_settings(name, settings_for(name))
        self._manager = QueueManager(
            storage, MemoryStorage(), config, self.scheduler, reactor, now_ms, put_by_name=self._put_by_name
        )
        self._expiry_sweeper = ExpirySweeper(self._manager, self.scheduler, reactor)
        self.queues: dict[bytes, FolderQueue] = {}
        """Queue objects that the program has requested, by name. Each name has one object, which knows its open reads.
        """

    async def _start(self) -> None:
        await self._manager.start()
        if self._expire_every_s is not None:
            self._expiry_sweeper.every(round(self._expire_every_s * 1000))

    @property
    def manager(self) -> QueueManager:
        """The queue manager, for operations that this class lacks. Raises `StorageError` unless the folder is open."""
        if not self._is_open:
            self.check()
        return self._manager

    def queue(self, name: bytes) -> FolderQueue:
        """Return the queue `name`, and create it if necessary.

        Raises `BadQueueName`, and `QueueFailed` if its journal cannot be read.
        """
        check_name(name)
        self.manager.queue(name)
        return self.queues.get(name) or FolderQueue(name, self)

    async def _stop(self) -> None:
        self._expiry_sweeper.stop()
        self._manager.wake_all()
        try:
            await self._all_settled()
            await wait_for_all([queue.safe() for queue in self.queues.values()])
        finally:
            await self._manager.close()

    async def _all_settled(self) -> None:
        """Wait for all batches, including those of moves: a move is confirmed in a batch after it has arrived."""
        while batches := [
            batch for queue in self._manager.queues_including_masked() if (batch := queue.unsettled_batch) is not None
        ]:
            for batch in batches:
                await when_batch_settled(batch)

    def _put_by_name(
        self, name: bytes, data: bytes, done: Collection[bytes], expiry_ms: int
    ) -> Mapping[bytes, Batch] | None:
        if self._lookup is None:
            return self._manager.put_moved(name, data, done, expiry_ms)
        queue = self._lookup(name)
        if queue is None:
            raise StorageError(f"lookup found no queue {name!r}")
        return queue.folder.manager.put_moved(queue.name, data, done, expiry_ms)


class FolderQueue(QueueHandle[Item]):
    """A queue of an open folder, returned by `QueueFolder.queue`.

    Methods that return a Deferred fail with `StorageError` if the folder is not open or the storage fails. The others
    raise it.
    """

    def __init__(self, name: bytes, folder: QueueFolder) -> None:
        super().__init__(folder.reactor, folder.scheduler)
        self.name = name
        self.folder = folder
        folder.queues[name] = self
        self._first_xid = 0
        """Added to the xids of the current queue store."""

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
        return self._wait(deadline_s, opens=opened, peeks=False)

    def wait_peek(self, deadline_s: float | None = None) -> Deferred[Item | None]:
        """Peek at the head of the queue as soon as there is one, with the deadline of `wait_remove`."""
        return self._wait(deadline_s, opens=False, peeks=True)

    # Open reads.

    def confirm_remove(self, xid: int) -> bool:
        """Finish an open read and remove its item permanently. Return False if it is not open, for example after a
        timeout.

        Raises `QueueFailed` if the storage has failed since, which returned the item to the queue.
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
        return self._known(self.folder.manager.queue(self.name))

    def _store_was_replaced(self) -> None:
        self._first_xid += XIDS

    def _own_xid(self, xid: int) -> int:
        """Return the current store's xid of an open read. Raises `QueueFailed` for a read of an earlier store."""
        self.underlying()
        if xid < self._first_xid:
            raise QueueFailed(READ_WAS_RETURNED)
        return xid - self._first_xid

    def finish_take(self, queue: Queue, item: Item, opened: bool) -> Item:
        """Record that the program took an item, and return the program's copy of it."""
        self._track(queue.touch())
        if opened:
            queue.add_open_read(item)
        self._known(queue)
        return self.to_program_item(item)

    def deliver(self, queue: Queue, item: Item, waiter: Waiter) -> Item:
        return self.to_program_item(item) if waiter.peeks else self.finish_take(queue, item, waiter.opens)

    def to_program_item(self, item: Item) -> Item:
        """Return a copy of the item for the program, since the queue's own item changes when it is opened again.

        An open read gets an xid that no earlier store has used.
        """
        xid = self._first_xid + item.xid if item.xid else 0
        return Item(item.data, item.add_ms, item.expiry_ms, item.errors, xid)


class PersistentQueue(FolderQueue):
    """A queue with its own folder, which is locked from `setup` to `close`. The arguments are those of `QueueFolder`.

    `settings` apply to this queue. Queues that are created in the folder when items move to them have default settings.
    """

    def __init__(
        self,
        name: bytes,
        path: FolderPath,
        reactor: Any,
        *,
        settings: QueueSettings | None = None,
        lookup: Lookup | None = None,
        expire_every_s: float | None = None,
        reserve_bytes: int = RESERVE_BYTES,
        now_ms: Callable[[], int] = wall_clock_ms,
        disk: Disk | None = None,
    ) -> None:
        check_name(name)
        own, others = check_settings(name, settings or QueueSettings()), QueueSettings()
        folder = QueueFolder(
            path,
            reactor,
            settings_for=lambda other: own if other == name else others,
            lookup=lookup,
            expire_every_s=expire_every_s,
            reserve_bytes=reserve_bytes,
            now_ms=now_ms,
            disk=disk,
        )
        super().__init__(name, folder)

    def setup(self) -> Deferred[None]:
        """Lock the folder and replay its journals.

        Fails with a `StorageError`, or with `BadQueueName` if the name is too long for a file name. The folder is
        unlocked then.
        """
        return self.folder.open_with(self.underlying)

    def close(self) -> Deferred[None]:
        """Close the queue and unlock the folder when all changes are safe, as `QueueFolder.close` does."""
        return self.folder.close()
