"""`IDatabase`, the interface that the author of a storage over a database implements.

`kestrel.storage.windowed.WindowedStorage` turns it into a storage. It keeps the heads of the queues in memory, and
passes recorded changes to the database in batches, one at a time. docs/storage_plugins.md shows an example.

All methods are called on the reactor thread, so slow work belongs in threads or in asynchronous calls. `list_queues` is
called first, once. Calls of `apply` and `read_after` follow, with at most one `apply` pending, and any number of
`read_after`. `close` is called last, once.
"""

# An interface's methods have no self, which is how zope.interface writes them.
# mypy: disable-error-code="empty-body,misc"

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from twisted.internet.defer import Deferred
from zope.interface import Interface


class StoredItem(NamedTuple):
    """An item as the database stores it."""

    position: int
    """Position in its queue. Later items have higher positions, up to 2^63 - 1. A queue never reuses one."""
    data: bytes
    add_ms: int
    """When it was put, in milliseconds since the epoch."""
    expiry_ms: int
    """When it expires, in milliseconds since the epoch, or 0 for never."""
    errors: int
    """How often it was taken and returned as failed."""


class StoredQueue(NamedTuple):
    """The database's record of a queue. It is stored unchanged, and returned by `list_queues`."""

    name: bytes
    """Any bytes, at most 255 of them."""
    items: int
    """Number of items, including open reads, which are ordinary items to the database."""
    bytes: int
    """Bytes of the items' data."""
    floor: int
    """No item is stored at this position or below."""
    last: int
    """The highest position ever used, or 0 if there was none."""


class QueueChanges(NamedTuple):
    """The changes of one batch to one queue. A position is in only one of `removed`, `puts` and `errors`."""

    queue: StoredQueue
    """The record of the queue after the batch."""
    is_new: bool
    """Whether to delete everything stored under that name first."""
    is_deleted: bool
    """Whether to delete the queue and all its items. Nothing else is to be done then."""
    removed: Sequence[tuple[int, int]]
    """Inclusive ranges of positions, lowest first, whose items are to be deleted. A position may have no item."""
    puts: Sequence[StoredItem]
    """New items, lowest position first, above all other items of the queue."""
    errors: Mapping[int, int]
    """New error counts of items, by position."""


class WriteBatch(NamedTuple):
    """Changes that are written together: all of them or none."""

    number: int
    """1 for the first batch after `list_queues`. Each later batch has a higher number."""
    changes: Sequence[QueueChanges]
    """At most one entry for each queue."""


class IDatabase(Interface):
    """A store for the items of a `WindowedStorage`. Each method returns a Deferred."""

    def list_queues() -> Deferred[Sequence[StoredQueue]]:
        """Take ownership, and return all queues as the last batch left them.

        From then on only this object may change the database. A previous owner that does not know yet that it has lost
        the database must not be able to apply anything. Fails with `StorageInUse` if another server is the owner, or
        with a `StorageError` whose message says what is wrong and what to do.
        """

    def read_after(name: bytes, position: int, n: int, max_bytes: int) -> Deferred[Sequence[StoredItem]]:
        """Return the items of the queue after that position, lowest first.

        The result has at most `n` items and at most `max_bytes` of data, but at least one item if there is one. It
        shows all batches whose `apply` has fired, and all or nothing of a pending one. Fails with a `StorageError` if
        the items cannot be read now.
        """

    def apply(batch: WriteBatch) -> Deferred[None]:
        """Apply the batch in one transaction. The Deferred fires when it is as durable as the database can make it.

        A batch with the number of the last applied batch has been applied already: change nothing, and fire. So the
        transaction stores the number of its batch. Failures:

        - `DatabaseAway`: the database did not answer, so the batch may have been applied or not. The same batch is
          passed again until its result is known. Puts are refused meanwhile.
        - `OwnershipLost`: another server may own the database now. Neither this batch nor a later one is applied.
        - `StorageRefused`: there is no room, and nothing was applied. Puts are refused for some seconds.
        - anything else: nothing was applied. The changes of each queue are tried alone. Queues whose changes fail again
          are reopened in the state of their last batch.
        """

    def close() -> Deferred[None]:
        """Release the database, even if `list_queues` failed.

        Called once, last. Other calls may still be pending, including `list_queues`. Their results are ignored.
        """
