"""The factory of the storage `postgres:CONNECTION`."""

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
"""Minimum of `timeout`: twice the time limit for acquiring a lock."""

LONGEST_SCHEMA: Final = 63
"""Limit of PostgreSQL for names. It would truncate a longer one, and so use another schema."""


@implementer(IStorageFactory)
class PostgresStorageFactory:
    """The factory of ``postgres:CONNECTION``."""

    name = "postgres"
    help = (
        "postgres:CONNECTION[?schema=NAME][&timeout=TIME]  keeps queues in a PostgreSQL database. CONNECTION is a"
        f" PostgreSQL connection string, as in {EXAMPLE} or postgres:postgresql://kestrel@db1,db2/kestrel. Its"
        " parameters may also be written as options. schema (kestrel) contains the tables. timeout (30s) limits the"
        " wait for a reply of the database."
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
        """Return a storage for the database. It connects when it is started."""
        return WindowedStorage(self.database(argument, options, clock, in_thread), clock, memory)

    def database(
        self, argument: str, options: Mapping[str, str], clock: IReactorTime, in_thread: InThread
    ) -> PostgresDatabase:
        """Return the database for a storage argument and its options. It connects at its first use."""
        conninfo = _conninfo(argument, {name: value for name, value in options.items() if name not in OURS})
        schema = options.get("schema", "kestrel")
        if not 0 < len(schema.encode()) <= LONGEST_SCHEMA or "\0" in schema:
            raise BadStorageArgument(f"postgres: schema needs a name of 1 to {LONGEST_SCHEMA} bytes")
        return PostgresDatabase(conninfo, schema, _timeout_s(options), clock, in_thread)


def _conninfo(argument: str, options: Mapping[str, str]) -> str:
    """Return a connection string. Error messages never quote the input, which may contain a password."""
    if not argument:
        raise BadStorageArgument(f"postgres: needs a connection string, as in {EXAMPLE}")
    known = {each.keyword.decode() for each in psycopg.pq.Conninfo.get_defaults()}
    unknown = sorted(set(options) - known)
    if unknown:
        raise BadStorageArgument(
            f"postgres: has no option {', '.join(unknown)}; it takes {', '.join(sorted(OURS))} and the parameters of a"
            " PostgreSQL connection"
        )
    try:
        given = conninfo_to_dict(argument, **options)
    except psycopg.Error as error:
        unknown = re.findall(r'invalid connection option "(\w+)"', str(error))
        if unknown:
            raise BadStorageArgument(f"postgres: a PostgreSQL connection has no parameter {unknown[0]}") from None
        raise BadStorageArgument(
            f"postgres: the argument is not a PostgreSQL connection string; write it as in {EXAMPLE}. A ? is only"
            " possible in a URL, as %3F"
        ) from None
    if SECRETS & given.keys():
        raise BadStorageArgument(
            "postgres: a password is not accepted here, because the log and the process list would show it; put it in"
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
        raise BadStorageArgument("postgres: timeout: must be at least 10s")
    return timeout_ms / 1000
