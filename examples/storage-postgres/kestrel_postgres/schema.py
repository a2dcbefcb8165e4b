"""The tables: what they hold, and how they are made when there are none yet."""

from __future__ import annotations

from typing import Final

from psycopg import sql

from kestrel.errors import StorageError
from kestrel_postgres.connection import Connection

LAYOUT: Final = 1
"""The number of this layout, which the database remembers."""

OWNER: Final = """
CREATE TABLE owner (
    layout int NOT NULL,         -- of these tables
    epoch bigint NOT NULL,       -- rises with each server that takes the queues over
    batch bigint NOT NULL,       -- the last one that was applied in this epoch
    next_queue bigint NOT NULL,  -- the id of the next queue: none is ever given twice
    server text NOT NULL,        -- who has them, for people
    one boolean PRIMARY KEY DEFAULT true CHECK (one)
) WITH (fillfactor = 10)
"""
# One row, which each batch changes. With room beside it on its page the new version goes there, no index is touched,
# and the next one clears the old ones away: the table stays as small as it is, without a vacuum.

QUEUES: Final = """
CREATE TABLE queues (
    id bigint PRIMARY KEY,
    name bytea NOT NULL UNIQUE,
    items bigint NOT NULL,
    bytes bigint NOT NULL,
    gone_to bigint NOT NULL,
    last bigint NOT NULL
) WITH (fillfactor = 50)
"""

ITEMS: Final = """
CREATE TABLE items (
    queue bigint NOT NULL,
    position bigint NOT NULL,
    add_ms bigint NOT NULL,
    expiry_ms bigint NOT NULL,
    errors int NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (queue, position)
) WITH (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_vacuum_insert_threshold = 100000,
    autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 1,
    toast.autovacuum_vacuum_scale_factor = 0.02, toast.autovacuum_vacuum_threshold = 20000,
    toast.autovacuum_vacuum_cost_delay = 0
)
"""

EXTERNAL: Final = "ALTER TABLE items ALTER COLUMN data SET STORAGE EXTERNAL"
# By itself PostgreSQL compresses what is longer than 2 kB, which takes more time than all the rest of a put.

LEFTOVERS: Final = """
CREATE TABLE leftovers (
    queue bigint PRIMARY KEY,           -- the id of one that is no more, whose items are still to be erased
    erased_to bigint NOT NULL DEFAULT 0 -- nothing stands at this position or below
)
"""

MAKING: Final = 0x6B65_7374
"""The advisory lock of those who make tables ("kest")."""

RIGHTS: Final = """
SELECT current_user, has_database_privilege(current_database(), 'CREATE'), schema.oid IS NOT NULL,
    has_schema_privilege(schema.oid, 'CREATE'),
    (SELECT count(*) FROM pg_tables WHERE schemaname = name AND tablename IN ('queues', 'items', 'leftovers'))
FROM (SELECT %s::text) AS wanted(name) LEFT JOIN pg_namespace AS schema ON schema.nspname = name
"""

IS_THERE: Final = """
SELECT current_user, has_schema_privilege(schema.oid, 'USAGE')
FROM pg_namespace AS schema JOIN pg_class AS made ON relnamespace = schema.oid
WHERE nspname = %s AND relname = 'owner' AND relkind IN ('r', 'p')
"""
# Of a database with many schemas pg_tables, which is a view, would be read from one end to the other.


def ensure(connection: Connection, schema: str) -> None:
    """The tables are there, in the first schema of the search path, and in a layout that this release knows.

    Raises `StorageError` when they are in another one, or cannot be made.
    """
    if not _is_there(connection, schema):
        with connection.transaction():
            # Two servers may start at the same time; the second one finds them made.
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (MAKING,))
            if not _is_there(connection, schema):
                _make(connection, schema)
    [(layout,)] = connection.execute("SELECT layout FROM owner")
    if layout != LAYOUT:
        raise StorageError(
            f"the tables in the schema {schema!r} have layout {layout}, and this release of kestrel-postgres knows"
            f" {LAYOUT}: use the release that made them"
        )


def _is_there(connection: Connection, schema: str) -> bool:
    # Not to_regclass: it may not know yet of a schema that another session has just made.
    found = connection.execute(IS_THERE, (schema,)).fetchone()
    if found is not None:
        account, may_use = found
        if not may_use:
            raise StorageError(f"the schema {schema!r} is not {account}'s to use: name another one, as in ?schema=mine")
    return found is not None


def _make(connection: Connection, schema: str) -> None:
    [(account, may_make_schemas, is_there, may_make_tables, strange)] = connection.execute(RIGHTS, (schema,))
    name = sql.Identifier(schema)
    if not is_there and not may_make_schemas:
        own = sql.SQL("CREATE SCHEMA {} AUTHORIZATION {}").format(name, sql.Identifier(account)).as_string(connection)
        raise StorageError(f"{account} may not make a schema in this database: have its owner say {own}")
    if is_there and not may_make_tables:
        raise StorageError(f"{account} may make no tables in the schema {schema!r}: name another, as in ?schema=mine")
    if strange:
        raise StorageError(f"the schema {schema!r} has tables of something else: name another, as in ?schema=mine")
    if not is_there:  # IF NOT EXISTS would ask for the right to make one even where it is there
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(name))
    for statement in (OWNER, QUEUES, ITEMS, EXTERNAL, LEFTOVERS):
        connection.execute(statement)
    connection.execute("INSERT INTO owner VALUES (%s, 0, 0, 1, '')", (LAYOUT,))
