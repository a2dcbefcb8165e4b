"""The tables and their creation."""

from __future__ import annotations

from typing import Final

from psycopg import sql

from kestrel.errors import StorageError
from kestrel.storage.postgres.connection import Connection

LAYOUT: Final = 1
"""Version of the table layout, which is stored in the table owner."""

OWNER: Final = """
CREATE TABLE owner (
    layout int NOT NULL,         -- version of these tables
    epoch bigint NOT NULL,       -- increases with each new owner
    batch bigint NOT NULL,       -- number of the last batch in this epoch
    next_queue bigint NOT NULL,  -- id of the next queue; ids are never reused
    server text NOT NULL,        -- description of the owner
    one boolean PRIMARY KEY DEFAULT true CHECK (one)
) WITH (fillfactor = 10)
"""
# The table has one row, which each batch changes. The low fill factor keeps the new version on the same page. No index
# changes, and the next update removes old versions, so the table stays small without a vacuum.

QUEUES: Final = """
CREATE TABLE queues (
    id bigint PRIMARY KEY,
    name bytea NOT NULL UNIQUE,
    items bigint NOT NULL,
    bytes bigint NOT NULL,
    floor bigint NOT NULL,
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
# By default PostgreSQL compresses values above 2 kB, which takes more time than the rest of a put.

LEFTOVERS: Final = """
CREATE TABLE leftovers (
    queue bigint PRIMARY KEY,           -- abandoned id, whose items have to be deleted
    erased_to bigint NOT NULL DEFAULT 0 -- no items remain up to this position
)
"""

MAKING: Final = 0x6B65_7374
"""Key of the advisory lock for creating tables ("kest")."""

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
# The view pg_tables would be scanned completely, which is slow in a database with many schemas.


def ensure(connection: Connection, schema: str) -> None:
    """Create the tables in the schema if they are missing, and check their layout.

    Raises `StorageError` if they have another layout or cannot be created.
    """
    if not _is_there(connection, schema):
        with connection.transaction():
            # Two servers may start at the same time. The second one finds the tables.
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (MAKING,))
            if not _is_there(connection, schema):
                _make(connection, schema)
    [(layout,)] = connection.execute("SELECT layout FROM owner")
    if layout != LAYOUT:
        raise StorageError(
            f"the tables in the schema {schema!r} have layout {layout}, but this release needs"
            f" {LAYOUT}: use the release that created them"
        )


def _is_there(connection: Connection, schema: str) -> bool:
    # to_regclass may not see a schema that another session has just created.
    found = connection.execute(IS_THERE, (schema,)).fetchone()
    if found is not None:
        account, may_use = found
        if not may_use:
            raise StorageError(f"{account} may not use the schema {schema!r}: name another one, as in ?schema=mine")
    return found is not None


def _make(connection: Connection, schema: str) -> None:
    [(account, may_make_schemas, is_there, may_make_tables, strange)] = connection.execute(RIGHTS, (schema,))
    name = sql.Identifier(schema)
    if not is_there and not may_make_schemas:
        own = sql.SQL("CREATE SCHEMA {} AUTHORIZATION {}").format(name, sql.Identifier(account)).as_string(connection)
        raise StorageError(f"{account} may not create a schema in this database: its owner has to run {own}")
    if is_there and not may_make_tables:
        raise StorageError(f"{account} may not create tables in schema {schema!r}: name another, as in ?schema=mine")
    if strange:
        raise StorageError(f"the schema {schema!r} has tables of another program: name another one, as in ?schema=mine")
    # IF NOT EXISTS would require the right to create a schema even if the schema exists.
    if not is_there:
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(name))
    for statement in (OWNER, QUEUES, ITEMS, EXTERNAL, LEFTOVERS):
        connection.execute(statement)
    connection.execute("INSERT INTO owner VALUES (%s, 0, 0, 1, '')", (LAYOUT,))
