"""A journaled queue: one list of items, and readers that each have a head of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from twisted.internet.defer import Deferred, DeferredLock
from twisted.logger import Logger
from twisted.python.failure import Failure

from kestrel.errors import BadQueueName, StorageError
from kestrel.library.arguments import check_item, check_time
from kestrel.library.blocking_queues import ItemCodec, JournaledBlockingQueue, TransactionalJournaledBlockingQueue
from kestrel.library.deferreds import run_to_completion, when_batch_settled
from kestrel.library.journaled_config import JournaledQueueConfig, check_reader
from kestrel.library.reader import Reader
from kestrel.library.reader_stores import MemoryReaderStores, ReaderStores
from kestrel.queues.context import RuntimeContext
from kestrel.scroll.name_encoding import DEFAULT_READER
from kestrel.storage.barrier import Batch, all_of

log = Logger(__name__)

T = TypeVar("T")


class ScrollFolderLike(Protocol):
    """The folder of a queue (`kestrel.library.scroll_folder.ScrollFolder`)."""

    context: RuntimeContext

    def reader_stores_for(self, config: JournaledQueueConfig) -> ReaderStores:
        """Where the items of such a queue are to be kept. Raises `StorageError` unless the folder is open."""

    def check(self) -> None:
        """Raise `StorageError` unless the folder is open."""

    def forget(self, queue: FolderJournaledQueue) -> None:
        """That queue is closed; a later one of its name will have these readers."""


class FolderJournaledQueue:
    """One queue of an open folder: what `ScrollFolder.queue` returns.

    There is always a reader: the default one, whose name is empty, until there are named ones. The first of those takes
    its place and its items; one that comes later begins behind the last item.
    """

    def __init__(self, config: JournaledQueueConfig, folder: ScrollFolderLike) -> None:
        self.config = config
        self.name = config.name
        self._folder = folder
        self._context = folder.context
        self._readers: dict[bytes, Reader] = {}
        self._is_closed = False
        self._ending = DeferredLock()
        self._reader_stores: ReaderStores = MemoryReaderStores(config)
        """Another one from `load` on."""

    def load(self, names: Iterable[bytes]) -> None:
        """It has these readers from now on; or the default one, if that is none. Raises `QueueFailed`."""
        self._reader_stores = self._folder.reader_stores_for(self.config)
        known = set(names) or {DEFAULT_READER}
        self._readers = {name: self._make(name) for name in sorted(known)}
        if len(known) > 1 and DEFAULT_READER in known:
            log.info("Queue {queue!r} has named readers: its default reader is dropped", queue=self.name)
            self._delete(self._readers[DEFAULT_READER])

    def _make(self, name: bytes) -> Reader:
        return Reader(name, self.config.reader_config(name), self._context, self._reader_stores)

    def _check(self) -> None:
        if self._is_closed:
            raise StorageError("the queue is closed")
        self._folder.check()

    @property
    def is_closed(self) -> bool:
        """Whether it has been closed, or is being closed: it takes nothing more."""
        return self._is_closed

    # Readers.

    @property
    def readers(self) -> list[Reader]:
        """Those that there are, by name."""
        return [reader for _, reader in sorted(self._readers.items())]

    def reader(self, name: bytes = DEFAULT_READER) -> Reader:
        """The reader of that name, which comes into being if it must.

        The first named one is the default reader until then, with its items, open reads and consumers in line; any
        other begins behind the last item that was put. Raises `BadQueueName`, also where the default reader is wanted
        and there are named ones, and `QueueFailed`.
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
        reader.rename(name, self.config.reader_config(name))
        del self._readers[old]
        self._readers[name] = reader
        reader.serve()

    def _delete(self, reader: Reader) -> None:
        reader.delete()
        del self._readers[reader.name]
        reader.end()

    def drop_reader(self, name: bytes) -> Deferred[None]:
        """Forget a reader with all that it has; fires when that is safe. One that is not there is gone already.

        The last one is emptied, and is the default reader from then on.
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
            await reader.checkpoint()  # wherever a crash falls, what it had is gone before its name is
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
        """Put an item for every reader. None when it is refused, because it is too large or a reader is full.

        Else a Deferred, which fires when the item is as safe as `sync_journal_ms` promises, and fails with
        `QueueFailed` if it was lost. `expiry_ms` is when it expires, in milliseconds since the epoch, 0 is never;
        `add_ms` is when it was put, if not now. Raises `StorageError`, among them `StorageRefused` while the disk is
        full; then no reader has it.
        """
        check_item(data, expiry_ms)
        if add_ms is not None:
            check_time("add_ms", add_ms)
        most_bytes = self.config.max_item_size_bytes
        self._check()
        if most_bytes is not None and len(data) > most_bytes:
            return None
        for reader in self._each_reader():
            reader.expire_before_put()
        self._check()  # what has expired may have led to anything
        readers = list(self._readers.values())
        if not all(reader.can_put for reader in readers):
            return None
        put_ms = self._context.now_ms() if add_ms is None else add_ms
        self._reader_stores.put(data, put_ms, expiry_ms, list(self._readers))
        both = all_of([reader.item_was_put(len(data)) for reader in readers])
        for reader in readers:
            reader.serve()
        assert both is not None
        return _when_durable(both)

    def flush(self) -> None:
        """Drop all items of all readers, but for open reads."""
        self._each(Reader.flush)

    def discard_expired(self, applies_limit: bool = True) -> Deferred[int]:
        """Discard what has expired at the heads, each reader within its `max_expire_sweep` unless told otherwise.

        Fires with how many that were, all readers together.
        """
        return Deferred.fromCoroutine(self._discard_expired(applies_limit))

    async def _discard_expired(self, applies_limit: bool) -> int:
        self._check()
        return sum([await reader.discard_expired(applies_limit) for reader in self._each_reader()])

    def evict_waiters(self) -> None:
        """Answer everyone in line at any reader as an empty queue does."""
        self._each(Reader.evict_waiters)

    def _each(self, do: Callable[[Reader], object]) -> None:
        self._check()
        for reader in self._each_reader():
            do(reader)

    def _each_reader(self) -> Iterator[Reader]:
        """Those that there are now, but for those that are gone by their turn: what is done may lead to anything."""
        return (reader for reader in list(self._readers.values()) if not reader.is_closed)

    # The end.

    def checkpoint(self) -> Deferred[None]:
        """Fires when all that was done to any reader so far is as safe as `sync_journal_ms` promises.

        Fails with `QueueFailed` if something of it was lost, or of what was done since this was asked last.
        """
        return run_to_completion(self._checkpoint(list(self._readers.values())))

    @staticmethod
    async def _checkpoint(readers: list[Reader]) -> None:
        loss: Exception | None = None
        for reader in readers:
            try:
                await reader.checkpoint()
            except StorageError as error:
                loss = loss or error
        if loss is not None:
            raise loss

    def close(self) -> Deferred[None]:
        """Answer who waits as an empty queue does, return open reads, and make all that was done safe.

        Fails with `QueueFailed` where something was lost that was done since the last `checkpoint`; it is closed all
        the same. Closing twice is closing once.
        """
        return run_to_completion(self._close())

    async def _close(self) -> None:
        await self.end()

    async def end(self) -> None:
        """What `close` does to the queue itself: all of it, but for one that has its folder to itself."""
        async with self._ending:
            if not self._is_closed:
                self._is_closed = True
                for reader in self._readers.values():
                    reader.end()
                await self._ended(self._readers.values())

    def erase(self) -> Deferred[None]:
        """Close it and erase its files; fires when it is safe that they are gone.

        Fails with a `StorageError` where they cannot be erased; then the queue has the readers that are left.
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

    async def _ended(self, readers: Iterable[Reader]) -> None:
        """These readers were its own: wait until all is safe that was done to them."""
        readers = list(readers)
        for reader in readers:
            while (batch := reader.unsettled_batch) is not None:
                await when_batch_settled(batch)
        self._folder.forget(self)
        await self._checkpoint(readers)

    # Other faces.

    def to_blocking_queue(self, codec: ItemCodec[T]) -> JournaledBlockingQueue[T]:
        """Its default reader's items as objects, done when they are given. Raises `BadQueueName` if there is none."""
        return JournaledBlockingQueue(self, self.reader(), codec)

    def to_transactional_blocking_queue(self, codec: ItemCodec[T]) -> TransactionalJournaledBlockingQueue[T]:
        """The same, but done when they are committed."""
        return TransactionalJournaledBlockingQueue(self, self.reader(), codec)

    # Figures.

    @property
    def items(self) -> int:
        """The items of all readers, open ones counted, added up."""
        return sum(reader.items for reader in self._readers.values())

    @property
    def bytes(self) -> int:
        """Their data, added up likewise."""
        return sum(reader.bytes for reader in self._readers.values())

    @property
    def journal_bytes(self) -> int:
        """The journal files of the queue; 0 where it has none."""
        return self._reader_stores.journal_bytes


def _when_durable(batch: Batch) -> Deferred[None]:
    """Fires when the batch is safe, or fails with why it was lost."""
    done: Deferred[None] = Deferred()

    def is_settled() -> None:
        done.callback(None) if batch.failure is None else done.errback(Failure(batch.failure))

    batch.when_settled(is_settled)
    return done
