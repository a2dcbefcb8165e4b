"""libkestrel's queues inside a program: one queue with its own folder, several in one folder, or queues of objects."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from twisted.internet.defer import Deferred, DeferredLock, succeed
from twisted.logger import Logger

from kestrel.config.model import QueueSettings
from kestrel.disk.files import Disk
from kestrel.errors import BadQueueName, StorageError
from kestrel.escaping import show_name
from kestrel.library.folder import FolderPath, ProgramFolder, absolute, check_item, check_time, run_to_completion
from kestrel.library.handle import wait_for_all, when_batch_safe, when_batch_settled
from kestrel.library.journaled_config import JournaledQueueConfig, QueueItem, check_reader
from kestrel.library.reader import Reader
from kestrel.queues.context import QueueContext
from kestrel.scroll.name_encoding import DEFAULT_READER, location_of
from kestrel.storage.barrier import combine_batches
from kestrel.storage.folder_resources import RESERVE_BYTES, wall_clock_ms
from kestrel.storage.memory import MemoryStorage
from kestrel.storage.scroll.storage import ScrollStorage

log = Logger(__name__)

T = TypeVar("T")
R = TypeVar("R")


class ItemCodec(Protocol[T]):
    """A converter between objects and the bytes of items."""

    def encode(self, item: T) -> bytes:
        """Return the bytes of `item`."""

    def decode(self, data: bytes) -> T:
        """Return the object that `data` encodes."""


class ScrollFolder(ProgramFolder):
    """The journaled queues of one folder, which is locked from `open` to `close`. Without a `path` they are kept in
    memory.

    `reactor` provides timers, `callFromThread` and a thread pool. `archive` is the folder that receives journal files
    when no reader needs them; with None they are deleted. `reserve_bytes` of disk space are reserved for use when the
    disk is full. `now_ms` is the wall clock.
    """

    def __init__(
        self,
        path: FolderPath | None,
        reactor: Any,
        *,
        archive: FolderPath | None = None,
        reserve_bytes: int = RESERVE_BYTES,
        now_ms: Callable[[], int] = wall_clock_ms,
        disk: Disk | None = None,
    ) -> None:
        super().__init__(reactor)
        self.context = QueueContext(
            self.scheduler.barrier, self.scheduler, reactor, now_ms, _refuse_move, self._storage_failed
        )
        self._storage: ScrollStorage | None = None
        if path is not None:
            self._storage = ScrollStorage(
                absolute(path),
                reactor,
                self._in_thread,
                reserve_bytes=reserve_bytes,
                now_ms=now_ms,
                disk=disk,
                archive=None if archive is None else absolute(archive),
                as_library=True,
            )
        self._queues: dict[bytes, FolderJournaledQueue] = {}
        """Open queues by name."""
        self._readers: dict[bytes, set[bytes]] = {}
        """Names of the readers of queues that are not open, by queue."""

    async def _start(self) -> None:
        if self._storage is not None:
            for name in await self._storage.start(lambda _: QueueSettings()):
                queue, reader = location_of(name)
                self._readers.setdefault(queue, set()).add(DEFAULT_READER if reader is None else reader)

    def queue(self, config: JournaledQueueConfig) -> FolderJournaledQueue:
        """Return the queue that `config` names, and create it if necessary. A queue that is already open keeps its
        config.

        Raises `QueueFailed` if its journal cannot be read, and ValueError if `config` names an archive, which must be
        passed to the folder.
        """
        if config.save_archived_journals is not None:
            raise ValueError("queues that share a folder share its archive: pass archive= to ScrollFolder")
        self.check()
        queue = self._queues.get(config.name)
        if queue is None:
            queue = FolderJournaledQueue(config, self)
            self.adopt(queue)
        elif queue.is_closed:
            raise StorageError(f"queue {config.name!r} is being closed: wait until it is closed")
        return queue

    def adopt(self, queue: FolderJournaledQueue) -> None:
        """Load a queue and add it to the folder. Raises `QueueFailed`."""
        queue.load(self._readers.get(queue.name, ()))
        self._queues[queue.name] = queue

    def storage_for(self, config: JournaledQueueConfig) -> ScrollStorage | MemoryStorage:
        """Return the storage of a queue's readers."""
        return MemoryStorage() if self._storage is None or not config.journaled else self._storage

    def forget(self, queue: FolderJournaledQueue) -> None:
        """Remove a closed queue, and remember its readers for the next queue of its name."""
        was_open = self._queues.pop(queue.name, None) is not None
        if was_open and queue.config.journaled:
            self._readers[queue.name] = {reader.name for reader in queue.readers}

    def _storage_failed(self) -> None:
        """Reopen every reader whose store has failed."""
        for queue in list(self._queues.values()):
            for reader in queue.readers:
                reader.reopen_if_failed()

    async def _stop(self) -> None:
        try:
            await wait_for_all([queue.end() for queue in self._queues.values()])
        finally:
            if self._storage is not None:
                await self._storage.close()


