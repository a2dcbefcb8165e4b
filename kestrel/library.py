"""Kestrel's queues inside a Twisted program: no port, no other process, the same journals as the server's.

    from kestrel.config.model import QueueSettings      # QueueSettings(max_items=1000, sync_journal_ms=0)
    from kestrel.library import PersistentQueue, QueueFolder

    queue = PersistentQueue(b"work", "/var/spool/my-program", reactor)
    await queue.setup()                        # owns the folder and replays its journals

    queue.add(b"hello")                        # True, or False where a limit refuses it
    await queue.safe()                         # it is as safe now as syncJournal promises

    item = await queue.wait_remove(deadline_s=5, opened=True)
    if item is not None:
        work_on(item.data)
        queue.confirm_remove(item.xid)         # done; or queue.unremove(item.xid): back to the head
                                               # or queue.continue_(item.xid, b"next step"): done, and more to do
    await queue.close()

Several queues share a folder, and the program owns that folder as a whole:

    folder = QueueFolder("/var/spool/my-program", reactor, settings_for=my_settings)
    await folder.open()
    work, mail = folder.queue(b"work"), folder.queue(b"mail")
    ...
    await folder.close()

All is done on the reactor's thread. What changes a queue is done in memory when the call returns, is written at the end
of the reactor's turn, and is as safe as the queue's `syncJournal` promises when `safe` fires; who does not ask finds a
loss in the log alone. What has to be waited for is a Deferred: await it, or give it callbacks. To cancel one is to wait
no longer: it leaves the line, and no item is lost with it.

Limits, expiry, timeouts of open reads, moves to other queues and fanout (a queue ``work+mail`` of the same folder gets
what is added to ``work``) are those of the server, by `kestrel.config.model.QueueSettings`. What has expired leaves
when the queue is used, and with `expire_every_s` also by itself.

Items that expire (`expire_to_queue`) or fail too often (`max_redeliveries`, `error_queue`) move to queues of the same
folder; or to those that `lookup` finds, which is given a name and returns a queue of whatever folder, or None. Where
there is no such queue, or it is closed, the item stays an open read of its old one, so that nothing is lost; the log
says so, and it is tried again every second. An item is confirmed when it is safe in its new queue.

Errors are those of `kestrel.errors`. `StorageError`: the folder cannot be had (`FolderInUse`: somebody else has it), is
not open, or its disk fails (`QueueFailed`) or is full (`StorageRefused`: adds are refused, the rest goes on).
`ClientError`: a name that no queue can have (`BadQueueName`), a read that is not open (`NotThatManyOpen`).

Before a program ends it closes its queues, also at a signal:

    reactor.addSystemEventTrigger("before", "shutdown", queue.close)

One that ends without loses what it did in the reactor's last turn, and open reads are back at the head of the queue.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Coroutine, Mapping
from functools import partial
from types import UnionType
from typing import Any, Final, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

from twisted.internet.defer import Deferred, DeferredLock, fail
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.threads import deferToThreadPool

from kestrel.config.model import Config, QueueSettings
from kestrel.config.resolved import ResolvedConfig
from kestrel.config.setting import settings_of
from kestrel.disk.files import Disk
from kestrel.errors import KestrelError, QueueFailed, StorageError
from kestrel.item import Item
from kestrel.names import check_queue_name
from kestrel.queues.manager import QueueManager
from kestrel.queues.queue import Queue
from kestrel.queues.rounds import ExpiryRounds
from kestrel.queues.services import wall_clock_ms
from kestrel.queues.turns import Turns
from kestrel.queues.waiters import Waiter
from kestrel.storage.barrier import Barrier, Batch
from kestrel.storage.interfaces import IQueueStorage, SettingsFor
from kestrel.storage.journal import RESERVE_BYTES, JournalStorage
from kestrel.storage.memory import MemoryStorage

T = TypeVar("T")

FolderPath: TypeAlias = "str | bytes | os.PathLike[str]"

Lookup: TypeAlias = "Callable[[bytes], FolderQueue | None]"
"""Finds the queue of that name that items are to move to; None if there is none."""

XIDS: Final = 1 << 31
"""How many numbers the contents of a queue have for open reads. Contents that replace them get the next so many."""


def _check_name(name: object) -> None:
    if not isinstance(name, bytes):
        raise TypeError(f"a queue's name is bytes, as in b'work', and not {name!r}")
    check_queue_name(name)


def _check_item(data: object, expiry_ms: object) -> None:
    if not isinstance(data, bytes):
        raise TypeError(f"an item is bytes, and not {type(data).__name__}")
    if not isinstance(expiry_ms, int):
        raise TypeError(f"expiry_ms is a whole number of milliseconds since the epoch, and not {expiry_ms!r}")


def _checked(name: bytes, settings: QueueSettings) -> QueueSettings:
    """The settings, unless one has a value that no file could have given it: then TypeError or ValueError."""
    for field, setting in settings_of(QueueSettings).items():
        value = getattr(settings, field)
        kinds = _KINDS_OF_VALUES[field]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            names = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
            raise TypeError(f"{field} ({setting.kestrel_name}) is {names}, and not {value!r}")
    if name in (settings.expire_to_queue, settings.error_queue):
        raise ValueError(f"the items of queue {name!r} would move to itself")
    return settings


def _kinds_of(hint: Any) -> tuple[type, ...]:
    return tuple(get_origin(each) or each for each in (get_args(hint) if isinstance(hint, UnionType) else (hint,)))


_KINDS_OF_VALUES: Final = {name: _kinds_of(hint) for name, hint in get_type_hints(QueueSettings).items()}


class QueueFolder:
    """The queues of one folder, which it owns from `open` to `close`.

    `reactor` has timers, `callFromThread` and a thread pool; a queue's settings are what `settings_for` says at its
    first use. `reserve_bytes` of disk space are put by for the time when the disk is full. `now_ms` is the wall clock.
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
        self.reactor = reactor
        self._lookup = lookup
        self._expire_every_s = expire_every_s
        barrier = Barrier(reactor.callFromThread)
        self.turns = Turns(barrier, reactor.callFromThread, reactor.seconds)
        storage = JournalStorage(
            os.path.abspath(os.fsencode(path)),
            reactor,
            self._in_thread,
            reserve_bytes=reserve_bytes,
            now_ms=now_ms,
            disk=disk,
        )
        config = ResolvedConfig(Config())
        config.settings_for = lambda name: _checked(name, settings_for(name))
        self._manager = QueueManager(
            storage, MemoryStorage(), config, self.turns, reactor, now_ms, put_elsewhere=self._put_elsewhere
        )
        self._rounds = ExpiryRounds(self._manager, self.turns, reactor)
        self.queues: dict[bytes, FolderQueue] = {}
        """Those that the program has asked for, by name: one object for each, which knows its open reads."""
        self._changing = DeferredLock()
        self._is_open = False
        self._is_closed = False

    def _in_thread(self, function: Callable[..., Any], *args: object) -> Deferred[Any]:
        return deferToThreadPool(self.reactor, self.reactor.getThreadPool(), function, *args)

    def open(self) -> Deferred[None]:
        """Own the folder, which is made if there is none, and replay the journals in it.

        Fails with a `StorageError`, `FolderInUse` among them. A queue whose journal cannot be read fails no `open`: the
        log says so, and each use of the queue tries again.
        """
        return _even_if_cancelled(self._open())

    async def _open(self) -> None:
        async with self._changing:
            if self._is_open or self._is_closed:
                raise StorageError("a queue folder is opened once")
            await self._manager.start()
            self._is_open = True
            self.turns.open()
            if self._expire_every_s is not None:
                self._rounds.every(round(self._expire_every_s * 1000))

    @property
    def is_closed(self) -> bool:
        """Whether it has been closed, or is being closed: it takes nothing more."""
        return self._is_closed

    @property
    def manager(self) -> QueueManager:
        """The queues by their names; for whoever wants more of them than is here. Raises `StorageError` unless open."""
        if self._is_closed:
            raise StorageError("the queue folder is closed")
        if not self._is_open:
            raise StorageError("the queue folder is not open yet")
        return self._manager

    def queue(self, name: bytes) -> FolderQueue:
        """The queue of that name, which comes into being if it must.

        Raises `BadQueueName`, and `QueueFailed` where its journal cannot be read.
        """
        _check_name(name)
        self.manager.queue(name)
        return self.queues.get(name) or FolderQueue(name, self)

    def close(self) -> Deferred[None]:
        """Answer who waits as an empty queue does, make all that was done safe, and let the folder go.

        Fails with `QueueFailed` where something done since the last `safe` of its queue was lost; the folder is closed
        all the same. Closing twice is closing once.
        """
        return _even_if_cancelled(self._close())

    async def _close(self) -> None:
        async with self._changing:
            was_open, self._is_open = self._is_open, False
            self._is_closed = True
            if not was_open:
                return
            self._rounds.stop()
            self._manager.wake_all()
            try:
                await self._all_settled()
                for queue in self.queues.values():
                    await queue.safe()
            finally:
                await self._manager.close()

    async def _all_settled(self) -> None:
        """Wait for every batch, and for those that they lead to: a move is confirmed when it has arrived."""
        while batches := _unsettled(self._manager.even_masked_queues()):
            for batch in batches:
                await _settled(batch)

    def _put_elsewhere(self, name: bytes, data: bytes, done: Collection[bytes]) -> Mapping[bytes, Batch] | None:
        if self._lookup is None:
            return self._manager.put_moved(name, data, done)
        queue = self._lookup(name)
        if queue is None:
            raise StorageError(f"no queue {name!r} was found")
        return queue.folder.manager.put_moved(queue.name, data, done)


