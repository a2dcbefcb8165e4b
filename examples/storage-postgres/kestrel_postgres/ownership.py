"""One owner at a time: a lock for those who are alive, an epoch for those who do not know that they have lost it.

The lock is the session's, and goes with it: when the server dies, and also when just its connection does. So it cannot
keep a server from writing that was out of reach for a while and comes back. The epoch can: it is in a row that each
batch changes, and a batch of another epoch fails there.

The same row has the number of the last batch. After a lost connection it tells whether that batch was applied.
"""

from __future__ import annotations

import os
import socket
from typing import Any, Final

import psycopg

from kestrel.errors import DatabaseAway, OwnershipLost, StorageInUse
from kestrel_postgres.connection import Connection
from kestrel_postgres.failures import TAKEN_OVER

LOCK_S: Final = 5.0
"""How long a lock is waited for: longer than the database takes to notice that a session is dead which holds it."""

LOCK: Final = "SELECT pg_advisory_lock(1802859380, ('owner'::regclass::oid::bigint - 2147483648)::int)"
# Two numbers that say which lock: "kest", and the table, so that each schema has a lock of its own.

FENCE: Final = """
UPDATE owner SET
    batch = CASE WHEN epoch = %(epoch)s AND batch = %(previous)s THEN %(number)s END,
    next_queue = %(next_queue)s
"""
# Without an answer to wait for: where the row is another owner's, it is set to NULL, which it must not be. So it fails,
# and with it all that follows in its transaction, which is on its way already.

IS_MINE: Final = "UPDATE owner SET server = server WHERE epoch = %s RETURNING batch, next_queue"
# A write, and not a SELECT. A batch that was applied while its answer got lost may not have reached the standby that
# it has to wait for: when this is safe, that is as well.

TAKE: Final = "UPDATE owner SET epoch = epoch + 1, batch = 0, server = %s RETURNING epoch, next_queue"

END_SESSION: Final = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = %s AND backend_start = %s::text::timestamptz
"""

WHO_I_AM: Final = "SELECT pid, backend_start::text FROM pg_stat_get_activity(pg_backend_pid())"


class Ownership:
    """What the row of the owner has, as far as is known. Used in the thread that has the connection that writes."""

    def __init__(self) -> None:
        self.epoch: int | None = None
        """Ours; None before the queues were taken."""
        self.number = 0
        """That of the last batch that is known to be applied."""
        self.next_queue = 0
        """The id of the next new queue."""
        self._session: tuple[Any, ...] | None = None

    def claim(self, connection: Connection) -> None:
        """Take the queues, or after a lost connection make sure that they are still ours.

        Raises `StorageInUse`, or `OwnershipLost`, or `DatabaseAway` as long as that cannot be told.
        """
        if self.epoch is None:
            self._take(connection)
        else:
            self._take_again(connection, self.epoch)
        self._session = connection.execute(WHO_I_AM).fetchone()

    def fence(self, connection: Connection, number: int, next_queue: int) -> None:
        """Make what follows in this transaction part of that batch, or fail."""
        connection.execute(
            FENCE,
            {"epoch": self.epoch, "previous": self.number, "number": number, "next_queue": next_queue},
        )

    def _take(self, connection: Connection) -> None:
        if not _has_lock(connection):
            [(server,)] = connection.execute("SELECT server FROM owner")
            raise StorageInUse(
                f"the queues are in use by {server or 'another server'}: stop that one first, or name another schema"
            )
        this_server = f"process {os.getpid()} on {socket.gethostname()}"
        [(self.epoch, self.next_queue)] = connection.execute(TAKE, (this_server,))

    def _take_again(self, connection: Connection, epoch: int) -> None:
        [(epoch_there,)] = connection.execute("SELECT epoch FROM owner")
        if epoch_there != epoch:
            raise OwnershipLost(TAKEN_OVER)
        if self._session is not None:
            # Our own old session may not have noticed yet that there is nobody at the other end.
            connection.execute(END_SESSION, self._session)
        if not _has_lock(connection):
            raise DatabaseAway("the old session with the database still holds the queues")
        row = connection.execute(IS_MINE, (epoch,)).fetchone()
        if row is None:
            raise OwnershipLost(TAKEN_OVER)
        number, next_queue = row
        if number < self.number:
            raise OwnershipLost(
                "the database has lost changes that it had acknowledged (a standby that was behind took over?):"
                " restart this server to go on with what there is"
            )
        self.number, self.next_queue = number, next_queue


def _has_lock(connection: Connection) -> bool:
    """Waits for it as long as the session waits for locks."""
    try:
        connection.execute(LOCK)
    except psycopg.errors.LockNotAvailable:
        return False
    return True
