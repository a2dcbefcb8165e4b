"""Connection parameters and settings of each database session."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import psycopg
from psycopg import sql

from kestrel.errors import StorageError
from kestrel.storage.postgres.connection import Connection

OLDEST: Final = 140_000
"""PostgreSQL 14, the first version that notices a disconnected client while it runs a statement."""

CONNECT: Final[Mapping[str, str]] = {
    "connect_timeout": "10",
    # A dead network is noticed after 10 + 3 * 5 s on an idle connection, and after 30 s if sent data is not
    # acknowledged.
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
    # Connect to the host that accepts writes. A standby is useless.
    "target_session_attrs": "read-write",
    # An isolated primary still accepts connections, but cannot commit without its standby. With a fixed order, each
    # attempt would reach it before the new primary.
    "load_balance_hosts": "random",
    "application_name": "kestrel",
    "client_encoding": "UTF8",
}
"""Connection parameters that the connection string may override."""

SESSION: Final[Mapping[str, str]] = {
    # These let the database notice a dead network. Until then our dead session still holds the lock.
    "tcp_keepalives_idle": "10s",
    "tcp_keepalives_interval": "5s",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "30s",
    # Every statement should scan an index over just the rows that it needs. The planner knows a queue only as of the
    # last ANALYZE, and would sometimes choose to read and sort a whole table or queue. A generic plan saves planning
    # again.
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
}


def begin(connection: Connection, schema: str, timeout_s: float, lock_s: float) -> None:
    """Apply the settings to a new session. Raises `StorageError` if the server is too old."""
    if connection.info.server_version < OLDEST:
        raise StorageError("the database is older than PostgreSQL 14")
    timeout = f"{round(timeout_s * 1000)}ms"
    settings = {
        **SESSION,
        "search_path": sql.Identifier(schema).as_string(connection),
        "lock_timeout": f"{round(lock_s * 1000)}ms",
        # Ends a disconnected session, which still holds its locks.
        "statement_timeout": timeout,
        "idle_in_transaction_session_timeout": timeout,
    }
    connection.execute(
        "SELECT set_config(name, value, false) FROM unnest(%s::text[], %s::text[]) AS t(name, value)",
        (list(settings), list(settings.values())),
    )
    # Detects a disconnected client during a statement. Servers on some systems do not support it.
    with suppress(psycopg.errors.InvalidParameterValue):
        connection.execute("SET client_connection_check_interval = '1s'")
