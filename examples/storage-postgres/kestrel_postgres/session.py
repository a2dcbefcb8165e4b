"""What is set in each session with the database, and why."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import psycopg
from psycopg import sql

from kestrel.errors import StorageError
from kestrel_postgres.connection import Connection

OLDEST: Final = 140_000
"""PostgreSQL 14 is the first that notices a client that has gone while it works for it."""

CONNECT: Final[Mapping[str, str]] = {
    "connect_timeout": "10",
    # A network that has gone without a word: noticed after 10 + 3 * 5 s where nothing is under way, and after 30 s
    # where something has been sent that is never acknowledged.
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
    # Of several hosts the one that takes writes. A standby is as good as none.
    "target_session_attrs": "read-write",
    "application_name": "kestrel",
    "client_encoding": "UTF8",
}
"""How to connect, where the connection string says nothing else."""

SESSION: Final[Mapping[str, str]] = {
    # The same as above, seen from the database: until it has given up a dead session of ours, that one holds our lock.
    "tcp_keepalives_idle": "10s",
    "tcp_keepalives_interval": "5s",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "30s",
    # Every statement here goes along an index, from where it has to begin to where it has enough. The planner, which
    # knows a queue only as it was at the last ANALYZE, would now and then think it shorter to read the whole table, or
    # the whole queue, and sort it; and it need not think again each time.
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
}


def begin(connection: Connection, schema: str, timeout_s: float, lock_s: float) -> None:
    """Set all that. Raises `StorageError` when the server is too old."""
    if connection.info.server_version < OLDEST:
        raise StorageError("the database is older than PostgreSQL 14")
    timeout = f"{round(timeout_s * 1000)}ms"
    settings = {
        **SESSION,
        "search_path": sql.Identifier(schema).as_string(connection),
        "lock_timeout": f"{round(lock_s * 1000)}ms",
        # So that a session that was cut does not go on for long, with its locks.
        "statement_timeout": timeout,
        "idle_in_transaction_session_timeout": timeout,
    }
    connection.execute(
        "SELECT set_config(name, value, false) FROM unnest(%s::text[], %s::text[]) AS t(name, value)",
        (list(settings), list(settings.values())),
    )
    # The same for one that is busy. Servers on some systems cannot.
    with suppress(psycopg.errors.InvalidParameterValue):
        connection.execute("SET client_connection_check_interval = '1s'")
