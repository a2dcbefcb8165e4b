"""The storage contract: the calls that the server makes to a storage, and the promises that it relies on.

Three words: a *tick* is one iteration of the reactor, up to `Barrier.end_of_tick`. A *batch* is the changes that one
tick records on one queue. The *window* of a queue is its part in memory.

Order of calls: `IStorageFactory.storage` once, then `IStorage.start` once, then any other calls on the reactor thread,
then `IStorage.close` once. Within a tick, operations change memory and are recorded in call order. At the end of the
tick, the barrier commits each touched queue once, and sends the replies when that is safe. Only `commit` and `fill` may
wait. All other methods answer from memory, at once.

docs/storage.md says what each failure means to a client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure
from zope.interface import Attribute, Interface

from kestrel.config.model import QueueSettings
from kestrel.item import Item
from kestrel.storage.total_memory import MemoryLimit

SettingsFor: TypeAlias = Callable[[bytes], QueueSettings]
"""Returns the settings of the queue with that name."""

OwnQueue: TypeAlias = Any
"""An `IQueueStorage` that this storage created."""

InThread: TypeAlias = Callable[..., "Deferred[Any]"]
"""``in_thread(function, *args)`` calls the function in a worker thread. The Deferred fires on the reactor thread."""

Measure: TypeAlias = Callable[[bytes, str, int], None]
"""Receives the name of a queue, the name of a metric, and its value."""


class IQueueStorage(Interface):
    """The items of one queue, strictly first in, first out.

    All methods except `fill` answer from memory, at once, and raise `QueueFailed` if this object has failed. Their
    changes are safe after the next commit.

    A queue that shares files with others has one more attribute, `commit_unit`, which is equal for all of them. No
    commit of these queues begins while one of them is pending, and then all that have changes are in the next commit.
    """

    items: int = Attribute("Number of items in the queue, in memory or not, without open reads.")
    bytes: int = Attribute("Bytes of data of `items`.")
    mem_items: int = Attribute("Number of items in memory, without open reads.")
    mem_bytes: int = Attribute("Bytes of data of `mem_items`.")
    open_reads: int = Attribute("Number of open reads.")
    disk_bytes: int = Attribute("Bytes that the queue takes on the medium.")
    replayed_items: int = Attribute("Number of items when this object was opened.")
    stats: Mapping[str, int] = Attribute(
        """Statistics for clients, by name. Three are required: logsize (bytes on the medium), journal_rewrites (how
        often files were rewritten) and journal_rotations (how often files were begun). The latter two are 0 where they
        do not apply. A storage may add others.
        """
    )

    failure: str | None = Attribute("Reason why this object failed, such as its disk or a deletion, or None.")

    def peek() -> Item | None:
        """Return the head, or None if no item is *in memory*. `fill` tells whether the queue is empty then."""

    def take(opened: bool) -> Item | None:
        """Remove and return the head, or return None as `peek` does.

        With `opened`, the item becomes an open read. Its `xid` is chosen here, and is unique for the life of this
        object. In a journal it is a signed 32-bit number, so after two thousand million open reads a number may be
        reused, but never while it is open.
        """

    def is_open(xid: int) -> bool:
        """Return whether `xid` is an open read now."""

    def confirm(xids: Sequence[int]) -> int:
        """End these open reads and drop their items. Return how many were open. Others are ignored."""

    def put_back(xids: Sequence[int], failed: bool) -> None:
        """Return open reads to the head, with xids[0] first. `failed` adds one to the error count of each item.

        Numbers that are not open are ignored. With the capability `errors_kept`, an item keeps its error count as long
        as it exists, and a restart adds no error. With `order_kept`, the items keep this order over a restart.
        """

    def clear() -> None:
        """Drop all items that are not open reads, in time proportional to the number of open reads."""

    def fill() -> Deferred[None] | None:
        """Bring the head into memory.

        Return None if `take` and `peek` are right now: they return None only if the queue is empty. Otherwise return a
        Deferred, and the caller calls `fill` again when it fires. If it fails, the head cannot be read now, and nothing
        has changed.

        At most one Deferred is pending. Meanwhile `clear`, `put` and `take` may be called, and earlier changes
        committed. The Deferred may wait for such a commit. It always fires, even if the queue is cleared or deleted.
        """


class IStorage(Interface):
    """All queues of one server. A storage has one owner at a time.

    A storage that may lose its medium to another owner has one more attribute, `ended`: a Deferred that fires with the
    `StorageError` that says so. The server then stops.

    All calls are made on the reactor thread. The storage itself runs rotation, packing, erasing and checkpoints, with
    the clock and threads that it was created with. No call should block the reactor for more than 10 ms.
    """

    refusal: str | None = Attribute(
        "Reason why puts are refused now (disk full, database away), or None. `put` then raises StorageRefused."
    )

    def start(settings_for: SettingsFor) -> Deferred[dict[bytes, IQueueStorage | Failure]]:
        """Take ownership, and load all queues.

        If taking ownership needs no waiting, as with a lock or a folder, a failure raises a `StorageError`, and no
        other call follows. If it needs an answer, as from a database, the Deferred fails with the `StorageError`, and
        `close` follows. In both cases `StorageInUse` says that another server is the owner.

        The Deferred fires with all queues. Open reads of the last run are back at the head, in the order in which they
        were opened. Without the capability `order_kept`, open and returned items are at their original places instead.
        A queue that cannot be loaded is represented by a Failure, and does not make the start fail.
        """

    def queue(name: bytes, settings: QueueSettings) -> IQueueStorage:
        """Return the live queue of that name, and apply these settings to it.

        If there is none, it is created empty. If it has failed, a new object is opened with everything that is still
        stored. Raises `QueueFailed` if it cannot be opened.
        """

    def delete(queue: OwnQueue) -> None:
        """Delete the items, open reads and files of a queue.

        The object fails at once, and its name can be used again at once. Large files are erased in a thread. Raises
        `StorageError` if the queue cannot be deleted, and then it is unchanged.

        The deletion is safe after the next commit that names the object. Until then a crash may restore the queue.
        Deleting a deleted object again does nothing, even if its name has a new queue. Deleting a failed object deletes
        its queue, even if that has been reopened.
        """

    def put(queues: Sequence[OwnQueue], data: bytes, add_ms: int, expiry_ms: int) -> None:
        """Append one item to each of these queues: in memory to all of them or to none.

        Raises `StorageRefused`, `QueueFailed` or `ItemTooLarge` before anything has changed. A storage accepts items of
        up to 16 MiB at least, and rejects items of 2 GiB. It checks ``len(data)`` before it copies any data. The item
        is encoded once, and may be stored once if queues share data. After a crash it may be in only some of the
        queues.
        """

    def commit(queues: Sequence[OwnQueue]) -> Sequence[tuple[Sequence[IQueueStorage], Deferred[Any]]]:
        """Make all changes recorded on these queues safe.

        Return pairs of queues that are not safe yet and the Deferred to wait for. Usually that is (). A queue in no
        pair is as safe as its settings promise. `commit` is never called for a queue whose earlier Deferred is pending.
        Changes to one queue keep their call order. Between queues there is no order.

        If the Deferred fails, every queue of its pair has failed, so calls raise `QueueFailed`. Changes recorded on it
        since the commit began are lost too. `IStorage.queue` reopens it in its last safe state. A queue fails only
        during a commit: its own, or one of a queue that shares data with it. A fault found at another time is reported
        by the next commit, with or without changes. A failed fsync is never repeated on the same file.

        If a queue has already failed when it is named, it is in a pair that fails, or `QueueFailed` is raised. So a
        batch that depends on a lost one is never reported as safe. A deleted queue may be named once more, and has no
        items to commit.
        """

    def close(compacts: bool = False) -> Deferred[None]:
        """Commit, write checkpoints, and give up ownership. Called once, last.

        `compacts` means that the server accepted no puts and may be down for long, so little should stay on the medium.
        """


class IStorageFactory(Interface):
    """A plugin that creates storages from descriptions ``name:argument?option=value``.

    `kestrel.storage.plugins` finds the plugins of other distributions. A factory may have two more attributes.
    `unused_settings` is a set of names of queue settings, as in `QueueSettings`, that have no effect on its storages.
    `largest_used` maps such names to a number of bytes, above which a larger value has no further effect.
    """

    name: str = Attribute("The word before the colon of a description.")
    help: str = Attribute("Help text: the purpose of the storage, its argument and its options.")
    capabilities: frozenset[str] = Attribute(
        """Promises of its storages beyond the interfaces, some of:

        durable: committed changes survive the process. If the settings promise a sync, they also survive the machine.
        ranges: queues can be adapted to `IItemRanges`.
        shared_fanout: an item that is put to the queues of a fanout together is stored once.
        errors_kept: an item keeps its error count as long as it exists, over restarts of a durable storage too.
        order_kept: returned items keep their order over a restart, behind the items that were open. A crash during a
        batch leaves the queue in the state after one of its calls. Without this promise, a restart restores open and
        returned items in the order of their puts. A crash may then keep the puts of a batch up to one call, and all
        other changes up to another.
        """
    )

    def storage(
        argument: str, options: Mapping[str, str], clock: IReactorTime, in_thread: InThread, memory: MemoryLimit
    ) -> IStorage:
        """Return a storage, without touching its medium. Raises `BadStorageArgument` with a message for the operator.

        The storage reports to `memory` how many bytes its items take (maxTotalMemory). While `memory.is_reached`, it
        keeps new items out of memory, or refuses puts.
        """


class IItemRanges(Interface):
    """Optional: items with durable ids. An adapter of an `IQueueStorage`.

    One reader at a time may *hold* the queue. From then on its items are kept until the reader releases them, even if
    they are taken, expire, or are dropped. None of this changes an id.
    """

    reader: bytes | None = Attribute("Name of the reader that holds the queue, or None.")
    first_id: int = Attribute(
        "The lowest id that is not released yet. Without a hold, items taken from the head count as released."
    )
    next_id: int = Attribute(
        "The id of the next *safe* item, at least `first_id`. Items that are not safe yet are invisible."
    )

    def hold(reader: bytes) -> None:
        """Let that reader hold the queue, and so all items from `first_id` on.

        The hold is safe at the next commit, and survives restarts. After a restart, ids that were seen before are not
        used again, even if a power failure took their items.
        """

    def end_hold() -> None:
        """End the hold. Items that are still in the queue stay there, and the others are dropped. Safe at the next
        commit.
        """

    def end_of(first_id: int, max_items: int) -> int:
        """Return an id that ends a range of at most `max_items` safe items from `first_id` on.

        The result is greater than `first_id` if there is any safe item from there on, even after a gap in the ids. So a
        reader that continues there reaches all items. Items for other queues may count, so the range may hold none of
        this queue.
        """

    def read_range(first_id: int, end_id: int, max_bytes: int) -> Deferred[list[tuple[int, Item]]]:
        """Return the items with ids from `first_id` up to but excluding `end_id`, with their ids, in order.

        With a hold, the result is the same until the items are released. It includes expired and finished items, but no
        items that were put only to other queues. It has at most `max_bytes` of data, but at least one item if there is
        one. To read on, begin after the last id. Fails with `QueueFailed` if the items cannot be read.
        """

    def release(end_id: int) -> None:
        """Drop all items below `end_id`. Safe at the next commit. Repeating it is harmless."""


class IBrowsing(Interface):
    """Optional: items in memory that can be seen without taking them. An adapter of an `IQueueStorage`."""

    def browse(first: int, count: int) -> list[Item]:
        """Return up to `count` of the items in memory, from position `first` on, in order. The head has position 0."""


class IMeasuring(Interface):
    """Optional: a storage that measures its work. An adapter of an `IStorage`."""

    measure: Measure = Attribute(
        """Receives the measurements. Set once, before `start`. Called on the reactor thread.

        The server knows the names `fsync_delay_usec`, `journal_rewrite_usec`, `journal_rotation_usec` and
        `fill_readbehind_usec`, in whole microseconds. It shows other names unchanged.
        """
    )


class IContinue(Interface):
    """Optional: confirm and put in one record. An adapter of an `IQueueStorage`."""

    def continue_(xid: int, data: bytes, add_ms: int, expiry_ms: int) -> None:
        """End an open read and append an item: both or neither, even in a crash.

        Raises the errors of `IStorage.put`, before anything has changed. If `xid` is not open, only the item is
        appended, so check `IQueueStorage.is_open` first. The recorded time of the put may be 1 ms later than `add_ms`.
        """


CAPABILITIES: Final[Mapping[str, str]] = {
    "durable": "committed changes survive the process, and the machine as far as syncJournal says",
    "errors_kept": "an item keeps its error count as long as it exists, over restarts too",
    "order_kept": "returned items keep their order over a restart",
    "ranges": "items have ids, and ranges of ids can be read repeatedly",
    "shared_fanout": "an item for a parent and its children is stored once",
}
"""The members that `IStorageFactory.capabilities` may have, each with its meaning for operators."""
