"""Erasing what queues have left behind: no one sees it any more, so it has time, and needs no owner.

An id that was given up never comes back. So whoever still erases under it, even a server that no longer owns the
queues, can hit nothing that counts.
"""

from __future__ import annotations

from typing import Final

from kestrel_postgres.connection import Connection

SLICE: Final = 5000
"""Items erased at once: some 20 ms of the database's time, between which others have theirs."""

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
# And not at the beginning: the index still has what was erased, until the next vacuum.

FORGET: Final = "DELETE FROM leftovers WHERE queue = %s"


def has_leftovers(connection: Connection) -> bool:
    """Whether there is anything to be erased."""
    [(is_there,)] = connection.execute("SELECT EXISTS (SELECT FROM leftovers)")
    return bool(is_there)


def erase_slice(connection: Connection) -> bool:
    """Erase some items of one queue that is left; returns whether there may be more to do."""
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