def _refuse_move(name: bytes, data: bytes, done: Collection[bytes], expiry_ms: int) -> NoReturn:
    raise StorageError("the items of journaled queues do not move")


class FolderJournaledQueue:
    """A queue of an open folder, returned by `ScrollFolder.queue`.

    The queue always has a reader. It begins with the default reader, whose name is empty. The first named reader takes
    over the default reader and its items; each later one begins after the last item.
    """

    def __init__(self, config: JournaledQueueConfig, folder: ScrollFolder) -> None:
        self.config = config
        self.name = config.name
        self._folder = folder
        self._context = folder.context
        self._readers: dict[bytes, Reader] = {}
        self._is_closed = False
        self._ending = DeferredLock()
        self._storage: ScrollStorage | MemoryStorage = MemoryStorage()
        """Replaced by `load`."""
        self._puts = 0

    def load(self, names: Iterable[bytes]) -> None:
        """Create the queue's readers, or the default reader if `names` is empty. Raises `QueueFailed`."""
        self._storage = self._folder.storage_for(self.config)
        known = set(names) or {DEFAULT_READER}
        self._readers = {name: self._make(name) for name in sorted(known)}
        if len(known) > 1 and DEFAULT_READER in known:
            log.info("Queue {queue} has named readers: dropped its default reader", queue=show_name(self.name))
            self._delete(self._readers[DEFAULT_READER])

    def _make(self, name: bytes) -> Reader:
        # a memory store numbers its items from 0, a scroll has the ids in its files
        first_id = self._puts + 1 if isinstance(self._storage, MemoryStorage) else 0
        return Reader(name, self.config, self._context, self._storage, first_id)

    def _check(self) -> None:
        if self._is_closed:
            raise StorageError("the queue is closed")
        self._folder.check()

    @property
    def is_closed(self) -> bool:
        """Whether the queue is closed or being closed."""
        return self._is_closed or self._folder.is_closed

    # Readers.

    @property
    def readers(self) -> list[Reader]:
        """The readers, sorted by name."""
        return [reader for _, reader in sorted(self._readers.items())]

    def reader(self, name: bytes = DEFAULT_READER) -> Reader:
        """Return the reader `name`, and create it if necessary.

        The first named reader takes over the default reader with its items, open reads and waiting consumers. Each
        later one begins after the last item that was put. Raises `QueueFailed`, and `BadQueueName`, also for the
        default reader's name if there are named readers.
        """
        check_reader(self.name, name)
        self._check()
        reader = self._readers.get(name)
        if reader is not None:
            return reader
        if name == DEFAULT_READER:
            raise BadQueueName("a queue with named readers has no default reader")
        default = self._readers.get(DEFAULT_READER)
        if default is not None:
            self._rename(default, name)
            return default
        reader = self._readers[name] = self._make(name)
        reader.touch()
        return reader

    def _rename(self, reader: Reader, name: bytes) -> None:
        old = reader.name
        reader.rename(name)
        del self._readers[old]
        self._readers[name] = reader
        reader.serve()

    def _delete(self, reader: Reader) -> None:
        reader.delete()
        del self._readers[reader.name]
        reader.end()

    def drop_reader(self, name: bytes) -> Deferred[None]:
        """Delete a reader with its items and open reads. Fires when that is safe, at once if there is no such reader.

        The last reader is emptied and becomes the default reader.
        """
        check_reader(self.name, name)
        return run_to_completion(self._drop_reader(name))

    async def _drop_reader(self, name: bytes) -> None:
        self._check()
        reader = self._readers.get(name)
        if reader is None:
            return
        if len(self._readers) == 1:
            reader.empty()
            # commit the emptying first: a crash must not leave a renamed reader that still has items
            await reader.checkpoint()
            self._check()
            if self._readers.get(name) is not reader:
                return
        if len(self._readers) > 1:
            self._delete(reader)
        elif name != DEFAULT_READER:
            self._rename(reader, DEFAULT_READER)
        await reader.checkpoint()

    # Items.

    def put(self, data: bytes, expiry_ms: int = 0, add_ms: int | None = None) -> Deferred[None] | None:
        """Put an item for every reader. Return None if it is refused because it is too large or a reader is full.

        Otherwise return a Deferred that fires when the item is as safe as `sync_journal_ms` promises, and fails with
        `QueueFailed` if the item was lost. `expiry_ms` is when it expires, in milliseconds since the epoch, or 0 for
        never. `add_ms` is when it was put, by default now. Raises `StorageError`, or `StorageRefused` while the disk is
        full; then no reader gets the item.
        """
        check_item(data, expiry_ms)
        if add_ms is not None:
            check_time("add_ms", add_ms)
        self._check()
        are_admitted = [reader.admits(len(data)) for reader in self._each_reader()]
        self._check()  # a hook for expired items may have closed the queue
        if not all(are_admitted):
            return None
        readers = list(self._readers.values())
        put_ms = self._context.now_ms() if add_ms is None else add_ms
        self._storage.put([reader.store for reader in readers], data, put_ms, expiry_ms)
        self._puts += 1
        both = combine_batches([reader.item_was_put(len(data), expiry_ms) for reader in readers])
        assert both is not None
        return when_batch_safe(both)

    def flush(self) -> None:
        """Drop all items of all readers, except open reads."""
        self._each(Reader.flush)

    def discard_expired(self, applies_limit: bool = True) -> Deferred[int]:
        """Discard expired items at the heads of all readers. Fires with their number.

        Each reader discards at most `max_expire_sweep` items, unless `applies_limit` is False.
        """
        return Deferred.fromCoroutine(self._discard_expired(applies_limit))

    async def _discard_expired(self, applies_limit: bool) -> int:
        self._check()
        return sum([await reader.discard_expired(applies_limit) for reader in self._each_reader()])

    def evict_waiters(self) -> None:
        """Answer every waiting consumer of every reader with None, as if the queue were empty."""
        self._each(Reader.evict_waiters)

    def _each(self, do: Callable[[Reader], object]) -> None:
        self._check()
        for reader in self._each_reader():
            do(reader)

    def _each_reader(self) -> Iterator[Reader]:
        """Iterate over the current readers. Skip those that are closed during the iteration, for example by a hook."""
        return (reader for reader in list(self._readers.values()) if not reader.is_closed)

    # Closing.

    def checkpoint(self) -> Deferred[None]:
        """Return a Deferred that fires when all changes so far are as safe as `sync_journal_ms` promises.

        Fails with `QueueFailed` if one of them was lost, or a change since the last call.
        """
        return run_to_completion(wait_for_all([reader.checkpoint() for reader in self._readers.values()]))

    def close(self) -> Deferred[None]:
        """Answer waiting consumers with None, return open reads to the queue, and fire when all changes are safe.

        Fails with `QueueFailed` if a change since the last `checkpoint` was lost; the queue is closed anyway. Further
        calls do nothing.
        """
        return run_to_completion(self.end())

    async def end(self) -> None:
        """Close the queue without closing its folder."""
        async with self._ending:
            if not self._is_closed:
                self._is_closed = True
                readers = list(self._readers.values())
                for reader in readers:
                    reader.end()
                await self._ended(readers)

    def erase(self) -> Deferred[None]:
        """Close the queue and delete its files. Fires when the deletion is safe.

        Fails with a `StorageError` if a file cannot be deleted; the queue then stays open with its remaining readers.
        """
        return run_to_completion(self._erase())

    async def _erase(self) -> None:
        async with self._ending:
            self._check()
            readers = list(self._readers.values())
            self._is_closed = True
            try:
                for reader in readers:
                    self._delete(reader)
            except StorageError:
                self._is_closed = False
                raise
            await self._ended(readers)

    async def _ended(self, readers: list[Reader]) -> None:
        """Wait until all changes to the former readers are safe, and remove the queue from its folder.

        Fails with `QueueFailed` if a change was lost.
        """
        for reader in readers:
            while (batch := reader.unsettled_batch) is not None:
                await when_batch_settled(batch)
        self._folder.forget(self)
        await wait_for_all([reader.checkpoint() for reader in readers])

    # Queues of objects.

    def to_blocking_queue(self, codec: ItemCodec[T]) -> JournaledBlockingQueue[T]:
        """Return a queue of the default reader's items as objects, committed when delivered.

        Raises `BadQueueName` if the queue has named readers.
        """
        return JournaledBlockingQueue(self, self.reader(), codec)

    def to_transactional_blocking_queue(self, codec: ItemCodec[T]) -> TransactionalJournaledBlockingQueue[T]:
        """Return a queue of the default reader's items as objects, delivered in transactions.

        Raises `BadQueueName` if the queue has named readers.
        """
        return TransactionalJournaledBlockingQueue(self, self.reader(), codec)

    # Statistics.

    @property
    def items(self) -> int:
        """Number of items of all readers together, including open reads."""
        return sum(reader.items for reader in self._readers.values())

    @property
    def bytes(self) -> int:
        """Bytes of data in the items of all readers together, including open reads."""
        return sum(reader.bytes for reader in self._readers.values())

    @property
    def journal_bytes(self) -> int:
        """Size of the queue's journal files in bytes; 0 if it has none."""
        return next((reader.store.stats.get("journal_bytes", 0) for reader in self._readers.values()), 0)


