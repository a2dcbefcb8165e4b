"""The common part of the streams of live queues: offsets, shares of a batch, rows, and connections.

An unavailable server does not delay the others.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from kestrel.client.arguments import name_bytes
from kestrel.client.call import Call
from kestrel.client.choice import Backoff
from kestrel.client.errors import ClientFailure, RequestError
from kestrel.client.retrying_server import RetryingServer
from kestrel.client.thrift import ThriftCalls
from kestrel.protocols.codec import QueueInfo
from kestrel.spark.options import SourceFailed
from kestrel.spark.stream.options import UNLIMITED_BYTES, StreamOptions, StreamServers

if TYPE_CHECKING:  # it imports py4j
    from pyspark.sql.streaming.listener import StreamingQueryProgress

Offset: TypeAlias = "dict[str, Any]"
"""An offset, which Spark stores in the checkpoint as JSON."""

T = TypeVar("T")

MOST_ROWS: Final = (1 << 31) - 1
"""Maximum that a request can ask for."""


class Place(NamedTuple):
    """A queue of one server."""

    address: str
    queue: str

    def __str__(self) -> str:
        return f"{self.address}/{self.queue}"

    @classmethod
    def parse(cls, text: str) -> Place:
        """Return the place of a text in an offset."""
        address, _, queue = text.partition("/")
        return cls(address, queue)

    @property
    def name(self) -> bytes:
        """The queue's name in requests."""
        return name_bytes(self.queue)


class QueueReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The common part of both stream readers. A task gets a copy that has only the options and the schema.

    Methods raise `SourceFailed`. Tests replace `connections`.
    """

    def __init__(
        self, options: StreamOptions, schema: StructType, connections: ServerConnections | None = None
    ) -> None:
        self._options = options
        self._schema = schema
        self._says = {"delivery": options.delivery.value}
        """The part of an offset that identifies its stream."""
        self._connections = connections or ServerConnections(options.servers)
        self._present = options.servers.to_read()
        self._turns = RoundRobin()
        self._listed: dict[str, Sequence[str]] = {}
        """Queues of each server that match the pattern, from its last response."""
        self._held: Sequence[Place] | None = None
        """The places of a stream with an available-now trigger, else None."""
        self._waiting: dict[Place, int] = {}
        """Items that each place had after the last batch."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._options, self._schema)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_items)

    def reportLatestOffset(self) -> Offset | None:
        """Return the numbers of items that the last batch left in the queues, or None before the first batch.

        Spark shows it as `latestOffset` of the source in the progress of a query.
        """
        return {"waiting": {str(place): items for place, items in self._waiting.items()}} if self._waiting else None

    def stop(self) -> None:
        self._present.close()
        self._connections.close()

    @property
    def _ask(self) -> SendRequest:
        """Request function: waits for a server with an available-now trigger, else tries once."""
        return self._connections.ask_once if self._held is None else self._connections.ask

    def _places(self, ask: SendRequest) -> Sequence[Place]:
        """Return the present queues of the present servers. Raises `SourceFailed`."""
        if self._held is not None:
            return self._held
        return [
            Place(address, queue) for address in self._present.addresses() for queue in self._queues_at(address, ask)
        ]

    def _queues_at(self, address: str, ask: SendRequest) -> Sequence[str]:
        """Return the subscribed queues of a server. For one that does not answer these are the queues that it had."""
        if isinstance(self._options.queues, tuple):
            return self._options.queues
        with suppress(ServerUnavailable):
            names = ask(address, lambda calls: calls.list_queues())
            self._listed[address] = [queue for queue in _decoded(names) if self._options.subscribes(queue)]
        return self._listed.get(address, ())

    def _expects(self, place: Place) -> bool:
        """Return True if the place is part of the stream, now or when it returns."""
        return self._options.subscribes(place.queue) and self._present.expects(place.address)

    def _info(self, place: Place, ask: SendRequest) -> QueueInfo:
        return ask(place.address, lambda calls: calls.peek(place.name))

    def _in_order(self, infos: Mapping[Place, QueueInfo], limit: ReadLimit) -> Iterator[tuple[Place, Share]]:
        """Yield the places with their shares of a batch, those with the fewest items first.

        So a share that is not used is left to the places that have more.
        """
        items, size = self._limits(limit)
        turns = self._turns.of([*infos])
        if items >= len(turns):  # otherwise the last in order would never get an item
            turns = sorted(turns, key=lambda place: infos[place].items)
        shares, sizes = FairShares(items, len(turns)), FairShares(size, len(turns))
        for place in turns:
            share = Share(shares.next(), sizes.next())
            yield place, share
            shares.used(share.used_items)
            sizes.used(share.used_bytes)
            self._waiting[place] = max(0, infos[place].items - share.used_items)

    def _check(self, offset: Offset) -> None:
        """Raise `SourceFailed` unless the offset is of this stream."""
        for name, value in self._says.items():
            theirs = offset.get(name)
            if theirs != value:
                raise SourceFailed(
                    f'the checkpoint belongs to a stream with option("{name}", "{theirs}"), not "{value}": use that '
                    "value, or another checkpointLocation"
                )

    def _limits(self, limit: ReadLimit) -> tuple[int, int]:
        """Return the number of items and bytes that a limit of Spark allows."""
        if isinstance(limit, ReadAllAvailable):
            return MOST_ROWS, UNLIMITED_BYTES
        items = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_items
        return min(items, MOST_ROWS), self._options.max_bytes

    def _batch(self, place: Place, number: int, columns: Mapping[str, Sequence[Any]]) -> pa.RecordBatch:
        """Return the rows of a number of items of one place. Columns that are not given are null."""
        schema = to_arrow_schema(self._schema, timezone="UTC")
        texts = {"server": place.address, "queue": place.queue}
        arrays = [
            pa.repeat(pa.scalar(texts[field.name], field.type), number)
            if field.name in texts
            else pa.array(columns.get(field.name) or [None] * number, field.type)
            for field in schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _decoded(names: Iterable[bytes]) -> Iterator[str]:
    """Yield the names that are UTF-8, as all names in options are."""
    for name in names:
        with suppress(UnicodeDecodeError):
            yield name.decode()


def backlog(progress: StreamingQueryProgress) -> dict[str, int]:
    """Return how many items the last batch of a query left in its queues, by ``server/queue``.

    Use it in `onQueryProgress` of a `StreamingQueryListener`, or with the `lastProgress` of a query. Servers that have
    not answered are omitted. With several sources of this format, their numbers are together.
    """
    items: dict[str, int] = {}
    for source in progress.sources:
        latest = json.loads(source.latestOffset or "null")
        if isinstance(latest, dict):
            items |= latest.get("waiting", {})
    return items


@dataclass
class Share:
    """The share of one place in a batch. Its reader sets how much of it was used."""

    items: int
    bytes: int
    used_items: int = 0
    used_bytes: int = 0


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

    def of(self, parties: Sequence[T]) -> Sequence[T]:
        """Return all parties, which may differ from call to call, starting with the next one."""
        self._first = (self._first + 1) % (len(parties) or 1)
        return [*parties[self._first :], *parties[: self._first]]


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
