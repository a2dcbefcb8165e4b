"""Deletion of the items of abandoned queue ids, in slices.

An abandoned id is never used again. Deleting its items is therefore safe for any server, even one that no longer owns
the queues.
"""

from __future__ import annotations

from typing import Final

from kestrel.storage.postgres.connection import Connection

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
    """Delete a slice of the items of one abandoned id. Return True if more may remain."""
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
