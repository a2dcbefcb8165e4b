"""Exclusive ownership of the queues, with a lock and an epoch.

The lock belongs to the session and ends with it, even if only the connection of the server breaks. It cannot stop a
server that was disconnected for a while from writing. The epoch can: it is in a row that each batch changes, and a
batch with another epoch fails.

This row also has the number of the last batch. After a lost connection it shows whether that batch was applied.
"""

from __future__ import annotations

import os
import socket
from typing import Any, Final

import psycopg

from kestrel.errors import DatabaseAway, OwnershipLost, StorageInUse
from kestrel.storage.postgres.connection import TAKEN_OVER, Connection

LOCK_S: Final = 5.0
"""Time limit for acquiring a lock. It exceeds the time in which the database notices a dead session with the lock."""

LOCK: Final = "SELECT pg_advisory_lock(1802859380, ('owner'::regclass::oid::bigint - 2147483648)::int)"
# The first number is "kest". The second identifies the table, so that each schema has its own lock.

FENCE: Final = """
UPDATE owner SET
    batch = CASE WHEN epoch = %(epoch)s AND batch = %(previous)s THEN %(number)s END,
    next_queue = %(next_queue)s
"""
# This needs no round trip. If the row belongs to another owner, `batch` becomes NULL, which violates its constraint.
# The transaction fails, including the statements that are already sent.

IS_MINE: Final = "UPDATE owner SET server = server WHERE epoch = %s RETURNING batch, next_queue"
# This is an UPDATE, not a SELECT, because the last batch may not have reached its synchronous standby when its reply
# was lost. When this commit is safe, the batch is safe too.

TAKE: Final = "UPDATE owner SET epoch = epoch + 1, batch = 0, server = %s RETURNING epoch, next_queue"

END_SESSION: Final = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = %s AND backend_start = %s::text::timestamptz
"""

WHO_I_AM: Final = "SELECT pid, backend_start::text FROM pg_stat_get_activity(pg_backend_pid())"


class Ownership:
    """The known values of the row of the owner. Belongs to the thread of the write connection."""

    def __init__(self) -> None:
        self.epoch: int | None = None
        """Epoch of this server. None: it does not own the queues yet."""
        self.number = 0
        """Number of the last batch that is known to be applied."""
        self.next_queue = 0
        """Id of the next new queue."""
        self._session: tuple[Any, ...] | None = None

    def claim(self, connection: Connection) -> None:
        """Take ownership of the queues, or verify it after a lost connection.

        Raises `StorageInUse` if another server owns them at the start, `OwnershipLost` if another server has taken
        them, and `DatabaseAway` while the owner is unknown.
        """
        if self.epoch is None:
            self._take(connection)
        else:
            self._take_again(connection, self.epoch)
        self._session = connection.execute(WHO_I_AM).fetchone()

    def fence(self, connection: Connection, number: int, next_queue: int) -> None:
        """Check the epoch and record the batch number, so that the transaction fails if another server owns the
        queues."""
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
            # The database may not have noticed yet that our old session has ended.
            connection.execute(END_SESSION, self._session)
        if not _has_lock(connection):
            raise DatabaseAway("the old session with the database still holds the queues")
        row = connection.execute(IS_MINE, (epoch,)).fetchone()
        if row is None:
            raise OwnershipLost(TAKEN_OVER)
        number, next_queue = row
        if number < self.number:
            raise OwnershipLost(
                "the database has lost changes that it had acknowledged (did a lagging standby take over?): restart"
                " this server to continue with the remaining items"
            )
        self.number, self.next_queue = number, next_queue


def _has_lock(connection: Connection) -> bool:
    """Acquire the lock. Return False if another session holds it until the lock timeout."""
    try:
        connection.execute(LOCK)
    except psycopg.errors.LockNotAvailable:
        return False
    return True
