"""At least once: a stream that takes items out of any queue as open reads, and confirms them when they are done.

The driver takes them and gives them to the tasks, so that a task that is tried again has the same. What is not
confirmed comes again when the servers have held it for long enough.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Any, Final, TypeAlias
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from kestrel.client.call import Call
from kestrel.client.thrift import OpenRead, ThriftCalls
from kestrel.spark.failures import SourceFailed
from kestrel.spark.stream.connections import SendRequest, ServerConnections, ServerUnavailable
from kestrel.spark.stream.fair_shares import FairShares, RoundRobin, parse_max_rows
from kestrel.spark.stream.offsets import Offset, check_offset
from kestrel.spark.stream.rows import ItemRows
from kestrel.spark.stream.shutdown import exit_on_sigterm, ignore_sigterm
from kestrel.spark.stream.stream_options import StreamOptions

logger = logging.getLogger("kestrel.spark")

FIRST_READS: Final = 10
"""So many are asked for while nobody knows how large they are: an answer has its bounds."""

MOST_READS: Final = 1000
"""So many at most are asked for, confirmed or aborted at a time."""

SMALLEST_ITEMS: Final = 2000
"""Fewer are not worth a task of their own."""

Reads: TypeAlias = "dict[str, list[OpenRead]]"
"""By server."""


class OpenedItems(InputPartition):
    """Items of one server, which travel to the task."""

    def __init__(self, address: str, items: Sequence[bytes]) -> None:
        super().__init__(None)
        self.address = address
        self.items = items


class OpenReadsReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Takes items in the driver, and makes rows of them in tasks, to which it travels without what it holds.

    What is wrong is a `SourceFailed`, with the way out. `at_first` is done before anything is taken; it and
    `connections` are for tests.
    """

    def __init__(
        self,
        options: StreamOptions,
        schema: StructType,
        connections: ServerConnections | None = None,
        at_first: Callable[[], None] = exit_on_sigterm,
    ) -> None:
        self._options = options
        self._schema = schema
        self._queue = options.servers.queue
        self._says = {"delivery": options.delivery.value, "queue": options.queue}
        self._run = uuid4().hex
        """Who holds what: after a restart nobody here knows what was taken before."""
        self._connections = connections or ServerConnections(options.servers)
        self._at_first = at_first
        self._present = options.servers.to_read()
        self._turns = RoundRobin()
        self._left: dict[str, int] | None = None
        """With a trigger that ends: how many items may still be taken from each server."""
        self._batches: dict[int, Reads] = {}
        """What is not done, by number."""
        self._last = 0
        self._done: dict[str, list[int]] = {}
        """Ids that are to be confirmed, by server."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._options, self._schema)

    # Where the stream is.

    def initialOffset(self) -> Offset:
        """Before everything that is taken."""
        return self._offset(0)

    def prepareForTriggerAvailableNow(self) -> None:
        """As many items as wait now are taken, and no more. No server may be away for longer than the patience."""
        queue, ask = self._queue, self._connections.ask
        self._present.hold()
        self._left = {
            address: ask(address, lambda calls: calls.peek(queue)).items for address in self._present.addresses()
        }

    def getDefaultReadLimit(self) -> ReadLimit:
        """So many rows as the options say."""
        return ReadMaxRows(self._options.max_rows)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Take what the next batch has. Everything up to `start` is done, and is confirmed.

        A server that is away gives nothing. With a trigger that ends, nobody is passed over.
        """
        if isinstance(limit, ReadAllAvailable):
            raise SourceFailed(
                "with trigger(once=True) nobody says when items are done, and they would come again: "
                "use trigger(availableNow=True)"
            )
        self._acknowledge(self._number(start), self._ask)
        self._at_first()
        if not self._batches:  # else Spark asks again for what was taken already
            reads = self._take(parse_max_rows(limit, self._options.max_rows))
            if not reads:
                return start
            self._last += 1
            self._batches[self._last] = reads
        return self._offset(self._last)

    def _offset(self, batch: int) -> Offset:
        return {**self._says, "run": self._run, "batch": batch}

    def _number(self, offset: Offset) -> int:
        """Up to which batch that is; 0 for what was taken before a restart."""
        check_offset(offset, self._says)
        number: int = offset["batch"] if offset["run"] == self._run else 0
        return number

    @property
    def _ask(self) -> SendRequest:
        """With a trigger that ends nobody is passed over, else nobody is waited for."""
        return self._connections.ask_once if self._left is None else self._connections.ask

    # What is taken.

    def _take(self, rows: int) -> Reads:
        """Items of all servers, as many as make a batch."""
        turns = self._turns.of(self._present.addresses())
        rows_left, bytes_left = FairShares(rows, len(turns)), FairShares(self._options.max_bytes, len(turns))
        taken: Reads = {}
        try:
            for address in turns:
                most = rows_left.next()
                if self._left is not None:
                    most = min(most, self._left[address])
                reads = taken[address] = []
                with suppress(ServerUnavailable):
                    self._take_from(address, reads, most, bytes_left.next())
                if self._left is not None:
                    self._left[address] -= len(reads)
                rows_left.used(len(reads))
                bytes_left.used(_size_of(reads))
        except BaseException:  # a stop among them
            self._give_back(taken)
            raise
        return {address: reads for address, reads in taken.items() if reads}

    def _take_from(self, address: str, reads: list[OpenRead], most: int, most_bytes: int) -> None:
        """Add what one server gives. Raises `ServerUnavailable`."""
        queue, hold_ms = self._queue, self._options.hold_ms
        last_short = 0
        while len(reads) < most and (room := most_bytes - _size_of(reads)) > 0:
            wanted = min(most - len(reads), _fitting(reads, room))
            page = self._ask(address, partial(_get, queue=queue, max_items=wanted, hold_ms=hold_ms))
            reads += page
            if len(page) < wanted:
                # A server gives a connection only so many open reads, and another connection as many again. As long as
                # that is what is short, the answers are not shorter than the one before.
                if not page or len(page) < last_short:
                    break
                last_short = len(page)
                self._connections.hang_up(address)
        if reads:
            self._connections.hang_up(address)

    def _give_back(self, batch: Reads) -> None:
        """Let the items come again now."""
        for address, reads in batch.items():
            for ids in _runs([read.id for read in reads]):
                with suppress(ServerUnavailable, SourceFailed):  # then they come again when their time is over
                    self._connections.ask_once(address, partial(_abort, queue=self._queue, ids=ids))

    # What is done.

    def commit(self, end: Offset) -> None:
        """Everything up to `end` is done. Spark says so late, and not of the last batch: `latestOffset` knows before.

        A server that is away is told by the next `latestOffset`.
        """
        self._acknowledge(self._number(end), self._connections.ask_once)

    def _acknowledge(self, number: int, ask: SendRequest) -> None:
        for done in [each for each in self._batches if each <= number]:
            for address, reads in self._batches.pop(done).items():
                self._done.setdefault(address, []).extend(read.id for read in reads)
        for address in list(self._done):
            with suppress(ServerUnavailable):
                self._confirm(address, ask)

    def _confirm(self, address: str, ask: SendRequest) -> None:
        """Be done with them. Raises `ServerUnavailable`, and then what is left is confirmed another time."""
        ids = self._done[address]
        lost = 0
        while ids:
            some = ids[:MOST_READS]
            lost += len(some) - ask(address, partial(_confirm, queue=self._queue, ids=some))
            del ids[:MOST_READS]
        del self._done[address]
        if lost:
            logger.warning(
                "%s: %d items that are done were not held any more, and come again, unless only an answer was lost: "
                "hold is to be longer than a batch and the time to the next one take",
                *(address, lost),
            )

    def stop(self) -> None:
        """Give back what is not done, and hang up."""
        ignore_sigterm()
        with suppress(SourceFailed):
            self._acknowledge(0, self._connections.ask_once)
        for batch in self._batches.values():
            self._give_back(batch)
        self._batches.clear()
        self._present.close()
        self._connections.close()

    # What a batch has.

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Tasks with the items. What a run before this one took is not here: it comes again."""
        tasks: list[InputPartition] = []
        for number in range(self._number(start) + 1, self._number(end) + 1):
            if number not in self._batches:
                raise SourceFailed("a batch is asked for whose items are done")
            for address, reads in self._batches[number].items():
                items = [read.data for read in reads]
                tasks += [OpenedItems(address, part) for part in _parts(items, self._options.slices)]
        return tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task."""
        assert isinstance(partition, OpenedItems)
        yield ItemRows(self._schema, partition.address, self._options.queue).of_data(partition.items)


