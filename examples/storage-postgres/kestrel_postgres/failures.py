"""What the errors of PostgreSQL mean to the storage. The sentences name no data and no password."""

from __future__ import annotations

from typing import Final

import psycopg

from kestrel.errors import DatabaseAway, OwnershipLost, StorageError, StorageRefused

TAKEN_OVER: Final = "another server has taken the queues over; restart this one where they are to be its own"

DISK_FULL: Final = "53100"
READ_ONLY: Final = "25006"
NOT_NULL: Final = "23502"

NOT_REPLICATED: Final = "SyncRepWaitForLSN"
"""Where in PostgreSQL a warning comes from, whatever its language: a commit was to wait for a synchronous standby, and
that wait was ended, by `pg_cancel_backend` or a timeout. Nothing else tells it from one that is safe."""

PASSING: Final = (
    "40",  # deadlock, serialization: do it again
    "53",  # memory, connections, and other things that the database is short of for now
    "55P03",  # somebody else holds a lock
    "57",  # an operator, a shutdown, a timeout
)
"""Beginnings of the SQLSTATEs that say nothing about the batch: it may as well come again."""


def meaning(error: psycopg.Error) -> StorageError:
    """The database answered with this, and has undone what it was part of."""
    state = error.sqlstate or ""
    if state == DISK_FULL:
        return StorageRefused(sentence(error))
    if state == READ_ONLY:
        return DatabaseAway("the database takes no writes: it is a standby, or was made read-only")
    if state == NOT_NULL and error.diag.table_name == "owner":  # see ownership.FENCE
        return OwnershipLost(TAKEN_OVER)
    if state.startswith(PASSING):
        return DatabaseAway(f"the database cannot do it now: {sentence(error)}")
    return StorageError(sentence(error))


def sentence(error: psycopg.Error) -> str:
    """The error in one line. Its details are left out: they may hold what a client put."""
    said = error.diag.message_primary or str(error) or type(error).__name__
    line = "; ".join(part.strip() for part in said.splitlines() if part.strip())
    return f"{line} ({error.sqlstate})" if error.sqlstate else line
