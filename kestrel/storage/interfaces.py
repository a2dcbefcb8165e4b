"""The storage contract: all that the server asks of a backend, and what it promises back.

Three words. A *tick* is one turn of the reactor up to `Barrier.end_of_tick`; a *batch* is what one tick
recorded on one queue; a queue's *window* is the part of it that is in memory.

Who calls what, in which order: `IStorageFactory.storage` once, `IStorage.start` once, then any mixture of the
rest on the reactor thread, then `IStorage.close` once. Within a tick operations change memory and are
recorded in call order; the barrier commits each touched queue once at the tick's end and lets the replies
out when that is safe. Two methods may wait, `commit` and `fill`; all others answer from memory, at once.

docs/storage.md says what each failure means to a client.
"""

# An interface's methods have no self, which is how zope.interface writes them.
# mypy: disable-error-code="empty-body,misc"

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure
from zope.interface import Attribute, Interface

from kestrel.config.model import QueueSettings
from kestrel.item import Item
from kestrel.storage.total_memory import MemoryLimit

SettingsFor: TypeAlias = Callable[[bytes], QueueSettings]
"""The settings of the queue of that name."""

OwnQueue: TypeAlias = Any
"""An `IQueueStorage` that this very storage made."""

InThread: TypeAlias = Callable[..., "Deferred[Any]"]
"""``in_thread(function, *args)`` runs it in a worker thread; the Deferred fires on the reactor thread."""

Measure: TypeAlias = Callable[[bytes, str, int], None]
"""Told the name of a queue, what was measured of it, and the number."""


class IQueueStorage(Interface):
    """The contents of one queue, strictly first in, first out.

    All methods but `fill` answer from memory, at once, and raise `QueueFailed` once the object is dead. What
    they record is safe after the next commit.
    """

    items: int = Attribute("How many items are in the queue, in memory or not; open reads are not counted.")
    bytes: int = Attribute("Their data, in bytes.")
    mem_items: int = Attribute("How many of them are in memory.")
    mem_bytes: int = Attribute("Their data, in bytes.")
    open_reads: int = Attribute("How many open reads there are.")
    disk_bytes: int = Attribute("What the queue takes on the medium, in bytes.")
    replayed_items: int = Attribute("How many items were there when this object was opened.")
    stats: Mapping[str, int] = Attribute(
        """Figures for clients, by name. Three are always there: logsize (bytes on the medium), journal_rewrites and
        journal_rotations (how often files were written anew, and begun; 0 where there is no such thing). Others are
        the backend's own.
        """
    )

    failure: str | None = Attribute("None, or why this object is dead: its disk failed, or it was deleted.")

    def peek() -> Item | None:
        """The head item, or None when none is *in memory*: `fill` says which it is."""

    def take(opened: bool) -> Item | None:
        """Remove and return the head, or None as `peek`.

        With `opened` it becomes an open read and carries `xid`, chosen here and never given twice in this
        object's life (the journal's is a signed 32-bit number: a number comes again after two thousand
        million openings, never while it is open).
        """

    def is_open(xid: int) -> bool:
        """Whether that is an open read now."""

    def confirm(xids: Sequence[int]) -> int:
        """End these open reads for good. Returns how many were open; others are ignored."""

    def put_back(xids: Sequence[int], failed: bool) -> None:
        """Return open reads to the head; xids[0] is the next one taken. `failed` adds one to each item's errors.

        Numbers that are not open are ignored.
        Where `errors_kept` is among the capabilities, errors last as long as the item; a restart adds none. Where
        `order_kept` is, the items stay in this order over a restart.
        """

    def clear() -> None:
        """Drop every item that is not an open read, in time bounded by the open reads."""

    def fill() -> Deferred[None] | None:
        """Bring the head into memory.

        None: `take` and `peek` tell the truth now. A Deferred: call again when it fires; on errback the head
        cannot be read now, and all is as it was. At most one is outstanding; clear, put and take may happen meanwhile,
        and so does the commit of what was recorded before, for which it may wait. It fires in any case, also when the
        queue was cleared or deleted.
        """


