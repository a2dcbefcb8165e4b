"""The queue manager: it finds queues by name, and puts an item to all queues that a name leads to."""

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
from kestrel.errors import BadQueueName, KestrelError, StorageRefused, TooManyQueues
from kestrel.escaping import show_name
from kestrel.names import DELAYED_QUEUE, check_queue_name
from kestrel.queues.context import PutByName, QueueContext
from kestrel.queues.counters import ServerCounters
from kestrel.queues.delayed_items import DelayedItems
from kestrel.queues.flush_expired import ExpiredFlush, ExpiredFlushResult
from kestrel.queues.limits import QueueLimits
from kestrel.queues.queue import Queue
from kestrel.queues.queue_histograms import QueueHistograms
from kestrel.queues.routing import Alias, FanoutChildren, rebuild_aliases
from kestrel.queues.tick_scheduler import TickScheduler
from kestrel.queues.timer import Timer
from kestrel.storage.barrier import Barrier, Batch, combine_batches
from kestrel.storage.interfaces import IMeasuring, IQueueStorage, IStorage, SettingsFor
from kestrel.storage.total_memory import MemoryLimit

log = Logger(__name__)


RECONFIGURED_QUEUES_PER_SLICE: Final = 1000

FLUSHED_PER_SLICE: Final = 64

NAMES_PER_LOOKUP: Final = 64
"""Number of names that an iterator over all queues looks up together."""

_SAFE: Final = Batch()
"""The batch of a put that stored nothing."""
_SAFE.settle(None)


