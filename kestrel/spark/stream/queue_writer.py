"""Writing to a live queue: ``df.write.format("kestrel")`` and ``df.writeStream.format("kestrel")``."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from kestrel.client.retrying_server import RetryingServer
from kestrel.spark.stream.batch_putter import BatchPutter
from kestrel.spark.stream.item_columns import ItemColumns
from kestrel.spark.stream.options import SinkOptions

logger = logging.getLogger("kestrel.spark")


@dataclass(frozen=True, slots=True)
class ItemsPut(WriterCommitMessage):
    """Counts of the items that one task has put."""

    counts: dict[str, int]
    """Number of items accepted by each server, by address."""
    unsure: int = 0
    """Number of items that may have been put twice."""


class _Writer:
    """The common part of both writers. Tasks get a copy."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._servers = options.servers
        self._columns = ItemColumns(schema, has_keys=options.has_keys)
        self._queue = options.servers.queue.decode("utf-8", "backslashreplace")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._planned, self._schema)

    @cached_property
    def _planned(self) -> SinkOptions:
        # Only when pickled for the tasks: Spark also makes a writer for each commit, which writes nothing.
        return replace(self._options, servers=self._options.servers.planned())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> ItemsPut:
        """Put the rows of a task. Raises `SourceFailed`; the items that were already put stay."""
        servers = self._servers
        with ExitStack() as stack:
            opened = {address: stack.enter_context(servers.open(address)) for address in servers.to_write()}
            puts = {address: partial(_put, server, servers.queue) for address, server in opened.items()}
            putting = BatchPutter(puts, self._queue, servers.patience_s)
            for batch in iterator:
                for expiry_ms, items in self._columns.items_of(batch):
                    putting.put(items, expiry_ms)
        return ItemsPut(putting.counts, putting.unsure)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int = 0) -> None:
        """Log the number of items after all tasks have succeeded."""
        counts, unsure = _together(messages)
        each = ", ".join(f"{server} {count}" for server, count in counts.items())
        logger.info("%d items were put to the queue %s: %s", counts.total(), self._queue, each)
        if unsure:
            logger.warning("%d items may be twice in the queue %s, because a connection was lost", unsure, self._queue)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int = 0) -> None:
        """Log a warning after a task has failed."""
        counts, _ = _together(messages)
        logger.warning(
            "not all items were put to the queue %s; items already put stay: %d of the tasks that succeeded, "
            "and the items that the other tasks had put",
            *(self._queue, counts.total()),
        )


class QueueWriter(_Writer, DataSourceArrowWriter):
    """A writer of a DataFrame."""


class QueueStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """A writer of the batches of a stream. A batch that Spark repeats after a failure is put again."""


def _put(server: RetryingServer, queue: bytes, items: Sequence[bytes], expiry_ms: int) -> int:
    return server.ask_once(lambda calls: calls.put(queue, items, expiry_ms))


def _together(messages: Sequence[WriterCommitMessage | None]) -> tuple[Counter[str], int]:
    """Return the items accepted by each server in all tasks, and the number of possible duplicates."""
    counts: Counter[str] = Counter()
    unsure = 0
    for message in messages:
        if isinstance(message, ItemsPut):
            counts.update(message.counts)
            unsure += message.unsure
    return counts, unsure
