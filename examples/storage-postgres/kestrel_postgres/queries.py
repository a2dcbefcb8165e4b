"""SQL that reads: which queues there are, and the items behind a position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from kestrel.errors import DatabaseAway, OwnershipLost
from kestrel.storage.database import StoredItem, StoredQueue
from kestrel_postgres.connection import Connection
from kestrel_postgres.failures import TAKEN_OVER

QUEUES: Final = "SELECT id, name, items, bytes, gone_to, last FROM queues"

ITEMS: Final = """
SELECT o.epoch, o.batch, i.position, i.data, i.add_ms, i.expiry_ms, i.errors
FROM owner o
LEFT JOIN queues q ON q.name = %(name)s
LEFT JOIN LATERAL (
    SELECT *, sum(octet_length(data)) OVER up_to_here AS bytes, row_number() OVER up_to_here AS number
    FROM (
        SELECT position, data, add_ms, expiry_ms, errors
        FROM items
        WHERE queue = q.id AND position > greatest(%(position)s, q.gone_to)
        ORDER BY position
        LIMIT least(%(n)s, 16 + 2 * %(max_bytes)s::float8 * q.items / greatest(q.bytes, 1))::bigint
    ) AS first_ones
    WINDOW up_to_here AS (ORDER BY position ROWS UNBOUNDED PRECEDING)
) AS i ON i.bytes <= %(max_bytes)s OR i.number = 1
ORDER BY i.position
"""
# Sizes are added up in the database, so that what is too much is never sent. It must not look at all n items for that
# when a few are enough: so it looks at no more than twice as many as there should be by the queue's average.
#
# Items behind gone_to alone: in front of it the index is full of entries of rows that are no more, and are there until
# the next vacuum.
#
# The owner's row comes with it, of the same moment: it tells whether this is the database that the batches went to.


class Queue(NamedTuple):
    """A queue, and what its items are found by: names are long, and a name that comes again is another queue."""

    id: int
    stored: StoredQueue


def list_queues(connection: Connection) -> list[Queue]:
    """All queues."""
    with connection.cursor(binary=True) as cursor:
        return [Queue(id, StoredQueue(*columns)) for id, *columns in cursor.execute(QUEUES)]


def read_after(
    connection: Connection, name: bytes, position: int, n: int, max_bytes: int, *, epoch: int | None, number: int
) -> Sequence[StoredItem]:
    """The items behind that position, as they are after batch `number` of that epoch, or a later one.

    Raises `OwnershipLost` in another epoch, and `DatabaseAway` when this database has not come that far.
    """
    with connection.cursor(binary=True) as cursor:
        cursor.execute(ITEMS, {"name": name, "position": position, "n": n, "max_bytes": max_bytes})
        rows = cursor.fetchall()
    epoch_there, number_there = rows[0][:2]
    if epoch_there != epoch:
        raise OwnershipLost(TAKEN_OVER)
    if number_there < number:
        raise DatabaseAway("the database that is read is behind the one that is written to")
    return [StoredItem(*row[2:]) for row in rows if row[2] is not None]
