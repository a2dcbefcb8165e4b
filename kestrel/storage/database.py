"""What the author of a storage over a database writes: `IDatabase`, three methods and a last one.

`kestrel.storage.windowed.WindowedStorage` makes a whole storage of it: it keeps the heads of the queues in memory, and
hands down what is recorded in batches, one after the other. docs/storage_plugins.md goes through an example.

Called on the reactor thread only, as everything of a storage: what takes time happens in threads, or asynchronously.
`list_queues` is the first call, once; then any mixture of `apply`, of which one at most is pending, and `read_after`,
of which there may be several; then `close`, once.
"""

# An interface's methods have no self, which is how zope.interface writes them.
# mypy: disable-error-code="empty-body,misc"

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from twisted.internet.defer import Deferred
from zope.interface import Interface


class StoredItem(NamedTuple):
    """An item as the database keeps it."""

    position: int
    """Where it stands in its queue: later items have higher positions, up to 2^63 - 1. No queue gives one twice."""
    data: bytes
    add_ms: int
    """When it was put, in milliseconds since the epoch."""
    expiry_ms: int
    """When it expires, in milliseconds since the epoch; 0 is never."""
    errors: int
    """How often it was taken and came back failed."""


class StoredQueue(NamedTuple):
    """What the database knows of a queue as a whole: kept as it is given, and given back by `list_queues`."""

    name: bytes
    """Any bytes, up to 255 of them."""
    items: int
    """How many it has, open reads among them: to the database they are items as all others."""
    bytes: int
    """Their data, in bytes."""
    floor: int
    """No item stands at this position or below."""
    last: int
    """The highest position that was ever given; 0 before the first."""


class QueueChanges(NamedTuple):
    """What one batch changes in one queue. `removed`, `puts` and `errors` are of different positions."""

    queue: StoredQueue
    """What is to be known of it afterwards."""
    is_new: bool
    """Whatever was kept under that name before goes first."""
    is_deleted: bool
    """The queue and all its items go; there is nothing else to do."""
    removed: Sequence[tuple[int, int]]
    """Ranges of positions, lowest first; both ends are part of them. No item stands there afterwards."""
    puts: Sequence[StoredItem]
    """New items, lowest position first, above all others of the queue."""
    errors: Mapping[int, int]
    """By position, the error counts of items that failed since."""


class WriteBatch(NamedTuple):
    """What is written together, all of it or nothing."""

    number: int
    """1 for the first after `list_queues`; each later batch has a higher one."""
    changes: Sequence[QueueChanges]
    """At most one entry for each queue."""


class IDatabase(Interface):
    """Where the items of a `WindowedStorage` are kept. Each method returns a Deferred."""

    def list_queues() -> Deferred[Sequence[StoredQueue]]:
        """Take ownership, and tell which queues there are, as the last batch left each.

        From here on the database belongs to this object alone: a server that owned it before and does not know yet that
        it no longer does must not be able to apply anything. Fails with `StorageInUse` if another one owns it, or with
        a `StorageError` whose sentence says what is wrong and what to do.
        """

    def read_after(name: bytes, position: int, n: int, max_bytes: int) -> Deferred[Sequence[StoredItem]]:
        """The items of that queue behind that position, lowest first.

        No more than `n` of them, and no more than `max_bytes` of data, but one item at least if there is one. What
        batches did whose `apply` has fired is seen; of one that is pending all or nothing. Fails with a `StorageError`
        when they cannot be read now.
        """

    def apply(batch: WriteBatch) -> Deferred[None]:
        """Do all of that batch, in one transaction; fires when it is as durable as the database makes anything.

        A batch whose number is that of the last one applied has been applied: it changes nothing, and fires. So the
        last number is part of the transaction. How it can fail:

        - `DatabaseAway`: the database did not answer, and the batch may have been applied or not. The same batch comes
          again, until there is another outcome. Puts are refused meanwhile.
        - `OwnershipLost`: another server may own the database by now. Nothing of this batch or a later one is applied.
        - `StorageRefused`: there is no room. Nothing was applied. Puts are refused for some seconds.
        - anything else: nothing was applied. Queues whose changes fail even alone die, and are opened at the state of
          their last batch.
        """

    def close() -> Deferred[None]:
        """Let go of the database, also where `list_queues` failed.

        Once, last. Any other call may be pending still, `list_queues` too: nobody waits for its outcome.
        """