class QueueManager:
    """All queues of the server.

    `storage` keeps the queues. `memory` keeps those with keepJournal = false and fanout-only parents. `put_by_name`
    puts items that expire or fail to another queue. By default, they go to the queues of this manager.
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
        self.barrier: Barrier = scheduler.barrier
        self.memory_limit = memory_limit or MemoryLimit()
        self.aliases: dict[bytes, Alias] = rebuild_aliases({}, config)
        self.settings_for: SettingsFor = config.settings_for
        self._max_queues = config.config.max_queues
        """Limit of queues, above which clients cannot create any."""
        self._named = _named_in(config)
        self._storage = storage
        self._memory = memory
        self._scheduler = scheduler
        self._reopening = StoreReopener(self.reopen_failed, scheduler, clock)
        self._context = QueueContext(
            self.barrier, scheduler, clock, now_ms, put_by_name or self.put_moved, self._reopening.begin
        )
        self.delayed = DelayedItems(self._open_delayed_queue, self._context, self.memory_limit)
        self._context.delayed_items_of = self.delayed.items_of
        measuring = cast("IMeasuring | None", IMeasuring(storage, None))
        if measuring is not None:
            measuring.measure = self._storage_measured
        self._queues: dict[bytes, Queue] = {}
        self._plain: dict[bytes, Queue] = {}
        """Queues that no alias masks and that have no children, as far as they were looked up since the last change."""
        self._names: list[bytes] = []
        """The names of `_queues`, sorted."""
        self._alias_names = sorted(self.aliases)
        self._children = FanoutChildren()
        self._failed_to_load: set[bytes] = set()
        self._deletions: dict[bytes, Batch] = {}
        """The batch of the last deletion of a name, until it is committed."""

    # Start and stop.

    def start(self) -> Deferred[None]:
        """Load every queue. Raises `StorageError` at once if the storage cannot be used."""
        return self._storage.start(self.settings_for).addCallback(self._loaded)

    def _storage_measured(self, name: bytes, what: str, value: int) -> None:
        queue = self._queues.get(name)
        (self.deleted_queue_histograms if queue is None else queue.histograms).add_storage_value(what, value)

    def _loaded(self, loaded: dict[bytes, IQueueStorage | Failure]) -> None:
        if DELAYED_QUEUE in loaded:
            del loaded[DELAYED_QUEUE]
            self.delayed.open()
        for name, store in loaded.items():
            if isinstance(store, Failure):
                self._mark_failed_to_load(name)  # the storage has logged the reason
                continue
            settings = self.settings_for(name)  # the settings may have been reloaded meanwhile
            if not settings.keep_journal:
                log.warn(
                    "Queue {queue} has a journal but keepJournal is false: the journal is left alone",
                    queue=show_name(name),
                )
                continue
            try:
                queue = self._make(name, self._storage, settings)
            except KestrelError as error:  # it has failed since it was loaded
                log.error("Queue {queue} is not served: {reason}", queue=show_name(name), reason=str(error))
                self._mark_failed_to_load(name)
            else:
                self.switch_storage_if_needed(queue)
        self._warn_of_masks(self.aliases)

    def _mark_failed_to_load(self, name: bytes) -> None:
        """Record that a queue cannot be served now. Every use of the name tries again."""
        self._failed_to_load.add(name)
        self._children.add(name)
        self._plain.clear()

    def close(self, compacts: bool = False) -> Deferred[None]:
        """Commit the last changes and close the storage (`IStorage.close`). No queue may be used after this."""
        self._reopening.stop()
        stopped = [self.delayed.stop(), *(queue.stop() for queue in self._queues.values())]
        self.barrier.end_of_tick()
        return DeferredList(stopped).addCallback(lambda _: self._close(compacts))

    def _close(self, compacts: bool) -> Deferred[None]:
        for queue in self._opened_queues():
            queue.end()
        self.barrier.end_of_tick()
        return self._storage.close(compacts)

    def now_ms(self) -> int:
        """Return the time of day, in milliseconds since the epoch (`QueueContext.now_ms`)."""
        return self._context.now_ms()

    def wake_all(self) -> None:
        """Answer all waiters of all queues, because the server stops."""
        for queue in self._queues.values():
            queue.wake_all()

    # Names.

    def queue(self, name: bytes) -> Queue:
        """Return the queue `name`, and create it if it is missing.

        Raises `BadQueueName`, `TooManyQueues`, or `QueueFailed` if its storage failed and cannot be reopened.
        """
        queue = self._queues.get(name)
        if queue is None:
            if len(self._queues) >= self._max_queues and not (name in self._named or name in self._failed_to_load):
                check_queue_name(name)
                raise TooManyQueues(f"too many queues; limit={self._max_queues}")
            return self._create(name)
        if queue.store.failure is not None:
            queue.reopen()
        return queue

    def _create(self, name: bytes) -> Queue:
        check_queue_name(name)
        if name == DELAYED_QUEUE:
            raise BadQueueName("this queue name is reserved for delayed items")
        settings = self.settings_for(name)
        queue = self._make(name, self._storage_for(name, settings), settings)
        queue.touch()  # its creation must be durable as well, or its parent would not know it after a restart
        self._failed_to_load.discard(name)
        self.counters.queue_creates += 1
        return queue

    def queue_to_read(self, name: bytes) -> Queue | None:
        """Return the queue that clients take items from by that name, as `queue` does. None for an alias, which has
        none.
        """
        if name in self.aliases:
            return None
        queue = self._queues.get(name)
        if queue is None or queue.store.failure is not None:
            return self.queue(name)
        return queue

    def _make(self, name: bytes, storage: IStorage, settings: QueueSettings) -> Queue:
        queue = Queue(name, settings, storage, storage.queue(name, settings), self._context)
        self._queues[name] = queue
        insort(self._names, name)
        self._children.add(name)
        self._plain.clear()
        return queue

    def _storage_for(self, name: bytes, settings: QueueSettings) -> IStorage:
        """Return the storage of a new queue. A fanout-only parent keeps nothing, unless it failed to load and may hold
        items.
        """
        keeps_nothing = settings.fanout_only and name not in self._failed_to_load
        return self._storage if settings.keep_journal and not keeps_nothing else self._memory

    def is_durable(self, name: bytes) -> bool:
        """Return False if items put to that name are kept in memory only.

        Aliases and parents with children count as durable, whatever their queues are.
        """
        queue = self.known(name)
        is_kept = self.settings_for(name).keep_journal if queue is None else queue.storage is not self._memory
        return is_kept or name in self.aliases or bool(self._children.children_of(name))

    def limits_of(self, name: bytes) -> QueueLimits:
        """Return the limits of the queue `name`, or those that it would have if it is missing or masked by an alias."""
        queue = self._queues.get(name)
        if queue is None or name in self.aliases:
            return QueueLimits(self.settings_for(name))
        return queue.limits

    def plain_queue(self, name: bytes) -> Queue | None:
        """Return the queue `name` if it is usable, no alias masks it and it has no children; otherwise None.

        Most requests are for such queues, and need no other lookup.
        """
        queue = self._plain.get(name)
        if queue is None:
            if name in self.aliases or name in self._children.by_parent:
                return None
            queue = self._queues.get(name)
            if queue is None:
                return None
            self._plain[queue.name] = queue
        return queue if queue.store.failure is None else None

    def known(self, name: bytes) -> Queue | None:
        """Return the queue `name`, usable or not, or None if it is missing or masked by an alias."""
        return None if name in self.aliases else self._queues.get(name)

    def existing(self, name: bytes) -> Queue | None:
        """Return the queue `name`, or None if it is missing. Raises `QueueFailed` as `queue` does."""
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

        Queues may be created and deleted meanwhile. The iterator keeps only its position and the next few names. So
        many slow clients can be sent a list of all queues without a copy of all names for each.
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
        """Return the next few names of queues and aliases after `name`, sorted."""
        place = bisect_right(self._names, name)
        names = self._names[place : place + NAMES_PER_LOOKUP]
        if not self._alias_names:
            return names
        place = bisect_right(self._alias_names, name)
        aliases = self._alias_names[place : place + NAMES_PER_LOOKUP]
        return sorted({*names, *aliases})[:NAMES_PER_LOOKUP]

    def children_of(self, name: bytes) -> Sequence[bytes]:
        return self._children.children_of(name)

    def _open_delayed_queue(self) -> Queue:
        settings = DelayedItems.settings(self.settings_for(DELAYED_QUEUE))
        store = self._storage.queue(DELAYED_QUEUE, settings)
        queue = Queue(DELAYED_QUEUE, settings, self._storage, store, self._context)
        queue.touch()  # its creation must be durable as well
        return queue

    def _opened_queues(self) -> list[Queue]:
        """Return every queue, and the hidden queue of delayed items if there is one."""
        hidden = self.delayed.queue
        return [*self._queues.values(), *(() if hidden is None else (hidden,))]

    def queues_including_masked(self) -> list[Queue]:
        """Return every queue, in no order."""
        return list(self._queues.values())

    # Puts.

    def put(self, name: bytes, data: bytes, expiry_ms: int) -> Batch | None:
        """Append an item to a queue and its children, or to all queues of an alias.

        Return the batch that the reply waits for. Return None if a limit of the queue refuses the item, or a limit of
        one of the alias's queues, even if other queues or children have it. A full child is skipped. If this raises a
        `KestrelError`, no queue has the item. `expiry_ms` is in milliseconds since the epoch, or 0 for never.
        """
        alias = self.aliases.get(name)
        if alias is None and name not in self._children.by_parent:
            return self.put_plain(self.queue(name), data, expiry_ms)
        size = len(data)
        targets, relays, is_refused = self._targets(name, alias, size, ())
        if alias is not None:
            alias.count(size)
        batches = self._put_to(targets, data, expiry_ms)
        if relays:
            self._count_relayed(relays, size)
        return None if is_refused else combine_batches(list(batches.values())) or _SAFE

    def put_plain(self, queue: Queue, data: bytes, expiry_ms: int) -> Batch | None:
        """Append an item to a queue without alias and children, as `put` does."""
        size = len(data)
        if queue.limits.has_fanout_only:
            self.switch_storage_if_needed(queue)
            if queue.limits.is_too_large(size):
                return None
            self._count_relayed((queue,), size)
            return _SAFE
        if not queue.admits(size):
            return None
        queue.storage.put((queue.store,), data, self._context.now_ms(), expiry_ms)
        self.counters.total_items += 1
        return queue.item_was_put(size, expiry_ms)

    def put_delayed(self, name: bytes, data: bytes, expiry_ms: int, due_ms: int) -> Batch | None:
        """Store an item that is put to a queue or alias at `due_ms`, in milliseconds since the epoch.

        Return the batch that the reply waits for. Return None if an item of its size is too large, or if there are too
        many delayed items. If this raises a `KestrelError`, the item is not stored. The other limits are those of the
        time at which it is due.
        """
        alias = self.aliases.get(name)
        for each in (name,) if alias is None else alias.queues:
            if self.queue(each).limits.is_too_large(len(data)):
                return None
        return self.delayed.put(name, data, due_ms, expiry_ms)

    def put_moved(
        self, name: bytes, data: bytes, done: Collection[bytes], expiry_ms: int
    ) -> Mapping[bytes, Batch] | None:
        """Put an item that moves here from another queue (`PutByName`). It is refused only if no queue accepts it."""
        with self.memory_limit.lifted():  # the item takes no more memory here than in its old queue
            alias = self.aliases.get(name)
            for each in (name,) if alias is None else alias.queues:
                if each not in self._queues:
                    self._create(each)  # the operator has named the queue, so maxQueues does not apply
            targets, relays, is_refused = self._targets(name, alias, len(data), done)
            if is_refused and not targets:
                return None
            if alias is not None and not done:
                alias.count(len(data))
            batches = self._put_to(targets, data, expiry_ms)
            if relays:
                self._count_relayed(relays, len(data))
            return batches

    def continue_(self, name: bytes, xid: int, data: bytes, expiry_ms: int) -> Batch | None:
        """End an open read of a queue and put an item to the queue and its children.

        Return the batch of both, or None if a limit of the queue refuses the item. Raises the errors of
        `Queue.continue_`. If there are children, the item is put first, and a crash may leave both item and read.
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
    ) -> tuple[list[Queue], list[Queue], bool]:
        """Return the queues that accept an item of `size` bytes, the fanoutOnly queues that only relay it to their
        children, and whether the queue or one of the alias's queues refuses it.

        Queues in `done` are left out. If there are any, the relays were counted before and are left out too.
        """
        targets: dict[Queue, None] = {}
        relays: list[Queue] = []
        is_refused = False
        for each in (name,) if alias is None else alias.queues:
            queue = self.queue(each)
            children = self._children.children_of(each)
            if queue.limits.has_fanout_only:
                self.switch_storage_if_needed(queue)
                if queue.limits.is_too_large(size):
                    is_refused = True
                elif not done:
                    relays.append(queue)
            elif each in done:
                pass
            elif queue.admits(size):
                targets[queue] = None
            else:
                is_refused = True
            for child_name in children:
                if child_name in self.aliases or child_name in done:
                    continue  # clients could not take it from a queue that an alias masks
                child = self.queue(child_name)
                if child.admits(size, len(children)):
                    targets[child] = None
        return list(targets), relays, is_refused

    def _count_relayed(self, relays: Sequence[Queue], size: int) -> None:
        self.counters.total_items += len(relays)
        for queue in relays:
            queue.item_was_relayed(size)

    def _put_to(self, targets: list[Queue], data: bytes, expiry_ms: int) -> dict[bytes, Batch]:
        self._store(targets, data, expiry_ms)
        self.counters.total_items += len(targets)
        return {queue.name: queue.item_was_put(len(data), expiry_ms) for queue in targets}

    @property
    def refusal(self) -> str | None:
        """Reason why the durable storage refuses all puts now, such as a full disk, or None."""
        return self._storage.refusal

    def _store(self, targets: list[Queue], data: bytes, expiry_ms: int) -> None:
        """Store the item in all queues or none: only the first storage can refuse after its check."""
        add_ms = self.now_ms()
        storages = [self._storage, self._memory]
        by_storage = [[queue.store for queue in targets if queue.storage is storage] for storage in storages]
        for storage, store in zip(storages, by_storage, strict=True):
            if store and storage.refusal is not None:
                raise StorageRefused(storage.refusal)
        for storage, store in zip(storages, by_storage, strict=True):
            if store:
                storage.put(store, data, add_ms, expiry_ms)

    # Commands by name.

    def delete(self, name: bytes) -> Batch | None:
        """Delete a queue with its items, open reads and files, and answer its waiters.

        Return the batch of the deletion. For a missing queue, return that of an earlier deletion until it is committed,
        or None. An alias is left alone. Raises `StorageError`, and then the queue is unchanged.
        """
        if name in self.aliases:
            return None
        queue = self._queues.get(name) or self.existing(name)
        dropped = self.delayed.drop(name)
        return _combine(dropped, self._deletions.get(name) if queue is None else self._delete(queue))

    def expire(self, queue: Queue) -> None:
        self._delete(queue)
        self.counters.queue_expires += 1

    def _delete(self, queue: Queue) -> Batch:
        queue.storage.delete(queue.store)  # raises StorageError, and then nothing has changed
        name = queue.name
        del self._queues[name]
        del self._names[bisect_left(self._names, name)]
        batch = queue.touch()
        queue.is_deleted = True
        self.counters.queue_deletes += 1
        self.deleted_queue_histograms.merge(queue.histograms)
        queue.histograms = self.deleted_queue_histograms  # later values of its ended operations count there
        queue.end()
        self._children.remove(name)
        self._plain.clear()
        self._deletions[name] = batch
        batch.when_settled(partial(self._deletion_settled, name, batch))
        return batch

    def _deletion_settled(self, name: bytes, batch: Batch) -> None:
        if self._deletions.get(name) is batch:
            del self._deletions[name]
        if batch.failure is not None and name not in self._queues:
            self._failed_to_load.add(name)  # some of its data may still exist

    def flush(self, name: bytes) -> Batch | None:
        """Drop a queue's items, except open reads, and its delayed items. Return the batch to wait for, or None.

        Delayed items of a missing queue are dropped too. An alias is left alone.
        """
        if name in self.aliases:
            return None
        queue = self.existing(name)
        dropped = self.delayed.drop(name)
        return _combine(dropped, self._deletions.get(name) if queue is None else queue.flush())

    def flush_all(self) -> Deferred[Batch | None]:
        """Flush every usable queue that no alias masks, in slices, and drop all delayed items.

        Fires with the batch of all of them, or None.
        """
        dropped = self.delayed.drop(None)
        batches = [] if dropped is None else [dropped]

        def flush(queue: Queue) -> None:
            if _is_usable(queue):
                batches.append(queue.flush())

        flushed = self._scheduler.for_each(self.all_queues(), flush, FLUSHED_PER_SLICE)
        return flushed.addCallback(lambda _: combine_batches(batches))

    def flush_expired(self, name: bytes) -> Deferred[ExpiredFlushResult]:
        """Drop the expired items at the head of a queue, in slices, including items that are only on disk.

        Fires with their number and batch. Does nothing for an alias or a missing queue.
        """
        queue = self.existing(name)
        return self._swept([] if queue is None else [queue])

    def flush_all_expired(self) -> Deferred[ExpiredFlushResult]:
        """Drop the expired items at the head of every queue that is usable and that no alias masks.

        Fires with their number and batch.
        """
        return self._swept([queue for queue in self.all_queues() if _is_usable(queue)])

    def _swept(self, queues: Sequence[Queue]) -> Deferred[ExpiredFlushResult]:
        return ExpiredFlush(queues, self._scheduler).done

    def reopen_failed(self) -> bool:
        """Reopen all failed stores, for clients that wait or read figures. Return True if all of them are open."""
        are_open = True
        for queue in self._opened_queues():
            try:
                queue.reopen()
            except KestrelError:
                are_open = False
        return are_open

    # Settings.

    def use(self, config: ResolvedConfig) -> Deferred[None]:
        """Apply another configuration. keepJournal of an existing queue does not change.

        Aliases and new queues use it at once, and existing queues in slices. Fires when all queues use it.
        """
        self.barrier.end_of_tick()  # what was recorded so far belongs to its old storage
        self.settings_for = config.settings_for
        self._max_queues = config.config.max_queues
        self._named = _named_in(config)
        before = self.aliases
        self.aliases = rebuild_aliases(before, config)
        self._alias_names = sorted(self.aliases)
        self._plain.clear()
        new = [name for name in self.aliases if name not in before]
        self._warn_of_masks(new)
        for name in new:
            if name in self._queues:
                self._queues[name].answer_all()
        self.delayed.use_settings(config.settings_for(DELAYED_QUEUE))
        return self._scheduler.for_each(list(self._queues.values()), self._use_settings, RECONFIGURED_QUEUES_PER_SLICE)

    def _use_settings(self, queue: Queue) -> None:
        settings, keep_journal = self.settings_for(queue.name), queue.settings.keep_journal
        if settings != queue.settings:
            if settings.keep_journal != keep_journal:
                log.warn("keepJournal of queue {queue} cannot change while it exists", queue=show_name(queue.name))
                settings = evolve(settings, keep_journal=keep_journal)
            queue.use_settings(settings)
        self.switch_storage_if_needed(queue)

    def switch_storage_if_needed(self, queue: Queue) -> None:
        """Move an empty fanout-only parent to the memory storage, or a parent that keeps items again to the durable
        one.
        """
        settings, store = queue.settings, queue.store
        storage = self._memory if settings.fanout_only else self._storage
        if not settings.keep_journal or storage is queue.storage or queue.unsettled_batch is not None:
            return
        if store.failure is not None or store.items or store.open_reads:
            return
        try:
            queue.use_storage(storage)
        except KestrelError as error:
            log.error("Queue {queue}: {reason}", queue=show_name(queue.name), reason=str(error))

    def _warn_of_masks(self, names: Iterable[bytes]) -> None:
        for name in names:
            if name in self._queues or name in self._failed_to_load:
                log.warn(
                    "Alias {name} masks the queue of that name: clients cannot reach its items", name=show_name(name)
                )


