"""SQL that lists the queues, reads the items above a position, and deletes the items of abandoned queue ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from kestrel.errors import DatabaseAway, OwnershipLost
from kestrel.storage.database import StoredItem, StoredQueue
from kestrel.storage.postgres.connection import TAKEN_OVER, Connection

QUEUES: Final = "SELECT id, name, items, bytes, floor, last FROM queues"

ITEMS: Final = """
SELECT o.epoch, o.batch, i.position, i.data, i.add_ms, i.expiry_ms, i.errors
FROM owner o
LEFT JOIN queues q ON q.name = %(name)s
LEFT JOIN LATERAL (
    SELECT *, sum(octet_length(data)) OVER up_to_here AS bytes, row_number() OVER up_to_here AS number
    FROM (
        SELECT position, data, add_ms, expiry_ms, errors
        FROM items
        WHERE queue = q.id AND position > greatest(%(position)s, q.floor)
        ORDER BY position
        LIMIT least(%(n)s, 16 + 2 * %(max_bytes)s::float8 * q.items / greatest(q.bytes, 1))::bigint
    ) AS first_ones
    WINDOW up_to_here AS (ORDER BY position ROWS UNBOUNDED PRECEDING)
) AS i ON i.bytes <= %(max_bytes)s OR i.number = 1
ORDER BY i.position
"""
# The database sums the sizes, so that it sends no more than `max_bytes`. A few items may be enough, so it does not
# examine all n items, but at most about twice as many as the average item size suggests.
#
# Only items above floor are read, because below it the index contains deleted entries until the next vacuum.
#
# The row of the owner, from the same snapshot, shows if this database has applied the batches.


class QueueRow(NamedTuple):
    """A queue with the id that its items refer to. A new queue with an old name has a new id."""

    id: int
    stored: StoredQueue


def list_queues(connection: Connection) -> list[QueueRow]:
    """Return all queues."""
    with connection.cursor(binary=True) as cursor:
        return [QueueRow(id, StoredQueue(*columns)) for id, *columns in cursor.execute(QUEUES)]


def read_after(
    connection: Connection, name: bytes, position: int, n: int, max_bytes: int, *, epoch: int | None, number: int
) -> Sequence[StoredItem]:
    """Return the items above a position, as of batch `number` or a later one.

    Raises `OwnershipLost` if the database has another epoch, and `DatabaseAway` if it has not applied that batch yet.
    """
    with connection.cursor(binary=True) as cursor:
        cursor.execute(ITEMS, {"name": name, "position": position, "n": n, "max_bytes": max_bytes})
        rows = cursor.fetchall()
    epoch_there, number_there = rows[0][:2]
    if epoch_there != epoch:
        raise OwnershipLost(TAKEN_OVER)
    if number_there < number:
        raise DatabaseAway("the connected database lags behind the primary")
    return [StoredItem(*row[2:]) for row in rows if row[2] is not None]


SLICE: Final = 5000
"""Items deleted at once, about 20 ms of work, so that other transactions run in between."""

NEXT: Final = "SELECT queue, erased_to FROM leftovers ORDER BY queue LIMIT 1 FOR UPDATE"

ERASE: Final = """
WITH gone AS (
    DELETE FROM items WHERE queue = %(queue)s AND position > %(erased_to)s AND position <= (
        SELECT max(position) FROM (
            SELECT position FROM items
            WHERE queue = %(queue)s AND position > %(erased_to)s ORDER BY position LIMIT %(n)s
        ) AS slice
    ) RETURNING position
)
SELECT max(position) FROM gone
"""

GO_ON_BEHIND: Final = "UPDATE leftovers SET erased_to = %s WHERE queue = %s"
# The next slice starts behind this position, because the index keeps deleted entries until the next vacuum.

FORGET: Final = "DELETE FROM leftovers WHERE queue = %s"


def has_leftovers(connection: Connection) -> bool:
    """Return True if items of abandoned ids remain."""
    [(is_there,)] = connection.execute("SELECT EXISTS (SELECT FROM leftovers)")
    return bool(is_there)


def erase_slice(connection: Connection) -> bool:
    """Delete a slice of the items of one abandoned id. Return True if more may remain.

    An abandoned id is never used again. Deleting its items is therefore safe for any server, even one that no longer
    owns the queues.
    """
    with connection.transaction():
        left = connection.execute(NEXT).fetchone()
        if left is None:
            return False
        queue, erased_to = left
        [(last,)] = connection.execute(ERASE, {"queue": queue, "erased_to": erased_to, "n": SLICE})
        if last is None:
            connection.execute(FORGET, (queue,))
        else:
            connection.execute(GO_ON_BEHIND, (last, queue))
    return True
