"""`postgres:CONNECTION`: the backend by its described string."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from twisted.internet.interfaces import IReactorTime
from zope.interface import implementer

from kestrel.config.units import parse_duration_ms
from kestrel.errors import BadStorageArgument
from kestrel.storage.interfaces import InThread, IStorage, IStorageFactory
from kestrel.storage.total_memory import MemoryLimit
from kestrel.storage.windowed import CAPABILITIES, UNUSED_SETTINGS, WindowedStorage
from kestrel_postgres.database import PostgresDatabase
from kestrel_postgres.session import CONNECT

OURS: Final = frozenset({"schema", "timeout"})

EXAMPLE: Final = "postgres:host=/run/postgresql dbname=kestrel"

SECRETS: Final = frozenset({"password", "sslpassword"})

SHORTEST_MS: Final = 10_000
"""Beside what a lock is waited for, twice over."""

LONGEST_SCHEMA: Final = 63
"""What PostgreSQL would cut off behind that many bytes would be another schema than the one that is named."""


@implementer(IStorageFactory)
class PostgresStorageFactory:
    """``postgres:CONNECTION`` (`IStorageFactory`)."""

    name = "postgres"
    help = (
        "postgres:CONNECTION[?schema=NAME][&timeout=TIME]  keeps queues in a PostgreSQL database. CONNECTION is a"
        f" connection string of PostgreSQL's, as in {EXAMPLE} or postgres:postgresql://kestrel@db1,db2/kestrel; its"
        " parameters may also be options. schema (kestrel) is where the tables are. timeout (30s) is how long the"
        " database may be silent before it counts as away."
    )
    capabilities = CAPABILITIES
    unused_settings = UNUSED_SETTINGS

    def storage(
        self,
        argument: str,
        options: Mapping[str, str],
        clock: IReactorTime,
        in_thread: InThread,
        memory: MemoryLimit,
    ) -> IStorage:
        """A storage in that database; nothing is touched before it is started."""
        return WindowedStorage(self.database(argument, options, clock, in_thread), clock, memory)

    def database(
        self, argument: str, options: Mapping[str, str], clock: IReactorTime, in_thread: InThread
    ) -> PostgresDatabase:
        """The database below it."""
        conninfo = _conninfo(argument, {name: value for name, value in options.items() if name not in OURS})
        schema = options.get("schema", "kestrel")
        if not 0 < len(schema.encode()) <= LONGEST_SCHEMA or "\0" in schema:
            raise BadStorageArgument(f"postgres: schema needs a name of 1 to {LONGEST_SCHEMA} bytes")
        return PostgresDatabase(conninfo, schema, _timeout_s(options), clock, in_thread)


def _conninfo(argument: str, options: Mapping[str, str]) -> str:
    """A connection string. No sentence repeats what was written, which may have a password in it."""
    if not argument:
        raise BadStorageArgument(f"postgres: needs a connection string, as in {EXAMPLE}")
    known = {each.keyword.decode() for each in psycopg.pq.Conninfo.get_defaults()}
    unknown = sorted(set(options) - known)
    if unknown:
        raise BadStorageArgument(
            f"postgres: has no option {', '.join(unknown)}; it knows {', '.join(sorted(OURS))} and the parameters of a"
            " PostgreSQL connection"
        )
    try:
        given = conninfo_to_dict(argument, **options)
    except psycopg.Error as error:
        unknown = re.findall(r'invalid connection option "(\w+)"', str(error))
        if unknown:
            raise BadStorageArgument(f"postgres: a PostgreSQL connection has no parameter {unknown[0]}") from None
        raise BadStorageArgument(
            f"postgres: that is no connection string of PostgreSQL; write it as in {EXAMPLE}, where a ? is written as"
            " %3F in a URL, and cannot be otherwise"
        ) from None
    if SECRETS & given.keys():
        raise BadStorageArgument(
            "postgres: write no password here, where the log and the list of processes show it; it belongs in"
            " ~/.pgpass, in the file that passfile= names, or in PGPASSWORD"
        )
    others = {name: value for name, value in CONNECT.items() if name not in given}
    return make_conninfo(argument, **options, **others)


def _timeout_s(options: Mapping[str, str]) -> float:
    try:
        timeout_ms = parse_duration_ms(options.get("timeout", "30s"))
    except ValueError as error:
        raise BadStorageArgument(f"postgres: timeout: {error}") from error
    if timeout_ms < SHORTEST_MS:
        raise BadStorageArgument("postgres: timeout: less than ten seconds is too short for a database")
    return timeout_ms / 1000
