"""At-least-once stream source: takes items of any queue as open reads and confirms them once they are done.

The driver takes the items and sends them to the tasks, so a task that is tried again gets the same items. A server
delivers an unconfirmed item again after the open transaction timeout (option ``hold``).
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from types import FrameType
from typing import Final, TypeAlias
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
from pyspark.sql.types import StructType

from kestrel.client.call import Call
from kestrel.client.thrift import OpenRead, ThriftCalls
from kestrel.protocols.codec import QueueInfo
from kestrel.spark.options import SourceFailed
from kestrel.spark.stream.options import StreamOptions
from kestrel.spark.stream.queue_reader import (
    MOST_ROWS,
    Offset,
    Place,
    QueueReader,
    SendRequest,
    ServerConnections,
    ServerUnavailable,
)

logger = logging.getLogger("kestrel.spark")

FIRST_READS: Final = 10
"""Items of the first request, made while their sizes are unknown, because a response has a size limit."""

MOST_READS: Final = 1000
"""Maximum of items in one get, confirm or abort request."""

SMALLEST_ITEMS: Final = 2000
"""Minimum of items in a task, except that a batch has at least one task for each server."""

Reads: TypeAlias = "dict[Place, list[OpenRead]]"


@dataclass
class OpenedItems(InputPartition):
    """A task's share of the items of one place. The items are sent to the task with it."""

    place: Place
    items: Sequence[bytes]


_STATUS: Final = 128 + signal.SIGTERM
"""Exit status that a shell reports for a process ended by SIGTERM."""


def exit_on_sigterm() -> None:
    """Make SIGTERM raise SystemExit, unless this process already handles it or this is not the main thread.

    Spark stops a source with SIGTERM, which by default would end the process before `stop` is called.
    """
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _exit)


