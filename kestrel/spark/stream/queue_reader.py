"""The common part of the streams of live queues: offsets, shares of a batch, and rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from kestrel.spark.failures import SourceFailed
from kestrel.spark.stream.connections import ServerConnections
from kestrel.spark.stream.options import StreamOptions

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
        """Return the maximum of rows in a batch, from the options."""
        return ReadMaxRows(self._options.max_rows)

    def stop(self) -> None:
        """Close the connections."""
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
        """Return the share of the next party."""
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