class JournaledQueue(FolderJournaledQueue):
    """A journaled queue with its own folder, which is locked from `setup` to `close`.

    Without a `path`, or with ``journaled=False``, the queue is kept in memory and uses no files. `reserve_bytes`,
    `now_ms` and `disk` are those of `ScrollFolder`.
    """

    def __init__(
        self,
        config: JournaledQueueConfig,
        path: FolderPath | None,
        reactor: Any,
        *,
        reserve_bytes: int = RESERVE_BYTES,
        now_ms: Callable[[], int] = wall_clock_ms,
        disk: Disk | None = None,
    ) -> None:
        self.folder = ScrollFolder(
            path if config.journaled else None,
            reactor,
            archive=config.save_archived_journals,
            reserve_bytes=reserve_bytes,
            now_ms=now_ms,
            disk=disk,
        )
        super().__init__(config, self.folder)

    def setup(self) -> Deferred[None]:
        """Lock the folder and load the journal. Fails with a `StorageError`, and leaves the folder unlocked then."""
        return self.folder.open_with(lambda: self.folder.adopt(self))

    def close(self) -> Deferred[None]:
        """Close the queue and unlock the folder when all changes are safe, as `ScrollFolder.close` does."""
        return self.folder.close()

    async def _erase(self) -> None:
        try:
            await super()._erase()
        finally:
            await self.folder.close()