def _get(calls: ThriftCalls, queue: bytes, max_items: int, hold_ms: int) -> Call[list[OpenRead]]:
    return calls.get(queue, max_items, 0, hold_ms)


def _abort(calls: ThriftCalls, queue: bytes, ids: Sequence[int]) -> Call[int]:
    return calls.abort(queue, ids)


def _confirm(calls: ThriftCalls, queue: bytes, ids: Sequence[int]) -> Call[int]:
    return calls.confirm(queue, ids)


def _size_of(reads: Sequence[OpenRead]) -> int:
    return sum(len(read.data) for read in reads)


def _fitting(reads: Sequence[OpenRead], room: int) -> int:
    """How many more are likely to be no more than so many bytes."""
    if not reads:
        return FIRST_READS
    return max(1, min(MOST_READS, room * len(reads) // (_size_of(reads) or 1)))


def _runs(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """So many at a time as a request may have."""
    return (ids[place : place + MOST_READS] for place in range(0, len(ids), MOST_READS))


def _parts(items: Sequence[bytes], slices: int) -> Iterator[Sequence[bytes]]:
    """The items of each task."""
    number = max(1, min(slices, len(items) // SMALLEST_ITEMS))
    cuts = [len(items) * place // number for place in range(number + 1)]
    return (items[first:end] for first, end in pairwise(cuts))
