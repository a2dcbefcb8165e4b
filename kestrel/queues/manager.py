"""The queue manager: names to queues, and an item put to a name to all queues that it is for."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Final, cast

from attrs import evolve
from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from kestrel.config.model import QueueSettings
from kestrel.config.resolved import ResolvedConfig
from kestrel.errors import KestrelError, StorageRefused, TooManyQueues
from kestrel.names import check_queue_name
from kestrel.queues.aliases import Alias, rebuild_aliases
from kestrel.queues.context import PutByName, QueueContext
from kestrel.queues.counters import ServerCounters
from kestrel.queues.fanout import FanoutChildren
from kestrel.queues.flush_expired import ExpiredFlush, ExpiredFlushResult
from kestrel.queues.queue import Queue
from kestrel.queues.queue_histograms import QueueHistograms
from kestrel.queues.store_reopener import StoreReopener
from kestrel.queues.tick_scheduler import TickScheduler
from kestrel.storage.barrier import Barrier, Batch, all_of
from kestrel.storage.interfaces import IMeasuring, IQueueStorage, IStorage, SettingsFor
from kestrel.storage.total_memory import MemoryLimit

log = Logger(__name__)

RECONFIGURED_QUEUES_PER_SLICE: Final = 1000
"""Queues that get other settings in one turn, if its time is not over before."""

FLUSHED_PER_SLICE: Final = 64
"""Queues that are flushed in one turn, likewise."""

NAMES_PER_LOOKUP: Final = 64
"""Names that an iterator over all queues looks up together."""

_SAFE: Final = Batch()
"""What was put nowhere is as safe as it will be."""
_SAFE.settle(None)


class QueueManager:
    """All queues of the server.

    `storage` keeps them, but for those with keepJournal = false and fanout-only parents, which `memory` keeps.
    `put_by_name` is where items go that expire or fail to another queue: without it, to the queues here.
    """

    def __init__(
        self,
        storage: IStorage,
        memory: IStorage,
        config: ResolvedConfig,
        scheduler: TickScheduler,
        clock: IReactorTime,
        now_ms: Callable[[], int],
        memory_limit: MemoryLimit | None = None,
        *,
        put_by_name: PutByName | None = None,
    ) -> None:
        self.counters = ServerCounters()
        self.deleted_queue_histograms = QueueHistograms()
        """What was measured of queues that are gone."""
        self.barrier: Barrier = scheduler.barrier
        self.now_ms = now_ms
        self.memory_limit = memory_limit or MemoryLimit()
        self.aliases: dict[bytes, Alias] = rebuild_aliases({}, config)
        self.settings_for: SettingsFor = config.settings_for
        self._max_queues = config.config.max_queues
        """With so many, no other comes into being by a client's request."""
        self._named = _named_in(config)
        self._storage = storage
        self._memory = memory
        self._scheduler = scheduler
        self._reopening = StoreReopener(self.reopen_failed, scheduler, clock)
        self._context = QueueContext(
            self.barrier, scheduler, clock, now_ms, put_by_name or self.put_moved, self._reopening.begin
        )
        measuring = cast("IMeasuring | None", IMeasuring(storage, None))
        if measuring is not None:
            measuring.measure = self._storage_measured
        self._queues: dict[bytes, Queue] = {}
        self._names: list[bytes] = []
        """The names of `_queues`, sorted."""
        self._alias_names = sorted(self.aliases)
        self._children = FanoutChildren()
        self._failed_to_load: set[bytes] = set()
        self._deletions: dict[bytes, Batch] = {}
        """By name, the last one, as long as it is not safe."""

    # Start and stop.

    def start(self) -> Deferred[None]:
        """Load every queue. Raises `StorageError` at once when the storage cannot be had at all."""
        return self._storage.start(self.settings_for).addCallback(self._loaded)

    def _storage_measured(self, name: bytes, what: str, value: int) -> None:
        queue = self._queues.get(name)
        (self.deleted_queue_histograms if queue is None else queue.histograms).add_storage_value(what, value)

    def _loaded(self, loaded: dict[bytes, IQueueStorage | Failure]) -> None:
        for name, store in loaded.items():
            if isinstance(store, Failure):
                self._mark_failed_to_load(name)  # the storage has said why
                continue
            settings = self.settings_for(name)  # they may have been reloaded meanwhile
            if not settings.keep_journal:
                log.warn(
                    "Queue {queue!r} has a journal but keepJournal is false: the journal is left alone", queue=name
                )
                continue
            try:
                queue = self._make(name, self._storage, settings)
            except KestrelError as error:  # it has failed since it was loaded
                log.error("Queue {queue!r} is not served: {reason}", queue=name, reason=str(error))
                self._mark_failed_to_load(name)
            else:
                self.switch_storage_if_needed(queue)
        self._warn_of_masks(self.aliases)

    def _mark_failed_to_load(self, name: bytes) -> None:
        """It cannot be served now; every use of the name tries again."""
        self._failed_to_load.add(name)
        self._children.add(name)

    def close(self, compacts: bool = False) -> Deferred[None]:
        """Commit what is left and let the storage go, as `IStorage.close`. No queue may be used after this."""
        self._reopening.stop()
        stopped = [queue.stop() for queue in self._queues.values()]
        self.barrier.end_of_tick()
        return DeferredList(stopped).addCallback(lambda _: self._close(compacts))

    def _close(self, compacts: bool) -> Deferred[None]:
        for queue in self._queues.values():
            queue.end()
        self.barrier.end_of_tick()
        return self._storage.close(compacts)

    def wake_all(self) -> None:
        """The server stops: answer everyone who waits, on any queue."""
        for queue in self._queues.values():
            queue.wake_all()

    # Names.

    def queue(self, name: bytes) -> Queue:
        """The queue of that name, which comes into being if it must.

        Raises `BadQueueName`, `TooManyQueues`, or `QueueFailed` when its storage failed and cannot be opened anew.
        """
        queue = self._queues.get(name)
        if queue is None:
            if len(self._queues) >= self._max_queues and not (name in self._named or name in self._failed_to_load):
                check_queue_name(name)
                raise TooManyQueues(f"there are too many queues to make another; limit={self._max_queues}")
            queue = self._create(name)
        elif queue.store.failure is not None:
            queue.reopen()
        return queue

    def _create(self, name: bytes) -> Queue:
        check_queue_name(name)
        settings = self.settings_for(name)
        queue = self._make(name, self._storage_for(name, settings), settings)
        queue.touch()  # that it came into being is to be safe as well: a parent would not know its child
        self._failed_to_load.discard(name)
        self.counters.queue_creates += 1
        return queue

    def queue_to_read(self, name: bytes) -> Queue | None:
        """The queue that a client takes items from by that name; None for an alias, which has none. Else as `queue`."""
        return None if name in self.aliases else self.queue(name)

    def _make(self, name: bytes, storage: IStorage, settings: QueueSettings) -> Queue:
        queue = Queue(name, settings, storage, storage.queue(name, settings), self._context)
        self._queues[name] = queue
        insort(self._names, name)
        self._children.add(name)
        return queue

    def _storage_for(self, name: bytes, settings: QueueSettings) -> IStorage:
        """A fanout-only parent keeps nothing; but what could not be loaded may hold items."""
        keeps_nothing = settings.fanout_only and name not in self._failed_to_load
        return self._storage if settings.keep_journal and not keeps_nothing else self._memory

    def is_durable(self, name: bytes) -> bool:
        """Whether what is put to that name has to become safe somewhere."""
        queue = self.known(name)
        is_kept = self.settings_for(name).keep_journal if queue is None else queue.storage is not self._memory
        return is_kept or name in self.aliases or bool(self._children.children_of(name))

    def known(self, name: bytes) -> Queue | None:
        """The queue of that name as it is, usable or not, or None; what an alias masks is not known."""
        return None if name in self.aliases else self._queues.get(name)

    def existing(self, name: bytes) -> Queue | None:
        """The queue of that name, or None; none comes into being. Raises `QueueFailed` as `queue` does."""
        if name in self.aliases:
            return None
        queue = self._queues.get(name)
        if queue is None:
            return self.queue(name) if name in self._failed_to_load else None
        if queue.store.failure is not None:
            queue.reopen()
        return queue

    def all_queues(self) -> list[Queue]:
        """Return every queue that is not masked by an alias, in the order of their names."""
        return [self._queues[name] for name in self._names if name not in self.aliases]

    def names_in_order(self) -> Iterator[bytes]:
        """Yield the names of all queues and aliases, sorted.

        Queues may be created and deleted meanwhile. The iterator keeps only its position and the next few
        names, so that many slow clients can be sent a list of all queues without a copy of all names for each.
        """
        name = b""
        while names := self._names_after(name):
            yield from names
            name = names[-1]

    def queues_in_order(self) -> Iterator[Queue]:
        """Yield every queue that is not masked by an alias, as `names_in_order` does."""
        for name in self.names_in_order():
            queue = self.known(name)
            if queue is not None:
                yield queue

    def _names_after(self, name: bytes) -> list[bytes]:
        """Return the next few names of queues and aliases."""
        place = bisect_right(self._names, name)
        names = self._names[place : place + NAMES_PER_LOOKUP]
        if not self._alias_names:
            return names
        place = bisect_right(self._alias_names, name)
        aliases = self._alias_names[place : place + NAMES_PER_LOOKUP]
        return sorted({*names, *aliases})[:NAMES_PER_LOOKUP]

    def children_of(self, name: bytes) -> Sequence[bytes]:
        """The names of a parent's children, in order."""
        return self._children.children_of(name)

    def queues_including_masked(self) -> list[Queue]:
        """Every queue, in no order."""
        return list(self._queues.values())

    # Items in.

    def put(self, name: bytes, data: bytes, expiry_ms: int) -> Batch | None:
        """Append an item to a queue and its children, or to all that an alias leads to.

        The batch that the reply waits for; or None if a limit refuses the item: of the queue itself, or of one that
        the alias leads to, when the others have it. A child that is full goes without. Raises a `KestrelError`, and
        then no queue has the item.
        """
        size = len(data)
        alias = self.aliases.get(name)
        if alias is None and not self._children.children_of(name):
            queue = self.queue(name)
            if queue.limits.has_fanout_only:
                self.switch_storage_if_needed(queue)
                return None if queue.limits.is_too_large(size) else _SAFE
            if not queue.admits(size):
                return None
            queue.storage.put((queue.store,), data, self.now_ms(), expiry_ms)
            self.counters.total_items += 1
            return queue.item_was_put(size)
        targets, is_refused = self._targets(name, alias, size, ())
        if alias is not None:
            alias.count(size)
        batches = self._put_to(targets, data, expiry_ms)
        return None if is_refused else all_of(list(batches.values())) or _SAFE

    def put_moved(self, name: bytes, data: bytes, done: Collection[bytes]) -> Mapping[bytes, Batch] | None:
        """The same for an item that moves here (`PutByName`). It is refused only if no queue takes it."""
        with self.memory_limit.lifted():  # it takes no more memory here than where it leaves
            alias = self.aliases.get(name)
            for each in (name,) if alias is None else alias.queues:
                if each not in self._queues:
                    self._create(each)  # the operator has named it: it is none too many
            targets, is_refused = self._targets(name, alias, len(data), done)
            if is_refused and not targets:
                return None
            if alias is not None and not done:
                alias.count(len(data))
            return self._put_to(targets, data, 0)

    def continue_(self, name: bytes, xid: int, data: bytes, expiry_ms: int) -> Batch | None:
        """Finish a read that a client holds of a queue and put an item to it, as `Queue.continue_`.

        An item that is for children as well is put first: a crash may leave both the item and the read.
        """
        queue = self.queue(name)
        if not queue.limits.has_fanout_only and not self._children.children_of(name):
            batch = queue.continue_(xid, data, expiry_ms)
            self.counters.total_items += batch is not None
            return batch
        queue.check_open_read(xid)
        batch = self.put(name, data, expiry_ms)
        return None if batch is None else queue.confirm_after(batch, xid)

    def _targets(
        self, name: bytes, alias: Alias | None, size: int, done: Collection[bytes]
    ) -> tuple[list[Queue], bool]:
        """The queues that take an item of that size; and whether one that the reply is about refuses it."""
        targets: dict[Queue, None] = {}
        is_refused = False
        for each in (name,) if alias is None else alias.queues:
            queue = self.queue(each)
            children = self._children.children_of(each)
            if queue.limits.has_fanout_only:
                self.switch_storage_if_needed(queue)
                is_refused = is_refused or queue.limits.is_too_large(size)
            elif each in done:
                pass
            elif queue.admits(size):
                targets[queue] = None
            else:
                is_refused = True
            for child_name in children:
                if child_name in self.aliases or child_name in done:
                    continue  # of one that an alias masks nobody could take it
                child = self.queue(child_name)
                if child.admits(size, len(children)):
                    targets[child] = None
        return list(targets), is_refused

    def _put_to(self, targets: list[Queue], data: bytes, expiry_ms: int) -> dict[bytes, Batch]:
        self._store(targets, data, expiry_ms)
        self.counters.total_items += len(targets)
        return {queue.name: queue.item_was_put(len(data)) for queue in targets}

    def _store(self, targets: list[Queue], data: bytes, expiry_ms: int) -> None:
        """All or none: only the first storage can still refuse when it is asked."""
        add_ms = self.now_ms()
        storages = [self._storage, self._memory]
        by_storage = [[queue.store for queue in targets if queue.storage is storage] for storage in storages]
        for storage, store in zip(storages, by_storage, strict=True):
            if store and storage.refusal is not None:
                raise StorageRefused(storage.refusal)
        for storage, store in zip(storages, by_storage, strict=True):
            if store:
                storage.put(store, data, add_ms, expiry_ms)

    # Commands on names.

    def delete(self, name: bytes) -> Batch | None:
        """Forget a queue: its items, open reads, files and waiters. Missing is deleted; an alias is left alone."""
        if name in self.aliases:
            return None
        queue = self._queues.get(name) or self.existing(name)
        return self._deletions.get(name) if queue is None else self._delete(queue)

    def expire(self, queue: Queue) -> None:
        """Delete a queue that is old and empty."""
        self._delete(queue)
        self.counters.queue_expires += 1

    def _delete(self, queue: Queue) -> Batch:
        queue.storage.delete(queue.store)  # raises StorageError, and nothing has changed
        name = queue.name
        del self._queues[name]
        del self._names[bisect_left(self._names, name)]
        batch = queue.touch()
        queue.is_deleted = True
        self.counters.queue_deletes += 1
        self.deleted_queue_histograms.merge(queue.histograms)
        queue.histograms = self.deleted_queue_histograms  # what ends with it, and what is under way, counts there
        queue.end()
        self._children.remove(name)
        self._deletions[name] = batch
        batch.when_settled(partial(self._deletion_settled, name, batch))
        return batch

    def _deletion_settled(self, name: bytes, batch: Batch) -> None:
        if self._deletions.get(name) is batch:
            del self._deletions[name]
        if batch.failure is not None and name not in self._queues:
            self._failed_to_load.add(name)  # there may still be something of it

    def flush(self, name: bytes) -> Batch | None:
        """Drop a queue's items, but for open reads."""
        queue = self.existing(name)
        return self._deletions.get(name) if queue is None else queue.flush()

    def flush_all(self) -> Deferred[Batch | None]:
        """Flush every queue, in turns; one whose storage has failed does not keep the others. Fires with the batch
        of all of it."""
        batches: list[Batch] = []

        def flush(queue: Queue) -> None:
            if _is_usable(queue):
                batches.append(queue.flush())

        flushed = self._scheduler.for_each(self.all_queues(), flush, FLUSHED_PER_SLICE)
        return flushed.addCallback(lambda _: all_of(batches))

    def flush_expired(self, name: bytes) -> Deferred[ExpiredFlushResult]:
        """Drop the expired items at the head of a queue, in slices, those on disk alone among them."""
        queue = self.existing(name)
        return self._swept([] if queue is None else [queue])

    def flush_all_expired(self) -> Deferred[ExpiredFlushResult]:
        """Drop the expired items at the head of every queue."""
        return self._swept([queue for queue in self.all_queues() if _is_usable(queue)])

    def _swept(self, queues: Sequence[Queue]) -> Deferred[ExpiredFlushResult]:
        return ExpiredFlush(queues, self._scheduler).done

    def reopen_failed(self) -> bool:
        """Open what has failed anew, for those who look at figures or wait. Whether all of it could be."""
        are_open = True
        for queue in list(self._queues.values()):
            try:
                queue.reopen()
            except KestrelError:
                are_open = False
        return are_open

    # Settings.

    def use(self, config: ResolvedConfig) -> Deferred[None]:
        """Go by another configuration from now on. keepJournal of a live queue stays as it is.

        Aliases and queues that are not there yet go by it at once, the others in turns; fires when all of them do.
        """
        self.barrier.end_of_tick()  # what was recorded so far belongs to the storage that it was recorded in
        self.settings_for = config.settings_for
        self._max_queues = config.config.max_queues
        self._named = _named_in(config)
        before = self.aliases
        self.aliases = rebuild_aliases(before, config)
        self._alias_names = sorted(self.aliases)
        new = [name for name in self.aliases if name not in before]
        self._warn_of_masks(new)
        for name in new:
            if name in self._queues:
                self._queues[name].answer_all()
        return self._scheduler.for_each(list(self._queues.values()), self._use_settings, RECONFIGURED_QUEUES_PER_SLICE)

    def _use_settings(self, queue: Queue) -> None:
        settings, keep_journal = self.settings_for(queue.name), queue.settings.keep_journal
        if settings != queue.settings:
            if settings.keep_journal != keep_journal:
                log.warn("keepJournal of queue {queue!r} cannot change while it exists", queue=queue.name)
                settings = evolve(settings, keep_journal=keep_journal)
            queue.use_settings(settings)
        self.switch_storage_if_needed(queue)

    def switch_storage_if_needed(self, queue: Queue) -> None:
        """A parent that keeps nothing from now on gives up its journal when that is empty; one that keeps items again
        gets one."""
        settings, store = queue.settings, queue.store
        storage = self._memory if settings.fanout_only else self._storage
        if not settings.keep_journal or storage is queue.storage or queue.unsettled_batch is not None:
            return
        if store.failure is not None or store.items or store.open_reads:
            return
        try:
            queue.use_storage(storage)
        except KestrelError as error:
            log.error("Queue {queue!r}: {reason}", queue=queue.name, reason=str(error))

    def _warn_of_masks(self, names: Iterable[bytes]) -> None:
        for name in names:
            if name in self._queues or name in self._failed_to_load:
                log.warn("Alias {name!r} masks the queue of that name: clients cannot reach its items", name=name)


def _is_usable(queue: Queue) -> bool:
    if queue.is_deleted:
        return False
    try:
        queue.reopen()
    except KestrelError as error:
        log.error("Queue {queue!r} is left out: {reason}", queue=queue.name, reason=str(error))
        return False
    return True


def _named_in(config: ResolvedConfig) -> frozenset[bytes]:
    """Queues that the operator has named, who may have as many as it likes."""
    return frozenset(chain(config.config.queues, *config.alias_queues.values()))