class _SingleReaderQueue(Generic[T]):
    """The base class of the queues of objects."""

    def __init__(self, queue: FolderJournaledQueue, reader: Reader, codec: ItemCodec[T]) -> None:
        self._queue = queue
        self._reader = reader
        self._codec = codec

    def __len__(self) -> int:
        return self._reader.items

    @property
    def size(self) -> int:
        """Number of items, including open reads."""
        return self._reader.items

    @property
    def waiter_count(self) -> int:
        """Number of consumers that wait for an item."""
        return self._reader.waiter_count

    def put(self, item: T) -> Deferred[bool]:
        """Append an item. Fire with True when it is as safe as `sync_journal_ms` promises, with False if it is refused.

        Fails with `QueueFailed` if the item was lost. Raises the exceptions of the codec and of `JournaledQueue.put`.
        """
        safe = self._queue.put(self._codec.encode(item))
        return succeed(False) if safe is None else safe.addCallback(lambda _: True)

    def put_head(self, item: T) -> NoReturn:
        """Raise TypeError: a journal is only written at its end."""
        raise TypeError("a journaled queue cannot put an item at its head: a journal is only written at its end")

    def flush(self) -> None:
        """Drop all items, except open reads."""
        self._queue.flush()

    def evict_waiters(self) -> None:
        """Answer every waiting consumer with None, as if the queue were empty."""
        self._reader.evict_waiters()

    def close(self) -> Deferred[None]:
        """Close the underlying queue, as `JournaledQueue.close` does."""
        return self._queue.close()

    def _get(self, deadline_s: float | None, wrap: Callable[[QueueItem, T], R]) -> Deferred[R | None]:
        return self._reader.get(deadline_s).addCallback(self._decoded, wrap)

    def _decoded(self, item: QueueItem | None, wrap: Callable[[QueueItem, T], R]) -> R | None:
        if item is None:
            return None
        try:
            decoded = self._codec.decode(item.data)
        except Exception:
            self._reader.unget(item.id)
            raise
        return wrap(item, decoded)