def ignore_sigterm() -> None:
    """Ignore SIGTERM during the shutdown if `exit_on_sigterm` handles it. Spark may send several signals."""
    if signal.getsignal(signal.SIGTERM) is _exit:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _exit(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(_STATUS)


class OpenReadsReader(QueueReader):
    """A stream reader that takes items in the driver and makes rows of them in tasks.

    `at_first` is called before each batch is taken; tests replace it.
    """

    def __init__(
        self,
        options: StreamOptions,
        schema: StructType,
        connections: ServerConnections | None = None,
        at_first: Callable[[], None] = exit_on_sigterm,
    ) -> None:
        super().__init__(options, schema, connections)
        self._run = uuid4().hex
        """Identifies this reader's batches; after a restart the open reads of an older run are unknown."""
        self._at_first = at_first
        self._left: dict[Place, int] = {}
        """Number of items still to take from each place with an available-now trigger."""
        self._batches: dict[int, Reads] = {}
        """Open reads that are not done yet, by batch number."""
        self._last = 0
        self._done: dict[Place, list[int]] = {}
        """Ids still to confirm."""

    # Offsets.

    def initialOffset(self) -> Offset:
        return self._offset(0)

    def prepareForTriggerAvailableNow(self) -> None:
        """Limit the stream to as many items as each queue has now. Raises `SourceFailed` if a server stays away longer
        than the option ``patience``.
        """
        ask = self._connections.ask
        self._held = self._places(ask)
        self._left = {place: self._info(place, ask).items for place in self._held}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Take the items of the next batch and return its offset. Confirm everything up to `start`, which is done.

        Skip servers that do not answer, except with an available-now trigger, which waits for every server.
        Raises `SourceFailed`.
        """
        if isinstance(limit, ReadAllAvailable):
            raise SourceFailed(
                "trigger(once=True) does not report when items are done, so they would be delivered again: "
                "use trigger(availableNow=True)"
            )
        self._acknowledge(self._number(start), self._ask)
        self._at_first()
        if not self._batches:  # a batch that is not done was taken already
            reads = self._take(limit)
            if not reads:
                return start
            self._last += 1
            self._batches[self._last] = reads
        return self._offset(self._last)

    def _offset(self, batch: int) -> Offset:
        return {**self._says, "run": self._run, "batch": batch}

    def _number(self, offset: Offset) -> int:
        """Return the batch number of an offset, or 0 for one of an earlier run."""
        self._check(offset)
        number: int = offset["batch"] if offset["run"] == self._run else 0
        return number

    # Taking items.

    def _take(self, limit: ReadLimit) -> Reads:
        """Take the items of one batch from all places, in fair shares."""
        infos: dict[Place, QueueInfo] = {}
        taken: Reads = {}
        for place in self._places(self._ask):
            with suppress(ServerUnavailable):
                infos[place] = self._info(place, self._ask)
        try:
            for place, share in self._in_order(infos, limit):
                most = min(share.items, infos[place].items, self._left.get(place, MOST_ROWS))
                reads = taken[place] = []
                with suppress(ServerUnavailable):
                    self._take_from(place, reads, most, share.bytes)
                if self._held is not None:
                    self._left[place] -= len(reads)
                share.used_items, share.used_bytes = len(reads), _size_of(reads)
        except BaseException:  # including SystemExit from a stop
            self._give_back(taken)
            raise
        return {place: reads for place, reads in taken.items() if reads}

    def _take_from(self, place: Place, reads: list[OpenRead], most: int, most_bytes: int) -> None:
        """Append open reads of one place to `reads`, up to `most` items and about `most_bytes`.

        Raises `ServerUnavailable`.
        """
        last_short = 0
        room = most_bytes
        while len(reads) < most and room > 0:
            wanted = min(most - len(reads), _fitting(reads, most_bytes - room, room))
            page = self._ask(
                place.address, partial(_get, queue=place.name, max_items=wanted, hold_ms=self._options.hold_ms)
            )
            reads += page
            room -= _size_of(page)
            if len(page) < wanted:
                # A server limits the open reads of one connection, so more are taken over a new connection. At that
                # limit successive responses do not get shorter; a shorter one means that the queue is empty.
                if not page or len(page) < last_short:
                    break
                last_short = len(page)
                self._connections.hang_up(place.address)
        if reads:
            self._connections.hang_up(place.address)

    def _give_back(self, batch: Reads) -> None:
        """Abort the open reads of a batch, so that the servers deliver the items again now."""
        for place, reads in batch.items():
            for ids in _runs([read.id for read in reads]):
                with suppress(ServerUnavailable, SourceFailed):  # the servers requeue them at the timeout
                    self._connections.ask_once(place.address, partial(_abort, queue=place.name, ids=ids))

    # Confirming items.

    def _acknowledge(self, number: int, ask: SendRequest) -> None:
        for done in [each for each in self._batches if each <= number]:
            for place, reads in self._batches.pop(done).items():
                self._done.setdefault(place, []).extend(read.id for read in reads)
        for place in list(self._done):
            with suppress(ServerUnavailable):
                self._confirm(place, ask)

    def _confirm(self, place: Place, ask: SendRequest) -> None:
        """Confirm all done items of one place. Raises `ServerUnavailable`; the rest is confirmed by a later call."""
        ids = self._done[place]
        lost = 0
        while ids:
            some = ids[:MOST_READS]
            lost += len(some) - ask(place.address, partial(_confirm, queue=place.name, ids=some))
            del ids[:MOST_READS]
        del self._done[place]
        if lost:
            logger.warning(
                "%s: %d done items were no longer open reads and are delivered again, unless only a response was lost: "
                "set hold to more than the time of a batch and until the next one",
                *(place, lost),
            )

    def stop(self) -> None:
        """Try to confirm done items, abort all other open reads, and close the connections."""
        ignore_sigterm()
        with suppress(SourceFailed):
            self._acknowledge(0, self._connections.ask_once)
        for batch in self._batches.values():
            self._give_back(batch)
        self._batches.clear()
        super().stop()

    # Tasks.

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the tasks of a batch. Items taken by an earlier run are not included; the servers redeliver them.

        Raises `SourceFailed`.
        """
        tasks: list[InputPartition] = []
        for number in range(self._number(start) + 1, self._number(end) + 1):
            if number not in self._batches:
                raise SourceFailed("Spark requested a batch again whose items are already confirmed")
            for place, reads in self._batches[number].items():
                items = [read.data for read in reads]
                tasks += [OpenedItems(place, part) for part in _parts(items, self._options.slices)]
        return tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, OpenedItems)
        yield self._batch(partition.place, len(partition.items), {"data": partition.items})


def _get(calls: ThriftCalls, queue: bytes, max_items: int, hold_ms: int) -> Call[list[OpenRead]]:
    return calls.get(queue, max_items, 0, hold_ms)


def _abort(calls: ThriftCalls, queue: bytes, ids: Sequence[int]) -> Call[int]:
    return calls.abort(queue, ids)


def _confirm(calls: ThriftCalls, queue: bytes, ids: Sequence[int]) -> Call[int]:
    return calls.confirm(queue, ids)


def _size_of(reads: Sequence[OpenRead]) -> int:
    return sum(len(read.data) for read in reads)


def _fitting(reads: Sequence[OpenRead], size: int, room: int) -> int:
    """Return how many further items are likely to fit in `room` bytes, at least 1. All `reads` have `size` bytes."""
    if not reads:
        return FIRST_READS
    return max(1, min(MOST_READS, room * len(reads) // (size or 1)))


def _runs(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """Split ids into sequences of at most `MOST_READS`."""
    return (ids[place : place + MOST_READS] for place in range(0, len(ids), MOST_READS))


def _parts(items: Sequence[bytes], slices: int) -> Iterator[Sequence[bytes]]:
    """Split the items of a server into at most `slices` tasks."""
    number = max(1, min(slices, len(items) // SMALLEST_ITEMS))
    cuts = [len(items) * place // number for place in range(number + 1)]
    return (items[first:end] for first, end in pairwise(cuts))
