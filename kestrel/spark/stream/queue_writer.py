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
from kestrel.spark.failures import SourceFailed
from kestrel.spark.stream.batch_putter import BatchPutter
from kestrel.spark.stream.item_columns import ItemColumns
from kestrel.spark.stream.sink_options import SinkOptions

logger = logging.getLogger("kestrel.spark")


@dataclass(frozen=True, slots=True)
class ItemsPut(WriterCommitMessage):
    """What one task has put."""

    counts: dict[str, int]
    """How many items each server has taken, by its address."""
    unsure: int = 0
    """How many may be there once more."""


class _Task:
    """What both writers do. It travels to the tasks."""

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
        # Not before it goes to the tasks: for the end of each batch Spark makes a writer that writes nothing.
        return replace(self._options, servers=self._options.servers.planned())

    def put(self, batches: Iterator[pa.RecordBatch]) -> ItemsPut:
        """Put all rows. Raises `SourceFailed`; what was put until then stays."""
        servers = self._servers
        with ExitStack() as stack:
            opened = {address: stack.enter_context(servers.open(address)) for address in servers.to_write()}
            puts = {address: partial(_put, server, servers.queue) for address, server in opened.items()}
            putting = BatchPutter(puts, self._queue, servers.patience_s)
            for batch in batches:
                for expiry_ms, items in self._columns.items_of(batch):
                    putting.put(items, expiry_ms)
        return ItemsPut(putting.counts, putting.unsure)

    def tell_put(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """All tasks have put what they were given."""
        counts, unsure = _together(messages)
        each = ", ".join(f"{server} {count}" for server, count in counts.items())
        logger.info("%d items were put to the queue %s: %s", counts.total(), self._queue, each)
        if unsure:
            logger.warning("%d items may be twice in the queue %s: a connection was lost", unsure, self._queue)

    def tell_failed(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Some have not."""
        counts, _ = _together(messages)
        logger.warning(
            "not all was put to the queue %s; what was put stays: %d items of the tasks that ended well, "
            "and what the others had put until then",
            self._queue,
            counts.total(),
        )


def _put(server: RetryingServer, queue: bytes, items: Sequence[bytes], expiry_ms: int) -> int:
    return server.ask_once(lambda calls: calls.put(queue, items, expiry_ms))


def _together(messages: Sequence[WriterCommitMessage | None]) -> tuple[Counter[str], int]:
    """How many items each server has taken from all tasks, and how many may be there once more."""
    counts: Counter[str] = Counter()
    unsure = 0
    for message in messages:
        if isinstance(message, ItemsPut):
            counts.update(message.counts)
            unsure += message.unsure
    return counts, unsure


class QueueWriter(DataSourceArrowWriter):
    """Writes a DataFrame."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._task = _Task(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> ItemsPut:
        """What a task does."""
        return self._task.put(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """All of them have done it."""
        self._task.tell_put(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """One of them could not."""
        self._task.tell_failed(messages)


class QueueStreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a stream. One that is done again after a failure is put again."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._task = _Task(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> ItemsPut:
        """What a task does."""
        return self._task.put(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """All of that batch have done it."""
        self._task.tell_put(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """One of that batch could not."""
        self._task.tell_failed(messages)


def writer_of(options: SinkOptions, schema: StructType, *, overwrite: bool) -> QueueWriter:
    """A writer of rows with these columns. Raises `SourceFailed`."""
    if overwrite:
        raise SourceFailed('what is in a queue is not replaced, only added to: write with mode("append")')
    return QueueWriter(options, schema)


def stream_writer_of(options: SinkOptions, schema: StructType, *, overwrite: bool) -> QueueStreamWriter:
    """A writer of a stream's rows with these columns. Raises `SourceFailed`."""
    if overwrite:
        raise SourceFailed('what is in a queue is not replaced, only added to: write with outputMode("append")')
    return QueueStreamWriter(options, schema)
