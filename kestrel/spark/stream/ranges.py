"""Exactly-once stream source: reads queues by item id; servers keep the items until the stream releases them.

An offset holds the next id of each server. Spark may request a batch again, and gets the same items again.
"""

from __future__ import annotations

import logging
import math
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
from kestrel.names import parent_of
from kestrel.protocols.codec import QueueInfo, RangeState
from kestrel.spark.options import STARTING_OFFSETS, SourceFailed
from kestrel.spark.stream.options import StreamOptions
from kestrel.spark.stream.queue_reader import (
    Offset,
    Place,
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

ONE_STREAM: Final = (
    f"A reader is for one stream with one checkpoint; {NEW_CHECKPOINT}, and with "
    'option("failOnDataLoss", "false") it continues there'
)


@dataclass
class IdSlice(InputPartition):
    """A task that reads the items of one place with ids from `first_id` to before `end_id`."""

    place: Place
    first_id: int
    end_id: int


def slices_of(place: Place, first_id: int, end_id: int, slices: int, max_ids: int) -> list[IdSlice]:
    """Split an id range into at most `slices` parts of about the same number of ids.

    A range with a gap has at most `max_ids` items; the first part contains the gap.
    """
    ids = end_id - first_id
    if ids >= GAP_IDS:
        ids = max_ids  # split only the last max_ids ids; the first slice also gets the gap
    number = max(1, min(slices, ids // SMALLEST_IDS))
    cuts = [first_id, *(end_id - ids + ids * place // number for place in range(1, number)), end_id]
    return [IdSlice(place, first, end) for first, end in pairwise(cuts) if first < end]


class RangesReader(QueueReader):
    """A stream reader that plans batches in the driver and reads them in tasks."""

    def __init__(
        self, options: StreamOptions, schema: StructType, connections: ServerConnections | None = None
    ) -> None:
        super().__init__(options, schema, connections)
        self._says["reader"] = options.reader.decode()
        self._initial: Offset | None = None
        self._targets: dict[Place, int] = {}
        """Final id of each place with an available-now trigger, set at the first response."""
        self._released: dict[Place, int] = {}
        """First id that each place has not released, from its last response."""
        self._next: dict[Place, int] = {}
        """Id of each place's next item, from its last response."""
        self._untold: set[Place] = set()
        """Absent places for which releasing the done items has failed."""

    # Offsets.

    def initialOffset(self) -> Offset:
        """Return the first id of each place. The servers keep items from then on; all must answer."""
        if self._initial is None:
            ask = self._connections.ask
            self._initial = self._offset({place: self._start(place, ask) for place in self._places(ask)})
        return self._initial

    def _start(self, place: Place, ask: SendRequest) -> int:
        """Return the id at which a new stream begins. Raises `SourceFailed` if it would remove items of others."""
        state = self._begin(place, ask)
        start_ms = self._options.start_ms
        if not start_ms:
            return state.first_id
        if parent_of(place.name) is None:
            raise SourceFailed(
                f"{place}: {STARTING_OFFSETS} other than earliest would remove the items before it, which may be for "
                f"others. Read a child such as {place.queue}+spark, or flush the queue before the start "
                f"(kestrel-cli flush {place.queue}), or filter the rows by add_time"
            )
        low, high = state.first_id, state.next_id
        if start_ms == math.inf:
            return high
        while low < high:  # times increase with the ids, but not every id has an item
            middle = (low + high) // 2
            found = ask(place.address, self._read_range(place, middle, high, 1))
            if found and found[0].add_ms < start_ms:
                low = found[0].id + 1
            else:
                high = middle
        return low

    def prepareForTriggerAvailableNow(self) -> None:
        """Limit the stream to the items that exist now. All servers must answer within the option ``patience``.

        This does not open ranges. If a checkpoint exists but a server does not know the range, the queue was replaced.
        """
        self._held = self._places(self._connections.ask)
        for place in self._held:
            with suppress(ServerRefused):  # the range is not open yet
                self._told(place, self._connections.ask(place.address, self._release_range(place, 0)))

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return the end of the next batch. Release everything below `start`, which is done.

        Keep the position of servers that do not answer, except with an available-now trigger, which waits for all.
        """
        self._check(start)
        begins = _ids_in(start)
        ask = self._ask
        present = self._places(ask)
        absent = {place: id_ for place, id_ in begins.items() if place not in present}
        ends = {place: begins[place] for place in present if place in begins} | self._left_behind(absent)
        # The first batch has no earlier offset with its start, and the places may differ after a restart.
        new = dict(begins) if start == self._initial else {}
        infos: dict[Place, QueueInfo] = {}
        for place in present:
            with suppress(ServerUnavailable):
                begin = self._resume(place, begins[place], ask) if place in begins else self._begin(place, ask).first_id
                infos[place] = self._info(place, ask)
                if begins.get(place) != begin:
                    new[place] = begin
        for place, share in self._in_order(infos, limit):
            begin = new.get(place, begins.get(place, 0))
            with suppress(ServerUnavailable):
                item_bytes = max(1, infos[place].bytes // (infos[place].items or 1))
                end = self._end(place, begin, min(share.items, max(1, share.bytes // item_bytes)), ask)
                share.used_items = end - begin  # an upper bound: not every id has an item
                share.used_bytes = share.used_items * item_bytes
                if place in begins or end > begin:
                    ends[place] = end
        new = {place: id_ for place, id_ in new.items() if place in ends}
        is_pinned = start == self._initial and self._options.start_ms > 0  # a restart must not find a later start
        return start if ends == begins and not is_pinned else self._offset(ends, new)

    def _offset(self, ids: Mapping[Place, int], new: Mapping[Place, int] | None = None) -> Offset:
        """Return an offset; `new` holds the first ids of the batch where the previous offset does not have them."""
        return {**self._says, "queues": _texts(ids), **({"new": _texts(new)} if new else {})}

    def _begin(self, place: Place, ask: SendRequest) -> RangeState:
        """Open the range for the reader, so that the server keeps the items."""
        try:
            state = ask(place.address, self._open_range(place))
        except ServerRefused as refused:
            way_out = 'option("delivery", "at_least_once")'
            raise ServerRefused(f"{refused}. Read a queue whose items have no ids with {way_out}") from None
        self._told(place, state)
        return state

    def _resume(self, place: Place, begin: int, ask: SendRequest) -> int:
        """Release everything below `begin`, and return the first id of the next batch.

        It differs from `begin` if items are gone and this does not fail the query.
        """
        try:
            self._release(place, begin, ask)
            self._told(place, ask(place.address, self._open_range(place, begin)))
        except ServerRefused as refused:
            if self._options.fails_on_data_loss:
                raise ServerRefused(f"{refused}. {ONE_STREAM}") from None
            first_id = self._begin(place, ask).first_id
            logger.warning("%s. The stream continues with the item %d (failOnDataLoss)", refused, first_id)
            return first_id
        return begin

    def _end(self, place: Place, begin: int, share: int, ask: SendRequest) -> int:
        """Return the id at which the batch ends in one place."""
        target = self._targets.get(place, self._next[place])
        if share == 0 or begin >= target:
            return begin
        state = ask(place.address, self._open_range(place, begin, share))
        self._told(place, state)
        return min(state.end_id, target)

    def _open_range(
        self, place: Place, first_id: int = 0, max_items: int = 0
    ) -> Callable[[ThriftCalls], Call[RangeState]]:
        return lambda calls: calls.open_range(place.name, self._options.reader, first_id, max_items)

    def _told(self, place: Place, state: RangeState) -> None:
        self._released[place] = state.first_id
        self._next[place] = state.next_id
        if self._held is not None:
            self._targets.setdefault(place, state.next_id)

    # Releasing items.

    def _release(self, place: Place, end_id: int, ask: SendRequest) -> None:
        if self._released.get(place, -1) < end_id:
            self._told(place, ask(place.address, self._release_range(place, end_id)))

    def _release_range(self, place: Place, end_id: int) -> Callable[[ThriftCalls], Call[RangeState]]:
        return lambda calls: calls.release_range(place.name, self._options.reader, end_id)

    def _left_behind(self, ids: Mapping[Place, int]) -> dict[Place, int]:
        """Release the items of places that are not present, and return the positions to keep in the offset.

        Keep the position of a server that may return to its server set. Drop a place that the options no longer name,
        unless the release fails: if it is named again, the stream resumes there. The release is tried once.
        """
        kept = dict(ids)
        self._untold &= ids.keys()
        for place in ids.keys() - self._untold:
            returns = self._expects(place)
            ask = self._connections.ask_once if returns else self._connections.ask
            try:
                self._release(place, ids[place], ask)
                if not returns:
                    del kept[place]
            except (ServerUnavailable, SourceFailed) as failed:
                self._untold.add(place)
                if not returns:
                    logger.warning(
                        "%s; the options no longer name %s, but it still keeps items that were read: "
                        "name it again, or release the items of the reader %r up to id %d",
                        *(failed, place, self._says["reader"], ids[place]),
                    )
        return kept

    # Tasks.

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the tasks of a batch. Raises `SourceFailed`."""
        self._check(start)
        self._check(end)
        begins = _ids_in(start) | _ids_in(end, "new")
        tasks: list[InputPartition] = []
        for place, end_id in _ids_in(end).items():
            if place not in begins:
                raise SourceFailed(f"the checkpoint has no first id for {place}: {NEW_CHECKPOINT}")
            if begins[place] < end_id:
                if not self._expects(place):
                    raise SourceFailed(
                        f"a batch has items of {place}, which the options do not name: name it until that "
                        f"batch is done. If it is gone for good: {NEW_CHECKPOINT}"
                    )
                tasks += slices_of(place, begins[place], end_id, self._options.slices, self._options.max_items)
        return tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task, one batch for each request to the server. Raises `SourceFailed`."""
        assert isinstance(partition, IdSlice)
        place, first_id = partition.place, partition.first_id
        with self._options.servers.open(place.address) as server:
            while first_id < partition.end_id and (items := self._page(server, partition, first_id)):
                columns: dict[str, list[Any]] = {
                    "item_id": [item.id for item in items],
                    "add_time": [_time_us(item.add_ms) for item in items],
                    "expiry_time": [_time_us(item.expiry_ms) if item.expiry_ms else None for item in items],
                    "data": [item.data for item in items],
                }
                yield self._batch(place, len(items), columns)
                first_id = items[-1].id + 1

    def _page(self, server: RetryingServer, slice_: IdSlice, first_id: int) -> list[RangeItem]:
        place, end_id = slice_.place, slice_.end_id
        try:
            try:
                return server.ask(self._read_range(place, first_id, end_id, PAGE_BYTES))
            except RequestError as error:
                if self._options.fails_on_data_loss:
                    raise
                first_left = max(first_id, server.ask(self._open_range(place)).first_id)
                logger.warning("%s. The task continues with the item %d (failOnDataLoss)", error, first_left)
                if not first_id < first_left < end_id:
                    return []
                return server.ask(self._read_range(place, first_left, end_id, PAGE_BYTES))
        except RequestError as error:
            raise ServerRefused.by(place.address, error) from None
        except ClientFailure as failure:
            raise SourceFailed(
                f"{failure}. The batch has items of that server: once it is reachable and its status is Up or "
                "ReadOnly, start the query again, which resumes with that batch"
            ) from None

    def _read_range(
        self, place: Place, first_id: int, end_id: int, max_bytes: int
    ) -> Callable[[ThriftCalls], Call[list[RangeItem]]]:
        return lambda calls: calls.read_range(place.name, self._options.reader, first_id, end_id, max_bytes)


def _texts(ids: Mapping[Place, int]) -> dict[str, int]:
    return {str(place): ids[place] for place in sorted(ids)}


def _ids_in(offset: Offset, name: str = "queues") -> dict[Place, int]:
    """Return the ids of an offset, also of one that release 1.0 has written for its only queue."""
    if "queue" in offset:
        ids = offset["servers"] if name == "queues" else offset.get(name, {})
        return {Place(address, offset["queue"]): id_ for address, id_ in ids.items()}
    return {Place.parse(text): id_ for text, id_ in offset.get(name, {}).items()}


def _time_us(time_ms: int) -> int:
    """Return a time in microseconds. Times after the year 9999, which Python cannot express, become its end."""
    return min(time_ms, LATEST_MS) * 1000
