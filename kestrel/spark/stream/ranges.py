"""Exactly-once stream source: reads queues by item id; servers keep the items until the stream releases them.

An offset holds the next id of each server. Spark may request a batch again, and gets the same items again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from kestrel.client.call import Call
from kestrel.client.errors import ClientFailure, RequestError
from kestrel.client.retrying_server import RetryingServer
from kestrel.client.thrift import RangeItem, ThriftCalls
from kestrel.protocols.codec import RangeState
from kestrel.spark.options import SourceFailed
from kestrel.spark.stream.options import StreamOptions
from kestrel.spark.stream.queue_reader import (
    FairShares,
    Offset,
    QueueReader,
    SendRequest,
    ServerConnections,
    ServerRefused,
    ServerUnavailable,
)

logger = logging.getLogger("kestrel.spark")

PAGE_BYTES: Final = 4 * 1024 * 1024
"""Bytes of items read by one request, which become one batch of rows."""

SMALLEST_IDS: Final = 2000
"""Minimum of ids in a task, except that a server's range has at least one task."""

GAP_IDS: Final = 1 << 32
"""Minimum length of a range that may contain a gap: a server can skip this many ids at its start."""

LATEST_MS: Final = 253_402_300_799_999
"""The end of the year 9999."""

NEW_CHECKPOINT: Final = "with another checkpointLocation the stream begins at the first unreleased items"

ONE_STREAM: Final = f"A reader is for one stream with one checkpoint; {NEW_CHECKPOINT}"


@dataclass
class IdSlice(InputPartition):
    """A task that reads the items of one server with ids from `first_id` to before `end_id`."""

    address: str
    first_id: int
    end_id: int


