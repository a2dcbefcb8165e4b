"""Exactly once: a stream that reads queues by their items' ids, which are kept for it until it has released them.

An offset has the next id of each server. What Spark asks for again is read again, and is the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from kestrel.client.call import Call
from kestrel.client.errors import ClientFailure, RequestError
from kestrel.client.retrying_server import RetryingServer
from kestrel.client.thrift import RangeItem, ThriftCalls
from kestrel.protocols.codec import RangeState
from kestrel.spark.failures import SourceFailed
from kestrel.spark.stream.connections import SendRequest, ServerConnections, ServerRefused, ServerUnavailable
from kestrel.spark.stream.fair_shares import FairShares, RoundRobin, parse_max_rows
from kestrel.spark.stream.offsets import Offset, check_offset
from kestrel.spark.stream.rows import ItemRows
from kestrel.spark.stream.stream_options import StreamOptions

logger = logging.getLogger("kestrel.spark")

PAGE_BYTES: Final = 4 * 1024 * 1024
"""So much is read at a time, and becomes a batch of rows."""

SMALLEST_IDS: Final = 2000
"""A slice of fewer is not worth a task of its own."""

GAP_IDS: Final = 1 << 32
"""A server may leave out so many ids when it begins: where a range is that long, it cannot be cut by numbers alone."""


NEW_CHECKPOINT: Final = "another checkpointLocation begins with the first items that are not released"

ONE_STREAM: Final = f"A reader is for one stream with one checkpoint; {NEW_CHECKPOINT}"


class IdSlice(InputPartition):
    """The items of one server from `first_id` on and below `end_id`."""

    def __init__(self, address: str, first_id: int, end_id: int) -> None:
        super().__init__(None)
        self.address = address
        self.first_id = first_id
        self.end_id = end_id


def slices_of(address: str, first_id: int, end_id: int, slices: int, max_ids: int) -> list[IdSlice]:
    """No more than so many slices, of about as many ids each. Behind a gap `max_ids` may have items."""
    ids = end_id - first_id
    if ids >= GAP_IDS:
        ids = max_ids  # the last of them; what is before them is the first slice's, and the gap is in it
    number = max(1, min(slices, ids // SMALLEST_IDS))
    cuts = [first_id, *(end_id - ids + ids * place // number for place in range(1, number)), end_id]
    return [IdSlice(address, first, end) for first, end in pairwise(cuts) if first < end]


class RangesReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches in the driver, and reads them in tasks, to which it travels without its connections.

    What is wrong is a `SourceFailed`, with the way out. `connections` is for tests.
    """

    def __init__(
        self, options: StreamOptions, schema: StructType, connections: ServerConnections | None = None
    ) -> None:
        self._options = options
        self._schema = schema
        self._servers = options.servers
        self._says = {
            "delivery": options.delivery.value,
            "queue": options.queue,
            "reader": options.reader.decode(),
        }
        self._connections = connections or ServerConnections(options.servers)
        self._present = options.servers.to_read()
        self._turns = RoundRobin()
        self._initial: Offset | None = None
        self._targets: dict[str, int] | None = None
        """With a trigger that ends: where, for each server, once it has said how far it is."""
        self._released: dict[str, int] = {}
        """As far as the servers have said."""
        self._next: dict[str, int] = {}
        self._untold: set[str] = set()
        """Servers that are not there any more, and could not be told what is done."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._options, self._schema)

    # Where the stream is.

    def initialOffset(self) -> Offset:
        """The first ids that are not released. From here on the servers keep their items; all of them must answer."""
        if self._initial is None:
            ask = self._connections.ask
            self._initial = self._offset(
                {address: self._begin(address, ask).first_id for address in self._present.addresses()}
            )
        return self._initial

    def prepareForTriggerAvailableNow(self) -> None:
        """What is there now is read, and no more. From here on no server may be away for longer than the patience.

        Nothing is begun here: where a checkpoint says that it was begun before, and the server does not know of it,
        the queue is another one.
        """
        self._targets = {}
        self._present.hold()
        for address in self._present.addresses():
            with suppress(ServerRefused):  # it has not begun yet
                self._told(address, self._connections.ask(address, self._release_range(0)))

    def getDefaultReadLimit(self) -> ReadLimit:
        """So many rows as the options say."""
        return ReadMaxRows(self._options.max_rows)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Where the next batch ends. Everything below `start` is done, and is released.

        A server that is away stays where it is. With a trigger that ends, nobody is passed over.
        """
        check_offset(start, self._says)
        begins: dict[str, int] = start["servers"]
        ask = self._connections.ask_once if self._targets is None else self._connections.ask
        turns = self._turns.of(self._present.addresses())
        shares = FairShares(parse_max_rows(limit, self._options.max_rows), len(turns))
        absent = {address: id_ for address, id_ in begins.items() if address not in turns}
        ends = {address: begins[address] for address in turns if address in begins} | self._left_behind(absent)
        # Where the first batch begins no batch before it says, and after a restart others may be there.
        new: dict[str, int] = dict(begins) if start == self._initial else {}
        for address in turns:
            share = shares.next()
            with suppress(ServerUnavailable):
                if address in begins:
                    self._release(address, begins[address], ask)
                begin = begins[address] if address in begins else self._begin(address, ask).first_id
                end = self._end(address, begin, share, ask)
                shares.used(end - begin)  # at most: not every id has an item
                if address not in begins and end > begin:
                    new[address] = begin
                if end > begin:
                    ends[address] = end
        return start if ends == begins else self._offset(ends, new)

    def reportLatestOffset(self) -> Offset | None:
        """Where the servers were when they were last asked."""
        return self._offset(self._next) if self._next else None

    def _offset(self, ids: Mapping[str, int], new: Mapping[str, int] | None = None) -> Offset:
        """`new` says where servers begin that the offset before does not know."""
        return {**self._says, "servers": dict(sorted(ids.items())), **({"new": dict(new)} if new else {})}

    def _begin(self, address: str, ask: SendRequest) -> RangeState:
        """Have the items kept, if they are not."""
        try:
            state = ask(address, self._open_range())
        except ServerRefused as refused:
            way_out = 'option("delivery", "at_least_once")'
            raise ServerRefused(f"{refused}. A queue whose items have no ids is read with {way_out}") from None
        self._told(address, state)
        return state

    def _end(self, address: str, begin: int, share: int, ask: SendRequest) -> int:
        """Where the batch ends."""
        if share == 0 or (self._targets is not None and begin >= self._targets[address]):
            return begin
        try:
            state = ask(address, self._open_range(begin, share))
        except ServerRefused as refused:
            raise ServerRefused(f"{refused}. {ONE_STREAM}") from None
        self._told(address, state)
        return state.end_id if self._targets is None else min(state.end_id, self._targets[address])

    def _open_range(self, first_id: int = 0, max_items: int = 0) -> Callable[[ThriftCalls], Call[RangeState]]:
        queue, reader = self._servers.queue, self._options.reader
        return lambda calls: calls.open_range(queue, reader, first_id, max_items)

    def _told(self, address: str, state: RangeState) -> None:
        self._released[address] = state.first_id
        self._next[address] = state.next_id
        if self._targets is not None:
            self._targets.setdefault(address, state.next_id)

    # What is done.

    def commit(self, end: Offset) -> None:
        """Everything below `end` is done. Spark says so late, and not of the last batch: `latestOffset` knows before.

        A server that is away is told by the next `latestOffset`.
        """
        check_offset(end, self._says)
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
        queue, reader = self._servers.queue, self._options.reader
        return lambda calls: calls.release_range(queue, reader, end_id)

    def _left_behind(self, places: Mapping[str, int]) -> dict[str, int]:
        """Of servers that are not there nothing is read, and what was read is released, which is tried once.

        Who has left a server set is away, and keeps its place. Who is named no more has none, but for those that could
        not be told: if they are named again they go on there.
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
                        "%s; servers does not name it any more, and it still has items that were read: "
                        "name it again, or have them released for the reader %r up to id %d",
                        *(failed, self._says["reader"], places[address]),
                    )
        return kept

    def stop(self) -> None:
        """Hang up. The servers go on keeping items for the reader: the stream goes on from its checkpoint."""
        self._present.close()
        self._connections.close()

    # What a batch has.

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Who reads what of it."""
        check_offset(start, self._says)
        check_offset(end, self._says)
        begins = {**end.get("new", {}), **start["servers"]}
        tasks: list[InputPartition] = []
        for address, end_id in end["servers"].items():
            if address not in begins:
                raise SourceFailed(f"the checkpoint does not say where the items of {address} begin: {NEW_CHECKPOINT}")
            if begins[address] < end_id:
                if not self._present.expects(address):
                    raise SourceFailed(
                        f"a batch has items of {address}, which servers does not name: name it until that batch is "
                        f"done. If it is gone for good: {NEW_CHECKPOINT}"
                    )
                tasks += slices_of(address, begins[address], end_id, self._options.slices, self._options.max_rows)
        return tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """What a task reads."""
        assert isinstance(partition, IdSlice)
        rows = ItemRows(self._schema, partition.address, self._options.queue)
        first_id = partition.first_id
        with self._servers.open(partition.address) as server:
            while first_id < partition.end_id and (items := self._page(server, partition, first_id)):
                yield rows.by_ids(items)
                first_id = items[-1].id + 1

    def _page(self, server: RetryingServer, slice_: IdSlice, first_id: int) -> list[RangeItem]:
        queue, reader = self._servers.queue, self._options.reader
        try:
            return server.ask(lambda calls: calls.read_range(queue, reader, first_id, slice_.end_id, PAGE_BYTES))
        except RequestError as error:
            raise ServerRefused.by(slice_.address, error) from None
        except ClientFailure as failure:
            raise SourceFailed(
                f"{failure}. The batch has items of that server: when it gives items again (it is there, and Up or "
                "ReadOnly) start the query again, which goes on with that batch"
            ) from None
