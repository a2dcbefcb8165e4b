"""The factory of the storage `postgres:CONNECTION`. It imports the driver only when a storage is created."""

from __future__ import annotations

from collections.abc import Mapping

from twisted.internet.interfaces import IReactorTime
from zope.interface import implementer

from kestrel.errors import BadStorageArgument
from kestrel.storage.failures import describe_error
from kestrel.storage.interfaces import InThread, IStorage, IStorageFactory
from kestrel.storage.total_memory import MemoryLimit
from kestrel.storage.windowed import CAPABILITIES, UNUSED_SETTINGS, WindowedStorage


@implementer(IStorageFactory)
class PostgresStorageFactory:
    """The factory of ``postgres:CONNECTION``."""

    name = "postgres"
    help = (
        "postgres:CONNECTION[?schema=NAME][&timeout=TIME]  keeps queues in a PostgreSQL database. CONNECTION is a"
        " PostgreSQL connection string, as in postgres:host=/run/postgresql dbname=kestrel or"
        " postgres:postgresql://kestrel@db1,db2/kestrel. Its parameters may also be written as options. schema"
        " (kestrel) contains the tables. timeout (30s) limits the wait for a reply of the database. It needs"
        " kestrel-mq[postgres]."
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
        try:
            from kestrel.storage.postgres.description import database_of
        except ImportError as error:  # psycopg also raises it without a libpq
            raise BadStorageArgument(
                "postgres: needs the library psycopg: pip install 'kestrel-mq[postgres]'"
                f" ({describe_error(error)})"
            ) from error
        return WindowedStorage(database_of(argument, options, clock, in_thread), clock, memory)