class IStorage(Interface):
    """All queues of one server; one owner at a time.

    A backend that may lose what it keeps its queues in, for good (to another owner), has an attribute `ended` besides:
    a Deferred that fires with the `StorageError` that says so. The server stops then.

    Called on the reactor thread only. The backend runs rotation, packing, erasing and checkpoints itself, with
    the clock and threads it was built with. No call here should hold the reactor longer than 10 ms.
    """

    refusal: str | None = Attribute(
        "None, or the sentence why no put is taken now (disk full, database away); then put raises StorageRefused."
    )

    def start(settings_for: SettingsFor) -> Deferred[dict[bytes, IQueueStorage | Failure]]:
        """Take ownership and load.

        Ownership (a lock, a folder that can be written) is settled before this returns, where that takes no waiting:
        failing that it raises a `StorageError`, and no other call follows. Where it takes an answer (of a database),
        the Deferred fails with the `StorageError` instead, and `close` follows. Either way `StorageInUse` says that
        another server is the owner.

        The Deferred brings every queue there is, with the open reads of the last run back at the head, in the order in
        which they were opened (without `order_kept` among the capabilities: all that was open or put back stands where
        it was put). One queue that cannot be loaded is a Failure in its place, never a failed start.
        """

    def queue(name: bytes, settings: QueueSettings) -> IQueueStorage:
        """The live queue of that name, with these settings from now on; or a new empty one; or, after a
        failure, a fresh object over what the backend still holds. Raises `QueueFailed` when it cannot be
        opened."""

    def delete(queue: OwnQueue) -> None:
        """Forget contents, open reads and files. The object is dead at once, the name may be created again at
        once, big files are erased off the reactor. Raises `StorageError` when that cannot be, and the queue is as it
        was.

        It is safe with the next commit that names the object; until then a crash may bring the queue back. An object
        that was deleted may be deleted again: nothing happens, also when the name has a new queue by then. With an
        object that has died goes the queue that it was, also where that has been opened anew by then.
        """

    def put(queues: Sequence[OwnQueue], data: bytes, add_ms: int, expiry_ms: int) -> None:
        """Append one item to each of these queues: all or none in memory.

        Raises `StorageRefused`, `QueueFailed` or `ItemTooLarge` before anything has changed. A backend takes items
        of 16 MiB at least, and none of 2 GiB: it looks at ``len(data)`` before it copies any of it. The item is
        encoded once, and a backend that shares data may store it once. A crash may keep it in some of the
        queues and not in others.
        """

    def commit(queues: Sequence[OwnQueue]) -> Sequence[tuple[Sequence[IQueueStorage], Deferred[Any]]]:
        """Make safe all that was recorded on these queues.

        Returns (queues, Deferred) pairs of those that are not safe yet; a queue in no pair is as safe as its
        settings promise; () is the usual answer. Never called for a queue whose earlier Deferred is pending.
        Records of one queue keep call order; between queues there is none. On errback every queue of the pair
        is dead (calls raise `QueueFailed`), what was recorded on it since the commit began has failed too, and
        `queue` opens it at its last safe state. A queue dies in a commit alone, its own or that of one that it shares
        data with: a fault that is found at another time is told by the next one, with or without records. A failed
        fsync is never repeated on the same file. A queue that is dead when it is named is in a pair that fails, or
        `QueueFailed` is raised: a batch that stood on a lost one is never said to be safe. A deleted queue may still
        be named here once, and has no items to commit.
        """

    def close(compacts: bool = False) -> Deferred[None]:
        """Commit, checkpoint, release. Once, last.

        `compacts`: the server was taking no puts and may be down for long; leave little on the medium.
        """