class FolderQueue:
    """One queue of an open folder: what `QueueFolder.queue` returns.

    All but what returns a Deferred raises `StorageError` at once when the folder is not open or the storage fails; a
    Deferred fails with it.
    """

    def __init__(self, name: bytes, folder: QueueFolder) -> None:
        self.name = name
        self.folder = folder
        folder.queues[name] = self
        self._contents: IQueueStorage | None = None
        self._first_xid = 0
        """Added to the numbers of open reads of these contents."""
        self._unsettled: dict[Batch, None] = {}
        self._loss: Exception | None = None
        """Why something was lost that `safe` has not told yet."""
        self._joining = 0

    @property
    def items(self) -> int:
        """How many items are in it, in memory or not; open reads are not counted."""
        return self.behind().contents.items

    @property
    def open_reads(self) -> int:
        """How many of its items are open reads, those that are moving to another queue among them."""
        return self.behind().contents.open_reads

    # Items in.

    def add(self, data: bytes, expiry_ms: int = 0) -> bool:
        """Append an item. False when a limit refuses it: the queue is full, or the item too large.

        `expiry_ms` is when it expires, in milliseconds since the epoch; 0 is never, but for the queue's own maxAge.
        Raises `StorageRefused` while the disk is full.
        """
        _check_item(data, expiry_ms)
        return self._is_done(self.folder.manager.put(self.name, data, expiry_ms))

    def continue_(self, xid: int, data: bytes, expiry_ms: int = 0) -> bool:
        """Finish an open read and add an item, in one record: both or neither, whatever happens.

        False when a limit refuses the item, and the read stays open. So it does when this raises, as `add`, or
        `NotThatManyOpen` where the read is not open any more: then the item is another's, and this one is not added.
        A queue with children adds first, and finishes the read when that is safe: a crash may leave both.
        """
        _check_item(data, expiry_ms)
        own_xid = self._own_xid(xid)
        return self._is_done(self.folder.manager.continue_(self.name, own_xid, data, expiry_ms))

    # Items out.

    def peek(self) -> Item | None:
        """The head of the queue, which stays there; None as `remove`."""
        item = self.behind().peek_now()
        return None if item is None else self.own(item)

    def remove(self, opened: bool = False) -> Item | None:
        """Take the head of the queue; `opened` as an open read, to be confirmed, continued or put back by its `xid`.

        None when none is at hand: the queue is empty, others wait for its items, or its head is on the disk alone, as
        may be in a queue of more than `max_memory_size_bytes`. `wait_remove(0)` tells for certain.
        """
        queue = self.behind()
        item = queue.take_now(opened)
        return None if item is None else self.taken(queue, item, opened)

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
            self.behind()
        except KestrelError as error:
            return fail(error)
        place = _Place(self, opens, peeks, deadline_s)
        if not self._joining and self.folder.turns.may_work():
            place.join()
        else:  # whoever takes item after item lets the reactor go on in between
            self._joining += 1
            self.folder.turns.go_on_later(partial(self._join_later, place))
        return place.arrival

    def _join_later(self, place: _Place) -> None:
        self._joining -= 1
        place.join()

    # Open reads.

    def confirm_remove(self, xid: int) -> bool:
        """Finish an open read: its item is gone for good. False when it is not open: it timed out, or was ended.

        Raises `QueueFailed` where the storage has failed since, and its item is back in the queue.
        """
        own_xid, queue = self._own_xid(xid), self.behind()
        return own_xid in queue.held and self._is_done(queue.confirm([own_xid]))

    def unremove(self, xid: int) -> bool:
        """Return an open read to the head of the queue, and count that it failed; otherwise as `confirm_remove`."""
        own_xid, queue = self._own_xid(xid), self.behind()
        return own_xid in queue.held and self._is_done(queue.abort([own_xid]))

    # What was done is safe, or lost.

    def safe(self) -> Deferred[None]:
        """Fires when all that was done to this queue so far is as safe as its `sync_journal_ms` promises.

        Fails with `QueueFailed` if something of it was lost, or of what was done since the last `safe`: the queue is
        what it was before that.
        """
        return Deferred.fromCoroutine(self._safe())

    async def _safe(self) -> None:
        batches = list(self._unsettled)
        for batch in batches:
            await _settled(batch)
        losses = [batch.failure for batch in batches if batch.failure is not None]
        loss, self._loss = losses[0] if losses else self._loss, None
        if loss is not None:
            raise QueueFailed(str(loss)) from loss

    def _is_done(self, batch: Batch | None) -> bool:
        """Whether something was done; then it is part of that batch."""
        if batch is None:
            return False
        if not batch.is_settled and batch not in self._unsettled:
            self._unsettled[batch] = None
            batch.when_settled(partial(self._batch_settled, batch))
        return True

    def _batch_settled(self, batch: Batch) -> None:
        del self._unsettled[batch]
        self._loss = batch.failure or self._loss

    # The queue behind it, whose contents are others when its storage has failed.

    def behind(self) -> Queue:
        """The queue as the server has it."""
        return self._known(self.folder.manager.queue(self.name))

    def _known(self, queue: Queue) -> Queue:
        """The same queue, when it is known which contents it has by now."""
        if queue.contents is not self._contents:
            if self._contents is not None:
                self._first_xid += XIDS
            self._contents = queue.contents
        return queue

    def _own_xid(self, xid: int) -> int:
        """The number by which the contents know that read."""
        self.behind()
        if xid < self._first_xid:
            raise QueueFailed("the queue's storage failed while the read was open: its item is back in the queue")
        return xid - self._first_xid

    def taken(self, queue: Queue, item: Item, opened: bool) -> Item:
        """An item was taken for the program: what it gets."""
        self._is_done(queue.touch())
        if opened:
            queue.read_opened(item)
        self._known(queue)
        return self.own(item)

    def own(self, item: Item) -> Item:
        """The program's own copy: that in the queue gets another number when it is opened again.

        An open read has a number that no earlier contents have given.
        """
        xid = self._first_xid + item.xid if item.xid else 0
        return Item(item.data, item.add_ms, item.expiry_ms, item.errors, xid)


