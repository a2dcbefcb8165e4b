"""The common part of the streams of live queues: offsets, shares of a batch, rows, and connections.

An unavailable server does not delay the others.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from kestrel.client.backoff import Backoff
from kestrel.client.call import Call
from kestrel.client.errors import ClientFailure, RequestError
from kestrel.client.retrying_server import RetryingServer
from kestrel.client.thrift import ThriftCalls
from kestrel.spark.options import SourceFailed
from kestrel.spark.stream.options import StreamOptions, StreamServers

Offset: TypeAlias = "dict[str, Any]"
"""An offset, which Spark stores in the checkpoint as JSON."""

MOST_ROWS: Final = (1 << 31) - 1
"""Maximum that a request can ask for."""


class QueueReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The common part of both stream readers. A task gets a copy that has only the options and the schema.

    Methods raise `SourceFailed`. Tests replace `connections`.
    """

    def __init__(
        self, options: StreamOptions, schema: StructType, connections: ServerConnections | None = None
    ) -> None:
        self._options = options
        self._schema = schema
        self._queue = options.servers.queue
        self._says = {"delivery": options.delivery.value, "queue": options.queue}
        """The part of an offset that identifies its stream."""
        self._connections = connections or ServerConnections(options.servers)
        self._present = options.servers.to_read()
        self._turns = RoundRobin()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._options, self._schema)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_rows)

    def stop(self) -> None:
        self._present.close()
        self._connections.close()

    def _check(self, offset: Offset) -> None:
        """Raise `SourceFailed` unless the offset is of this stream."""
        for name, value in self._says.items():
            theirs = offset.get(name)
            if theirs != value:
                raise SourceFailed(
                    f'the checkpoint belongs to a stream with option("{name}", "{theirs}"), not "{value}": use that '
                    "value, or another checkpointLocation"
                )

    def _max_rows(self, limit: ReadLimit) -> int:
        """Return the number of rows that a limit of Spark allows."""
        if isinstance(limit, ReadAllAvailable):
            return MOST_ROWS
        return min(limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_rows, MOST_ROWS)

    def _batch(self, address: str, number: int, columns: Mapping[str, Sequence[Any]]) -> pa.RecordBatch:
        """Return the rows of a number of items of one server. Columns that are not given are null."""
        schema = to_arrow_schema(self._schema, timezone="UTC")
        texts = {"server": address, "queue": self._options.queue}
        arrays = [
            pa.repeat(pa.scalar(texts[field.name], field.type), number)
            if field.name in texts
            else pa.array(columns.get(field.name) or [None] * number, field.type)
            for field in schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


class FairShares:
    """An amount that several parties share in turn. An unused part of a share is left to the following parties."""

    def __init__(self, amount: int, parties: int) -> None:
        self._left = amount
        self._parties = parties
        self._share = 0

    def next(self) -> int:
        self._share = -(-self._left // self._parties)
        self._parties -= 1
        return self._share

    def used(self, amount: int) -> None:
        """Record how much of its share the party used; more counts as the whole share."""
        self._left -= min(amount, self._share)


class RoundRobin:
    """A round-robin order of parties: each call begins with the next party."""

    def __init__(self) -> None:
        self._first = 0

    def of(self, parties: Sequence[str]) -> Sequence[str]:
        """Return all parties, which may differ from call to call, starting with the next one."""
        self._first = (self._first + 1) % (len(parties) or 1)
        return [*parties[self._first :], *parties[: self._first]]


T = TypeVar("T")

logger = logging.getLogger("kestrel.spark")


class ServerUnavailable(Exception):
    """A server that does not answer, or failed recently and is not asked yet."""


class ServerRefused(SourceFailed):
    """A permanent refusal by a server."""

    @classmethod
    def by(cls, address: str, error: RequestError) -> ServerRefused:
        """Return the error with the server's address in front."""
        return cls(f"{address}: {error}")


class SendRequest(Protocol):
    """The type of `ServerConnections.ask` and `ServerConnections.ask_once`."""

    def __call__(self, address: str, make_call: Callable[[ThriftCalls], Call[T]]) -> T: ...


class ServerConnections:
    """Connections to the servers, each opened at its first request. Tests replace `seconds` and `random`."""

    def __init__(
        self, servers: StreamServers, *, seconds: Callable[[], float] = time.monotonic, random: Random | None = None
    ) -> None:
        self._servers = servers
        self._seconds = seconds
        self._random = random or Random()
        self._open: dict[str, RetryingServer] = {}
        self._pauses: dict[str, Backoff] = {}
        self._waits_until_s: dict[str, float] = {}

    def ask(self, address: str, make_call: Callable[[ThriftCalls], Call[T]]) -> T:
        """Return the server's response, with retries until the option ``patience`` is exceeded. Raises `SourceFailed`.

        The call must be idempotent.
        """
        try:
            return self._server(address).ask(make_call)
        except RequestError as error:
            raise ServerRefused.by(address, error) from None
        except ClientFailure as failure:
            raise SourceFailed(str(failure)) from None

    def ask_once(self, address: str, make_call: Callable[[ThriftCalls], Call[T]]) -> T:
        """Return the server's response without a retry. Raises `ServerUnavailable` (logged) or `ServerRefused`.

        A server that fails is not asked during a pause. The pause grows with each failure, and is at least as long as
        the failed request took.
        """
        began_s = self._seconds()
        if began_s < self._waits_until_s.get(address, began_s):
            raise ServerUnavailable
        pauses = self._pauses.setdefault(address, Backoff(self._random))
        try:
            answer = self._server(address).ask_once(make_call)
        except RequestError as error:
            raise ServerRefused.by(address, error) from None
        except ClientFailure as failure:
            now_s = self._seconds()
            pause_s = max(pauses.failed(now_s), now_s - began_s)
            self._waits_until_s[address] = now_s + pause_s
            logger.warning("%s; the stream continues without it, and retries in %.1f s", failure, pause_s)
            raise ServerUnavailable from None
        pauses.answered()
        return answer

    def hang_up(self, address: str) -> None:
        """Close the connection to one server; the next request opens a new one."""
        self._server(address).close()

    def close(self) -> None:
        for server in self._open.values():
            server.close()

    def _server(self, address: str) -> RetryingServer:
        if address not in self._open:
            self._open[address] = self._servers.open(address)
        return self._open[address]
