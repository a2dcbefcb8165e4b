"""The database of a storage description: its connection string and options, checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from twisted.internet.interfaces import IReactorTime

from kestrel.config.units import parse_duration_ms
from kestrel.errors import BadStorageArgument
from kestrel.storage.interfaces import InThread
from kestrel.storage.postgres.connection import CONNECT
from kestrel.storage.postgres.database import PostgresDatabase

OURS: Final = frozenset({"schema", "timeout"})

EXAMPLE: Final = "postgres:host=/run/postgresql dbname=kestrel"

SECRETS: Final = frozenset(
    {"password", "sslpassword", "scram_client_key", "scram_server_key", "oauth_client_secret"}
)

SHORTEST_MS: Final = 10_000
"""Minimum of `timeout`: twice the time limit for acquiring a lock."""

LONGEST_SCHEMA: Final = 63
"""Limit of PostgreSQL for names. It would truncate a longer one, and so use another schema."""


def database_of(
    argument: str, options: Mapping[str, str], clock: IReactorTime, in_thread: InThread
) -> PostgresDatabase:
    """Return the database for a storage argument and its options. It connects at its first use.

    Raises `BadStorageArgument`.
    """
    conninfo = conninfo_of(argument, {name: value for name, value in options.items() if name not in OURS})
    schema = options.get("schema", "kestrel")
    if not 0 < len(schema.encode()) <= LONGEST_SCHEMA or "\0" in schema:
        raise BadStorageArgument(f"postgres: schema needs a name of 1 to {LONGEST_SCHEMA} bytes")
    return PostgresDatabase(conninfo, schema, _timeout_s(options), clock, in_thread)


def conninfo_of(argument: str, options: Mapping[str, str]) -> str:
    """Return the connection string of a storage argument and its connection parameters, with defaults.

    Raises `BadStorageArgument`, whose message never quotes the input, because it may contain a password.
    """
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
    # An old libpq does not know all parameters.
    others = {name: value for name, value in CONNECT.items() if name in known and name not in given}
    return make_conninfo(argument, **options, **others)


def _timeout_s(options: Mapping[str, str]) -> float:
    try:
        timeout_ms = parse_duration_ms(options.get("timeout", "30s"))
    except ValueError as error:
        raise BadStorageArgument(f"postgres: timeout: {error}") from error
    if timeout_ms < SHORTEST_MS:
        raise BadStorageArgument("postgres: timeout: must be at least 10s")
    return timeout_ms / 1000