class _Place:
    """One who waits for an item of a queue: the place in line, and the Deferred that fires once."""

    def __init__(self, handle: FolderQueue, opens: bool, peeks: bool, deadline_s: float | None) -> None:
        self.arrival: Deferred[Item | None] = Deferred(lambda _: self._leave())
        self._handle = handle
        self._queue: Queue | None = None
        """Whose line it is; None before it stands in one."""
        patient = deadline_s is None or deadline_s > 0
        self._waiter = Waiter(self._item_arrived, opens=opens, peeks=peeks, patient=patient)
        self._timer: IDelayedCall | None = None
        if deadline_s is not None and patient:
            self._timer = handle.folder.reactor.callLater(deadline_s, self._time_is_over)

    def join(self) -> None:
        """Stand in line, unless that is over already; the item may arrive at once."""
        if self.arrival.called:
            return
        if self._handle.folder.is_closed:
            self._item_arrived(None, None)
            return
        try:
            self._queue = self._handle.behind()
        except KestrelError as error:
            self._item_arrived(None, error)
        else:
            self._queue.join(self._waiter)

    def _time_is_over(self) -> None:
        self._timer = None
        if self._queue is None or self._queue.is_finding_head:
            self._waiter.patient = False  # it may not be empty: it is answered when that is known
        else:
            self._item_arrived(None, None)

    def _leave(self) -> None:
        if self._queue is not None:
            self._queue.waiting.leave(self._waiter)
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _item_arrived(self, item: Item | None, error: Exception | None) -> None:
        self._leave()
        if error is not None:
            self.arrival.errback(error)
        elif item is None or self._queue is None:
            self.arrival.callback(None)
        elif self._waiter.peeks:
            self.arrival.callback(self._handle.own(item))
        else:
            self.arrival.callback(self._handle.taken(self._queue, item, self._waiter.opens))