def _combine(*batches: Batch | None) -> Batch | None:
    return combine_batches([batch for batch in batches if batch is not None])


def _is_usable(queue: Queue) -> bool:
    if queue.is_deleted:
        return False
    try:
        queue.reopen()
    except KestrelError as error:
        log.error("Queue {queue} cannot be flushed: {reason}", queue=show_name(queue.name), reason=str(error))
        return False
    return True


def _named_in(config: ResolvedConfig) -> frozenset[bytes]:
    """Return the queues that the operator has named, which maxQueues does not limit."""
    return frozenset(chain(config.config.queues, *config.alias_queues.values()))


REOPEN_RETRY_S: Final = 0.5


class StoreReopener:
    """A timer that calls `reopen` after a store has failed, and again until it returns True."""

    def __init__(self, reopen: Callable[[], bool], scheduler: TickScheduler, clock: IReactorTime) -> None:
        self._reopen = reopen
        self._scheduler = scheduler
        self._is_under_way = False
        self._timer = Timer(clock, self._try)

    def begin(self) -> None:
        """Begin to reopen failed stores in the next tick, unless that is under way."""
        if not self._is_under_way:
            self._is_under_way = True
            self._scheduler.continue_later(self._try)

    def stop(self) -> None:
        self._timer.stop()

    def _try(self) -> None:
        self._is_under_way = not self._reopen()
        if self._is_under_way:
            self._timer.start(REOPEN_RETRY_S)
