"""Conversion of a batch to a few SQL statements, which cover all queues and take whole columns as parameters.

The database identifies a queue by an id. Deleting a queue abandons its id, which hides all its items. `cleanup` deletes
them later, in slices. When a flush removes many items, the remaining items get a new id, and the old one is abandoned.
Otherwise a flush of a million items would delay all queues for seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from kestrel.storage.database import QueueChanges, StoredItem, StoredQueue, WriteBatch
from kestrel.storage.postgres.queries import QueueRow

Statement: TypeAlias = tuple[str, Sequence[Any]]

MANY_ITEMS: Final = 10_000
"""Number of removed items from which the remaining ones get a new id."""

INSERT_BYTES: Final = 4 << 20
"""Limit of data in one statement, unless a single item is larger. The database copies each message several times."""

ITEM_BYTES: Final = 64
"""Bytes of an item in a statement, without its data."""

FORGET_QUEUES: Final = "DELETE FROM queues WHERE id = ANY(%b::bigint[])"

LEAVE: Final = "INSERT INTO leftovers (queue) SELECT * FROM unnest(%b::bigint[])"

NEW_QUEUES: Final = """
INSERT INTO queues (id, name, items, bytes, floor, last)
SELECT * FROM unnest(%b::bigint[], %b::bytea[], %b::bigint[], %b::bigint[], %b::bigint[], %b::bigint[])
"""

KNOWN_QUEUES: Final = """
UPDATE queues SET items = new.items, bytes = new.bytes, floor = new.floor, last = new.last
FROM unnest(%b::bigint[], %b::bigint[], %b::bigint[], %b::bigint[], %b::bigint[])
    AS new(id, items, bytes, floor, last)
WHERE queues.id = new.id
"""

REMOVE: Final = """
DELETE FROM items
USING unnest(%b::bigint[], %b::bigint[], %b::bigint[]) AS gone(queue, first, last)
WHERE items.queue = gone.queue AND items.position BETWEEN gone.first AND gone.last
"""

KEEP: Final = """
UPDATE items SET queue = kept.new_queue
FROM unnest(%b::bigint[], %b::bigint[], %b::bigint[], %b::bigint[]) AS kept(queue, new_queue, first, last)
WHERE items.queue = kept.queue AND items.position BETWEEN kept.first AND kept.last
"""

ERRORS: Final = """
UPDATE items SET errors = new.errors
FROM unnest(%b::bigint[], %b::bigint[], %b::bigint[]) AS new(queue, position, errors)
WHERE items.queue = new.queue AND items.position = new.position
"""

PUT: Final = """
INSERT INTO items (queue, position, data, add_ms, expiry_ms, errors)
SELECT * FROM unnest(%b::bigint[], %b::bigint[], %b::bytea[], %b::bigint[], %b::bigint[], %b::bigint[])
"""

LAST_POSITION: Final = 2**63 - 1


class Plan:
    """The SQL statements of a batch.

    `queues` are the present queues by name, and `next_queue` is the id of the next new queue.
    """

    def __init__(self, batch: WriteBatch, queues: Mapping[bytes, QueueRow], next_queue: int) -> None:
        self.next_queue = next_queue
        """Id of the next new queue after the batch."""
        self._after: dict[bytes, QueueRow | None] = {}
        """Changed queues by name. None: the queue is deleted."""
        self.left: list[int] = []
        """Abandoned ids, whose items have to be deleted."""
        self._new: list[tuple[int, StoredQueue]] = []
        self._updated: list[tuple[int, StoredQueue]] = []
        self._removed: list[tuple[int, int, int]] = []
        self._kept: list[tuple[int, int, int, int]] = []
        self._errors: list[tuple[int, int, int]] = []
        self._puts: list[tuple[int, StoredItem]] = []
        for changes in batch.changes:
            self._add(changes, queues.get(changes.queue.name))

    def statements(self) -> Iterator[Statement]:
        """Generate the statements in order. None returns rows."""
        if self.left:
            yield FORGET_QUEUES, [self.left]
            yield LEAVE, [self.left]
        if self._kept:
            yield KEEP, _columns(self._kept)
        if self._removed:
            yield REMOVE, _columns(self._removed)
        if self._errors:
            yield ERRORS, _columns(self._errors)
        if self._new:
            yield NEW_QUEUES, _columns([(id, *queue) for id, queue in self._new])
        if self._updated:
            yield KNOWN_QUEUES, _columns([(id, *queue[1:]) for id, queue in self._updated])
        for puts in self._slices():
            yield PUT, _columns([(id, item.position, item.data, *item[2:]) for id, item in puts])

    def bring_up_to_date(self, queues: dict[bytes, QueueRow]) -> None:
        """Update the mapping of present queues after the batch is applied."""
        for name, queue in self._after.items():
            if queue is not None:
                queues[name] = queue
            else:
                queues.pop(name, None)

    def _add(self, changes: QueueChanges, before: QueueRow | None) -> None:
        queue = changes.queue
        if before is not None and (changes.is_new or changes.is_deleted):
            self.left.append(before.id)
            before = None
        if changes.is_deleted:
            self._after[queue.name] = None
            return
        id = self._new_queue(queue) if before is None else self._remove(changes, before)
        self._after[queue.name] = QueueRow(id, queue)
        self._puts += [(id, item) for item in changes.puts]
        self._errors += [(id, position, errors) for position, errors in changes.errors.items()]

    def _new_queue(self, queue: StoredQueue) -> int:
        id = self.next_queue
        self.next_queue += 1
        self._new.append((id, queue))
        return id

    def _remove(self, changes: QueueChanges, before: QueueRow) -> int:
        """Record the removes of a queue. Return its id after the batch."""
        stay = changes.queue.items - len(changes.puts)
        go = before.stored.items - stay
        if go < MANY_ITEMS or go < 10 * stay:
            self._removed += [(before.id, first, last) for first, last in changes.removed]
            self._updated.append((before.id, changes.queue))
            return before.id
        id = self._new_queue(changes.queue)
        self.left.append(before.id)
        self._kept += [(before.id, id, first, last) for first, last in _between(changes.removed)]
        return id

    def _slices(self) -> Iterator[list[tuple[int, StoredItem]]]:
        puts: list[tuple[int, StoredItem]] = []
        size = 0
        for put in self._puts:
            size += len(put[1].data) + ITEM_BYTES
            if puts and size > INSERT_BYTES:
                yield puts
                puts, size = [], len(put[1].data) + ITEM_BYTES
            puts.append(put)
        if puts:
            yield puts


def _between(removed: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Generate the ranges of positions that are not in the removed ranges."""
    begin = 0
    for first, last in removed:
        if first > begin:
            yield begin, first - 1
        begin = last + 1
    if begin <= LAST_POSITION:
        yield begin, LAST_POSITION


def _columns(rows: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]
