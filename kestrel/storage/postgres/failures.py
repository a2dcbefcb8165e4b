"""Mapping of PostgreSQL errors to storage errors. Messages contain no data and no password."""

from __future__ import annotations

from typing import Final

import psycopg

from kestrel.errors import DatabaseAway, OwnershipLost, StorageError, StorageRefused

TAKEN_OVER: Final = "another server has taken the queues over; to take them back, restart this server"

DISK_FULL: Final = "53100"
READ_ONLY: Final = "25006"
NOT_NULL: Final = "23502"

NOT_REPLICATED: Final = "SyncRepWaitForLSN"
"""Function in PostgreSQL that warns if a commit stops waiting for its synchronous standby.

`pg_cancel_backend` or a timeout causes this. The name does not depend on the language of the server, and only this
warning distinguishes such a commit from a safe one.
"""

PASSING: Final = (
    "40",  # deadlock, serialization failure
    "53",  # not enough memory, connections or other resources
    "55P03",  # another session holds a lock
    "57",  # operator intervention, shutdown, timeout
)
"""Prefixes of SQLSTATEs that do not depend on the batch, which can be retried."""


def meaning(error: psycopg.Error) -> StorageError:
    """Return the storage error for an error after which the database has rolled back."""
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
    """Return an error in one line, without its details, which may contain items."""
    said = error.diag.message_primary or str(error) or type(error).__name__
    line = "; ".join(part.strip() for part in said.splitlines() if part.strip())
    return f"{line} ({error.sqlstate})" if error.sqlstate else line