class PersistentQueue(FolderQueue):
    """A queue with a folder of its own, which it owns from `setup` to `close`; the rest as `QueueFolder` says.

    `settings` are those of this queue. Others come into being in the folder when items move to them.
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
        _check_name(name)
        own, others = _checked(name, settings or QueueSettings()), QueueSettings()
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
        """Own the folder and replay the journals in it.

        Fails with a `StorageError`, or a `BadQueueName` where the name is too long for a file, and owns nothing then.
        """
        return _even_if_cancelled(self._setup())

    async def _setup(self) -> None:
        await self.folder.open()
        try:
            self.behind()
        except KestrelError:
            await self.folder.close()
            raise

    def close(self) -> Deferred[None]:
        """Let the folder go when all is safe, as `QueueFolder.close`."""
        return self.folder.close()

    @property
    def is_closed(self) -> bool:
        """Whether it has been closed, or is being closed: it takes nothing more."""
        return self.folder.is_closed


def _unsettled(queues: list[Queue]) -> list[Batch]:
    """Their latest batches, as far as they are not safe yet."""
    return [batch for queue in queues if (batch := queue.unsettled_batch) is not None]


def _settled(batch: Batch) -> Deferred[None]:
    """Fires when the batch is safe or lost."""
    done: Deferred[None] = Deferred()
    batch.when_settled(partial(done.callback, None))
    return done


def _even_if_cancelled(coroutine: Coroutine[Deferred[Any], Any, T]) -> Deferred[T]:
    """What the coroutine returns. It goes to its end, whoever stops waiting for it: the folder is owned, or it is not.
    """
    result: Deferred[T] = Deferred()
    Deferred.fromCoroutine(coroutine).addCallbacks(result.callback, result.errback)
    return result