class IStorageFactory(Interface):
    """The plugin: makes a storage of its described string ``name:argument?option=value``.

    `kestrel.storage.plugins` says where those of other distributions are found. A factory may have two attributes
    more: `unused_settings`, a set of names of settings of a queue (as `QueueSettings` has them) that its storages do
    not go by, and `largest_used`, a mapping of such names to the bytes beyond which they change nothing.
    """

    name: str = Attribute("The word before the colon.")
    help: str = Attribute("What it is and what its argument and options are, for people.")
    capabilities: frozenset[str] = Attribute(
        """What its storages promise beyond the interfaces, of:

        durable: what was committed outlives the process, and what it promises a sync for, the machine.
        ranges: its queues can be adapted to `IItemRanges`.
        shared_fanout: an item that is put to a fanout's queues together is stored once.
        errors_kept: an item's errors last as long as the item, over restarts of a durable storage too.
        order_kept: what was put back stays in that order over a restart, what was open in front of it; and a batch that
        a crash cuts short leaves the queue as it was after one of its calls. Without it, a restart brings what was
        open or put back in the order in which it was put, and a crash may leave the puts of a batch up to one call, and
        all else up to another.
        """
    )

    def storage(
        argument: str, options: Mapping[str, str], clock: IReactorTime, in_thread: InThread, memory: MemoryLimit
    ) -> IStorage:
        """A storage, or `BadStorageArgument` with a sentence. Touches nothing yet.

        `memory` is to be told how much the items in memory take (maxTotalMemory). While it `is_reached`, new items stay
        out of memory, or puts are refused.
        """


class IItemRanges(Interface):
    """Optional: durable item ids. An adapter of an `IQueueStorage`.

    One reader at a time may have a *hold* of the queue. From then on its items are kept until they are released,
    whatever else becomes of them: who takes them, what expires, a clear or a discard moves no id.
    """

    reader: bytes | None = Attribute("Who has the hold, or None.")
    first_id: int = Attribute(
        "The lowest id that is not yet released; without a hold also what was taken from the head counts as released."
    )
    next_id: int = Attribute(
        "The id of the next *safe* item, and never below `first_id`; items that are not safe yet are invisible."
    )

    def hold(reader: bytes) -> None:
        """That reader has the hold from now on, and so what `first_id` is now on. Recorded, and safe at commit; it
        outlives restarts. After one, ids that were seen before it are not given again, also where a power failure has
        taken the items."""

    def end_hold() -> None:
        """Nobody has it. What is in the queue stays there; the rest is kept no more. Recorded, and safe at commit."""

    def end_of(first_id: int, max_items: int) -> int:
        """An id that ends a range of no more than `max_items` safe items, from `first_id` on.

        It is behind `first_id` if there is any safe item from there on, however many ids before it no item has: who
        goes on there comes to all of them. Items for other queues alone may count, so that none of this one is in it.
        """

    def read_range(first_id: int, end_id: int, max_bytes: int) -> Deferred[list[tuple[int, Item]]]:
        """The items with an id from `first_id` on and below `end_id`, with these ids, in order.

        With a hold, the same answer every time until they are released: what has expired or is done is among them,
        what was put to other queues alone is not. No more than `max_bytes` of data, but one item at least if there is
        one; go on behind the last. Fails with `QueueFailed` when they cannot be read.
        """

    def release(end_id: int) -> None:
        """Everything below is done; recorded, safe at commit; repeating it is harmless."""


class IMeasuring(Interface):
    """Optional: a storage that tells how long its work takes. An adapter of an `IStorage`."""

    measure: Measure = Attribute(
        """Whom it tells. Set once, before `start`; called on the reactor's thread, and harmless where it is not.

        The names that the server knows are `fsync_delay_usec`, `journal_rewrite_usec`, `journal_rotation_usec` and
        `fill_readbehind_usec`, whole microseconds; others are shown as they are.
        """
    )


class IContinue(Interface):
    """Optional: confirm and add in one record. An adapter of an `IQueueStorage`."""

    def continue_(xid: int, data: bytes, add_ms: int, expiry_ms: int) -> None:
        """End that open read and append an item: both or neither, also in a crash.

        Raises as `IStorage.put`, before anything has changed. Of a number that is no open read only the item is
        appended: ask `IQueueStorage.is_open` before. The item may be said to have come 1 ms later.
        """