class JournaledBlockingQueue(_SingleReaderQueue[T]):
    """A queue of objects that commits each item when it is delivered; made by `to_blocking_queue`.

    A crash may deliver the last items again. If the codec cannot decode an item, the get fails with the codec's
    exception. The item returns to the head with one more error, unless `error_handler` removes it. None cannot be an
    item: a get that returns None found nothing.
    """

    def put(self, item: T) -> Deferred[bool]:
        """Append an item. Fire with True when it is as safe as `sync_journal_ms` promises, with False if it is refused.

        Fails with `QueueFailed` if the item was lost. Raises TypeError for None, and the exceptions of the codec.
        """
        if item is None:
            raise TypeError("None cannot be an item: get() returns None if there is no item")
        return super().put(item)

    def get(self, deadline_s: float | None = None) -> Deferred[T | None]:
        """Take the next item. Fire with None after `deadline_s` seconds; without a deadline, wait until there is an
        item.
        """
        return self._get(deadline_s, self._wrap)

    def poll(self) -> Deferred[T | None]:
        """Take the next item without waiting for a put. Fire with None if there is none."""
        return self.get(0)

    def poll_if(self, predicate: Callable[[T], bool]) -> NoReturn:
        """Raise TypeError: a journaled queue cannot examine its head before it delivers it."""
        raise TypeError("a journaled queue does not support poll_if(): it delivers its head without a predicate")

    def _wrap(self, item: QueueItem, decoded: T) -> T:
        self._reader.commit(item.id)
        return decoded


class Transaction(Generic[T]):
    """An item that was delivered and is not yet committed."""

    __slots__ = ("_id", "_reader", "item")

    def __init__(self, item: T, reader: Reader, item_id: int) -> None:
        self.item = item
        self._reader = reader
        self._id = item_id

    def commit(self) -> bool:
        """Remove the item permanently. Return False if it is no longer open."""
        return self._reader.commit(self._id)

    def rollback(self) -> bool:
        """Return the item to the head of the queue with one more error. Return False if it is no longer open."""
        return self._reader.unget(self._id)


class TransactionalJournaledBlockingQueue(_SingleReaderQueue[T]):
    """A queue of objects that delivers each item in a transaction; made by `to_transactional_blocking_queue`.

    If the codec cannot decode an item, the item is rolled back and the get fails with the codec's exception.
    """

    def get(self, deadline_s: float | None = None) -> Deferred[Transaction[T] | None]:
        """Take the next item in a transaction. Fire with None after `deadline_s` seconds; without a deadline, wait for
        an item.
        """
        return self._get(deadline_s, self._wrap)

    def poll(self) -> Deferred[Transaction[T] | None]:
        """Take the next item in a transaction without waiting for a put. Fire with None if there is none."""
        return self.get(0)

    def _wrap(self, item: QueueItem, decoded: T) -> Transaction[T]:
        return Transaction(decoded, self._reader, item.id)
