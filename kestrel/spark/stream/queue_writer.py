"""Writing to a live queue: ``df.write.format("kestrel")`` and ``df.writeStream.format("kestrel")``.

A task delivers its items to the servers of the queue, with retries until the option ``patience`` is exceeded.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property, partial
from random import Random
from typing import Any, Final, TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from kestrel.client.arguments import name_bytes
from kestrel.client.choice import Backoff
from kestrel.client.errors import CannotConnect, ClientFailure, RequestError, ServerError
from kestrel.client.put_batch import batches
from kestrel.client.retrying_server import LONGEST_PAUSE_S, RetryingServer
from kestrel.config.units import format_duration_ms
from kestrel.spark.options import SourceFailed
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
        self._queue = options.queue

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
            puts = {address: partial(_put, server, name_bytes(self._queue)) for address, server in opened.items()}
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


Put: TypeAlias = Callable[[Sequence[bytes], int], int]
"""Put items with an expiry in ms (0 for never) to one server. Returns the number of items that were accepted before a
limit refused one. Raises `ClientFailure`.
"""

_FULL: Final = "the queue is full"


class BatchPutter:
    """A sender that puts batches to the servers in turn, starting with a random one.

    If a server fails or its queue is full, the remaining items are offered to the other servers, first to those that
    accepted their last request. If all servers refuse, it pauses and tries all again. Each accepted item restarts the
    patience: slow consumers slow the task down, and a queue that no consumer reads makes it fail.

    A batch with an unknown outcome is put again: items may be duplicated, but none is lost.
    """

    def __init__(
        self,
        servers: Mapping[str, Put],
        queue: str,
        patience_s: float,
        *,
        random: Random | None = None,
        seconds: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._servers = servers
        self._queue = queue
        self._patience_s = patience_s
        self._random = random or Random()
        self._seconds = seconds
        self._sleep = sleep
        self._turn = deque(servers)
        self._turn.rotate(self._random.randrange(len(servers)))
        self._backoffs = {server: Backoff(self._random) for server in servers}
        self._reasons: dict[str, str] = {}
        """Latest reason of each server that did not accept all items."""
        self.counts = dict.fromkeys(servers, 0)
        """Number of items accepted by each server."""
        self.unsure = 0
        """Number of items that may have been put one more time than counted."""

    def put(self, items: Iterable[bytes], expiry_ms: int = 0) -> None:
        """Put all items. If this raises `SourceFailed`, some of these items may be in the queue."""
        for batch in batches(items):
            self._put_batch(batch, expiry_ms)

    def _put_batch(self, left: Sequence[bytes], expiry_ms: int) -> None:
        backoff = Backoff(self._random, longest_s=LONGEST_PAUSE_S)
        ends_s = self._seconds() + self._patience_s
        while True:
            before = len(left)
            for server in self._round():
                left = self._put_at(server, left, expiry_ms)
                if not left:
                    return
            now_s = self._seconds()
            if len(left) < before:
                backoff.answered()
                ends_s = now_s + self._patience_s
            if now_s >= ends_s:
                raise SourceFailed(self._failure(left))
            self._sleep(min(backoff.failed(now_s), ends_s - now_s))

    def _round(self) -> Iterator[str]:
        """Return all servers in turn; those that failed recently come last."""
        now_s = self._seconds()
        servers = sorted(self._turn, key=lambda server: self._backoffs[server].ends_s > now_s)
        self._turn.rotate(-1)
        return iter(servers)

    def _put_at(self, server: str, items: Sequence[bytes], expiry_ms: int) -> Sequence[bytes]:
        """Put items to one server and return the rest. Raises `SourceFailed` for an item that no server can accept."""
        try:
            count = self._servers[server](items, expiry_ms)
        except RequestError as error:
            if len(items) == 1:
                raise SourceFailed(
                    f"an item of {len(items[0])} bytes cannot be put to the queue {self._queue}: {error}. "
                    f"Filter out such items, for example by length(data){self._what_is_in()}"
                ) from None
            half = len(items) // 2  # the batch may exceed a request, or one item may be too large
            rest = self._put_at(server, items[:half], expiry_ms)
            return [*rest, *items[half:]] if rest else self._put_at(server, items[half:], expiry_ms)
        except ClientFailure as error:
            if not isinstance(error, CannotConnect | ServerError):
                self.unsure += len(items)
            self._failed(server, str(error))
            return items
        self.counts[server] += count
        if count == len(items):
            self._backoffs[server].answered()
        else:
            self._failed(server, _FULL)
        return items[count:]

    def _failed(self, server: str, reason: str) -> None:
        self._backoffs[server].failed(self._seconds())
        self._reasons[server] = reason

    def _failure(self, left: Sequence[bytes]) -> str:
        """Return an error message with the reasons of the servers, without the items' data."""
        full = [server for server, reason in self._reasons.items() if reason is _FULL]
        others = [reason for reason in self._reasons.values() if reason is not _FULL]  # these texts name their servers
        reasons = [f"is full on {', '.join(full)}"] if full else []
        if others:
            reasons.append(f"could not be put to: {'; '.join(others)}")
        text = (
            f"the queue {self._queue} {', and '.join(reasons)}: {len(left)} of the {self._count + len(left)} items "
            f"that this task has read were not put, because no server accepted an item for "
            f"{format_duration_ms(round(self._patience_s * 1000))} (patience)"
        )
        if full:
            text += f". The first of them has {len(left[0])} bytes: check that maxItemSize is not less"
        return text + self._what_is_in()

    @property
    def _count(self) -> int:
        return sum(self.counts.values())

    def _what_is_in(self) -> str:
        if not (self._count or self.unsure):
            return ""
        more = f", and perhaps {self.unsure} more" if self.unsure else ""
        return f". {self._count} items of this task are in{more}: they are duplicated if Spark runs it again"