def slices_of(address: str, first_id: int, end_id: int, slices: int, max_ids: int) -> list[IdSlice]:
    """Split an id range into at most `slices` parts of about the same number of ids.

    A range with a gap has at most `max_ids` items; the first part contains the gap.
    """
    ids = end_id - first_id
    if ids >= GAP_IDS:
        ids = max_ids  # split only the last max_ids ids; the first slice also gets the gap
    number = max(1, min(slices, ids // SMALLEST_IDS))
    cuts = [first_id, *(end_id - ids + ids * place // number for place in range(1, number)), end_id]
    return [IdSlice(address, first, end) for first, end in pairwise(cuts) if first < end]


class RangesReader(QueueReader):
    """A stream reader that plans batches in the driver and reads them in tasks."""

    def __init__(
        self, options: StreamOptions, schema: StructType, connections: ServerConnections | None = None
    ) -> None:
        super().__init__(options, schema, connections)
        self._says["reader"] = options.reader.decode()
        self._initial: Offset | None = None
        self._targets: dict[str, int] | None = None
        """Final id of each server with an available-now trigger, set at the server's first response; else None."""
        self._released: dict[str, int] = {}
        """First id that each server has not released, from its last response."""
        self._next: dict[str, int] = {}
        self._untold: set[str] = set()
        """Absent servers for which releasing the done items has failed."""

    # Offsets.

    def initialOffset(self) -> Offset:
        """Return the first unreleased id of each server. The servers keep items from then on; all must answer."""
        if self._initial is None:
            ask = self._connections.ask
            self._initial = self._offset(
                {address: self._begin(address, ask).first_id for address in self._present.addresses()}
            )
        return self._initial

    def prepareForTriggerAvailableNow(self) -> None:
        """Limit the stream to the items that exist now. All servers must answer within the option ``patience``.

        This does not open ranges. If a checkpoint exists but a server does not know the range, the queue was replaced.
        """
        self._targets = {}
        self._present.hold()
        for address in self._present.addresses():
            with suppress(ServerRefused):  # the range is not open yet
                self._told(address, self._connections.ask(address, self._release_range(0)))

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return the end of the next batch. Release everything below `start`, which is done.

        Keep the position of servers that do not answer, except with an available-now trigger, which waits for all.
        """
        self._check(start)
        begins: dict[str, int] = start["servers"]
        ask = self._connections.ask_once if self._targets is None else self._connections.ask
        turns = self._turns.of(self._present.addresses())
        shares = FairShares(self._max_rows(limit), len(turns))
        absent = {address: id_ for address, id_ in begins.items() if address not in turns}
        ends = {address: begins[address] for address in turns if address in begins} | self._left_behind(absent)
        # The first batch has no earlier offset with its start, and the servers may differ after a restart.
        new: dict[str, int] = dict(begins) if start == self._initial else {}
        for address in turns:
            share = shares.next()
            with suppress(ServerUnavailable):
                if address in begins:
                    self._release(address, begins[address], ask)
                begin = begins[address] if address in begins else self._begin(address, ask).first_id
                end = self._end(address, begin, share, ask)
                shares.used(end - begin)  # an upper bound: not every id has an item
                if address not in begins and end > begin:
                    new[address] = begin
                if end > begin:
                    ends[address] = end
        return start if ends == begins else self._offset(ends, new)

    def reportLatestOffset(self) -> Offset | None:
        """Return the ends of the queues at the last response of each server, or None if there was none."""
        return self._offset(self._next) if self._next else None

    def _offset(self, ids: Mapping[str, int], new: Mapping[str, int] | None = None) -> Offset:
        """Return an offset; `new` holds the first ids of servers that the previous offset does not have."""
        return {**self._says, "servers": dict(sorted(ids.items())), **({"new": dict(new)} if new else {})}

    def _begin(self, address: str, ask: SendRequest) -> RangeState:
        """Open the range for the reader, so that the server keeps the items."""
        try:
            state = ask(address, self._open_range())
        except ServerRefused as refused:
            way_out = 'option("delivery", "at_least_once")'
            raise ServerRefused(f"{refused}. Read a queue whose items have no ids with {way_out}") from None
        self._told(address, state)
        return state

    def _end(self, address: str, begin: int, share: int, ask: SendRequest) -> int:
        """Return the id at which the batch ends on one server."""
        if share == 0 or (self._targets is not None and begin >= self._targets[address]):
            return begin
        try:
            state = ask(address, self._open_range(begin, share))
        except ServerRefused as refused:
            raise ServerRefused(f"{refused}. {ONE_STREAM}") from None
        self._told(address, state)
        return state.end_id if self._targets is None else min(state.end_id, self._targets[address])

    def _open_range(self, first_id: int = 0, max_items: int = 0) -> Callable[[ThriftCalls], Call[RangeState]]:
        queue, reader = self._queue, self._options.reader
        return lambda calls: calls.open_range(queue, reader, first_id, max_items)

    def _told(self, address: str, state: RangeState) -> None:
        self._released[address] = state.first_id
        self._next[address] = state.next_id
        if self._targets is not None:
            self._targets.setdefault(address, state.next_id)

    # Releasing items.

    def commit(self, end: Offset) -> None:
        """Release everything below `end`. Skip servers that do not answer; `latestOffset` tries them again.

        Spark calls this late and not for the last batch; `latestOffset` learns earlier what is done.
        """
        self._check(end)
        present = self._present.addresses()
        for address, end_id in end["servers"].items():
            if address in present:
                with suppress(ServerUnavailable):
                    self._release(address, end_id, self._connections.ask_once)

    def _release(self, address: str, end_id: int, ask: SendRequest) -> None:
        if self._released.get(address, -1) < end_id:
            try:
                state = ask(address, self._release_range(end_id))
            except ServerRefused as refused:
                raise ServerRefused(f"{refused}. {ONE_STREAM}") from None
            self._told(address, state)

    def _release_range(self, end_id: int) -> Callable[[ThriftCalls], Call[RangeState]]:
        queue, reader = self._queue, self._options.reader
        return lambda calls: calls.release_range(queue, reader, end_id)

    def _left_behind(self, places: Mapping[str, int]) -> dict[str, int]:
        """Release the items of servers that are not present, and return the positions to keep in the offset.

        Keep the position of a server that may return to its server set. Drop a server that the options no longer name,
        unless the release fails: if it is named again, the stream resumes there. The release is tried once.
        """
        kept = dict(places)
        self._untold &= places.keys()
        for address in places.keys() - self._untold:
            returns = self._present.expects(address)
            ask = self._connections.ask_once if returns else self._connections.ask
            try:
                self._release(address, places[address], ask)
                if not returns:
                    del kept[address]
            except (ServerUnavailable, SourceFailed) as failed:
                self._untold.add(address)
                if not returns:
                    logger.warning(
                        "%s; the option servers no longer names it, but it still keeps items that were read: "
                        "name it again, or release the items of the reader %r up to id %d",
                        *(failed, self._says["reader"], places[address]),
                    )
        return kept

    # Tasks.

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the tasks of a batch. Raises `SourceFailed`."""
        self._check(start)
        self._check(end)
        begins = {**end.get("new", {}), **start["servers"]}
        tasks: list[InputPartition] = []
        for address, end_id in end["servers"].items():
            if address not in begins:
                raise SourceFailed(f"the checkpoint has no first id for {address}: {NEW_CHECKPOINT}")
            if begins[address] < end_id:
                if not self._present.expects(address):
                    raise SourceFailed(
                        f"a batch has items of {address}, which is not in the option servers: name it until that "
                        f"batch is done. If it is gone for good: {NEW_CHECKPOINT}"
                    )
                tasks += slices_of(address, begins[address], end_id, self._options.slices, self._options.max_rows)
        return tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task, one batch for each request to the server. Raises `SourceFailed`."""
        assert isinstance(partition, IdSlice)
        first_id = partition.first_id
        with self._options.servers.open(partition.address) as server:
            while first_id < partition.end_id and (items := self._page(server, partition, first_id)):
                columns: dict[str, list[Any]] = {
                    "item_id": [item.id for item in items],
                    "add_time": [_time_us(item.add_ms) for item in items],
                    "expiry_time": [_time_us(item.expiry_ms) if item.expiry_ms else None for item in items],
                    "data": [item.data for item in items],
                }
                yield self._batch(partition.address, len(items), columns)
                first_id = items[-1].id + 1

    def _page(self, server: RetryingServer, slice_: IdSlice, first_id: int) -> list[RangeItem]:
        queue, reader = self._queue, self._options.reader
        try:
            return server.ask(lambda calls: calls.read_range(queue, reader, first_id, slice_.end_id, PAGE_BYTES))
        except RequestError as error:
            raise ServerRefused.by(slice_.address, error) from None
        except ClientFailure as failure:
            raise SourceFailed(
                f"{failure}. The batch has items of that server: once it is reachable and its status is Up or "
                "ReadOnly, start the query again, which resumes with that batch"
            ) from None


def _time_us(time_ms: int) -> int:
    """Return a time in microseconds. Times after the year 9999, which Python cannot express, become its end."""
    return min(time_ms, LATEST_MS) * 1000
