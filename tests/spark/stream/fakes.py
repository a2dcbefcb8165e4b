"""Simulated servers of a stream. The test sets their items, and when they are away."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, TypeVar

from pyspark.sql.types import StructType

from kestrel.address import parse_address
from kestrel.client.call import Call
from kestrel.client.errors import CannotConnect, ConnectionFailed, RequestError
from kestrel.client.retrying_server import RetryingServer
from kestrel.client.thrift import OpenRead, RangeItem, ThriftCalls
from kestrel.cluster.follower import Members
from kestrel.cluster.member import Member
from kestrel.cluster.uri import ServerSetUri, parse_server_set
from kestrel.protocols.codec import QueueInfo, RangeState
from kestrel.spark.columns import ITEMS
from kestrel.spark.stream.open_reads import OpenReadsReader
from kestrel.spark.stream.options import OPEN_BYTES, Delivery, StreamOptions, StreamServers
from kestrel.spark.stream.queue_reader import ServerConnections
from kestrel.spark.stream.ranges import RangesReader
from kestrel.spark.stream.server_directory import ServerDirectory

T = TypeVar("T")

QUEUE: Final = b"work"

A, B, C = "a:2229", "b:2229", "c:2229"


class Answer(Call[T]):
    """A call with its result."""

    def __init__(self, value: T) -> None:
        self.value = value


class Queue:
    """The queue of one server, with ids and open reads."""

    def __init__(self, first_id: int = 1) -> None:
        self.reader: bytes | None = None
        self.has_ids = True
        self.first_id = first_id
        self.next_id = first_id
        self.by_ids: dict[int, bytes] = {}
        self.times_ms: dict[int, tuple[int, int]] = {}
        """The add and expiry time of an item by id. The default is 1000 ms + the id, without expiry."""
        self.waiting: list[bytes] = []
        self.open: dict[int, bytes] = {}
        self.last_read = 0
        self.max_open = 10_000
        """Open reads by connection."""
        self.is_away = False
        self.loses_answers = False
        """Whether requests are executed and their replies are lost."""
        self.asked: list[str] = []
        self.others: dict[bytes, Queue] = {}
        """Other queues of the server, by name."""

    def put(self, *items: bytes, gap: int = 0) -> None:
        """Put items for both deliveries. Some ids before them are skipped."""
        self.next_id += gap
        for data in items:
            self.by_ids[self.next_id] = data
            self.next_id += 1
        self.waiting += items

    def hold_ends(self) -> None:
        """Put the open reads back, in order."""
        self.waiting = [*self.open.values(), *self.waiting]
        self.open.clear()


class _Calls(ThriftCalls):
    """The replies to one connection."""

    def __init__(self, queue: Queue) -> None:
        super().__init__()
        self._queue = queue
        self._opened: set[int] = set()

    def _named(self, queue: bytes) -> Queue:
        return self._queue if queue == QUEUE else self._queue.others[queue]

    def _of_reader(self, queue: bytes, reader: bytes) -> Queue:
        mine = self._named(queue)
        if mine.reader != reader:
            raise RequestError(f"it is read by another reader: {mine.reader!r}")
        return mine

    def list_queues(self) -> Call[list[bytes]]:
        return Answer([QUEUE, *self._queue.others])

    def open_range(self, queue: bytes, reader: bytes, first_id: int = 0, max_items: int = 0) -> Call[RangeState]:
        mine = self._named(queue)
        mine.asked.append("open_range")
        if not mine.has_ids:
            raise RequestError("its storage gives them none")
        if first_id <= 0 and mine.reader is None:
            mine.reader = reader
        self._of_reader(queue, reader)
        begin = first_id if first_id > 0 else mine.first_id
        if begin < mine.first_id:
            raise RequestError(f"the ids from {begin} on were released")
        if begin > mine.next_id:
            raise RequestError(f"there is no id {begin} yet")
        ids = [each for each in sorted(mine.by_ids) if each >= begin]
        end_id = mine.next_id if max_items <= 0 or len(ids) <= max_items else ids[max_items]
        return Answer(RangeState(mine.first_id, mine.next_id, end_id))

    def read_range(
        self, queue: bytes, reader: bytes, first_id: int, end_id: int, max_bytes: int
    ) -> Call[list[RangeItem]]:
        mine = self._of_reader(queue, reader)
        mine.asked.append("read_range")
        if first_id < mine.first_id:
            raise RequestError(f"the ids from {first_id} on were released")
        items: list[RangeItem] = []
        for each in sorted(mine.by_ids):
            if first_id <= each < end_id:
                data = mine.by_ids[each]
                if items and sum(len(item.data) for item in items) + len(data) > max_bytes:
                    break
                items.append(RangeItem(each, data, *mine.times_ms.get(each, (1000 + each, 0))))
        return Answer(items)

    def release_range(self, queue: bytes, reader: bytes, end_id: int) -> Call[RangeState]:
        mine = self._of_reader(queue, reader)
        mine.asked.append("release_range")
        mine.first_id = max(mine.first_id, end_id)
        return Answer(RangeState(mine.first_id, mine.next_id, mine.next_id))

    def get(self, queue: bytes, max_items: int, wait_ms: int = 0, hold_ms: int = 0) -> Call[list[OpenRead]]:
        mine = self._named(queue)
        mine.asked.append("get")
        assert hold_ms > 0
        reads = []
        while mine.waiting and len(reads) < max_items and len(self._opened & mine.open.keys()) < mine.max_open:
            mine.last_read += 1
            mine.open[mine.last_read] = mine.waiting.pop(0)
            self._opened.add(mine.last_read)
            reads.append(OpenRead(mine.open[mine.last_read], mine.last_read))
        return Answer(reads)

    def confirm(self, queue: bytes, ids: Collection[int]) -> Call[int]:
        mine = self._named(queue)
        mine.asked.append("confirm")
        return Answer(len([mine.open.pop(each) for each in ids if each in mine.open]))

    def abort(self, queue: bytes, ids: Collection[int]) -> Call[int]:
        mine = self._named(queue)
        mine.asked.append("abort")
        back = [mine.open.pop(each) for each in ids if each in mine.open]
        mine.waiting = back + mine.waiting
        return Answer(len(back))

    def peek(self, queue: bytes) -> Call[QueueInfo]:
        mine = self._named(queue)
        mine.asked.append("peek")
        return Answer(QueueInfo(None, len(mine.waiting), sum(map(len, mine.waiting))))


SET: Final = parse_server_set("zk://me:secret@zk1/services/kestrel")


def member(address: str) -> Member:
    """The address of a server that speaks thrift."""
    thrift = parse_address(address, 0)
    return Member(thrift._replace(port=22133), {"memcache": thrift._replace(port=22133), "thrift": thrift})


class Followed:
    """The members that ZooKeeper has reported, set by the test; None until it has."""

    def __init__(self) -> None:
        self.members: Members | None = None
        self.problem = "Connection refused"
        self.followers = 0
        self.changed: Callable[[object], None] = lambda members: None

    def follow(self, uri: ServerSetUri, changed: Callable[[object], None]) -> Followed:
        """Begin to follow the set."""
        assert uri == SET
        self.followers += 1
        self.changed = changed
        return self

    def close(self) -> None:
        """Stop following the set."""
        self.followers -= 1

    def reads(self, *addresses: str) -> None:
        """The servers for gets."""
        self.members = Members(tuple(map(member, addresses)), self.members.writes if self.members else ())
        self.changed(self.members)

    def writes(self, *addresses: str) -> None:
        """The servers for puts."""
        self.members = Members(self.members.reads if self.members else (), tuple(map(member, addresses)))
        self.changed(self.members)


class World:
    """All servers, and a clock."""

    def __init__(self, *addresses: str) -> None:
        self.queues = {address: Queue() for address in addresses}
        self.now_s = 0.0
        self.open_connections = 0
        self.set = Followed()
        self._name = f"world {len(_WORLDS)}"
        _WORLDS[self._name] = self

    def __getitem__(self, address: str) -> Queue:
        return self.queues[address]

    def put(self, address: str, *items: bytes, gap: int = 0) -> World:
        """Put items to one server, and return this world."""
        self.queues[address].put(*items, gap=gap)
        return self

    def seconds(self) -> float:
        """Return the time."""
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """Advance the time."""
        self.now_s += seconds

    def servers(self, *addresses: str) -> StreamServers:
        """Return the servers as an option names them."""
        return _FakeServers(addresses=addresses or tuple(self.queues), world=self._name)

    def server_set(self, *reads: str) -> StreamServers:
        """Return a source with a server set, in which these members are now."""
        self.set.reads(*reads)
        return _FakeServers(addresses=(), timeout_s=1e-6, server_set=SET, world=self._name)

    def connections(self, servers: StreamServers) -> ServerConnections:
        """Return the connections of a driver."""
        return ServerConnections(servers, seconds=self.seconds, random=Random(1))


_WORLDS: Final[dict[str, World]] = {}
"""Return the world of a reader that was pickled."""


WORK: Final = (QUEUE.decode(),)


def ranges(
    world: World, *addresses: str, in_set: bool = False, schema: StructType = ITEMS, **options: Any
) -> RangesReader:
    """Return a driver's reader of some servers or all, or of the set in which these are now."""
    servers = world.server_set(*addresses) if in_set else world.servers(*addresses)
    given: dict[str, Any] = {"queues": WORK, "max_items": 100, "reader": b"s", **options}
    return RangesReader(
        StreamOptions(servers, delivery=Delivery.EXACTLY_ONCE, **given), schema, world.connections(servers)
    )


def opens(
    world: World, *addresses: str, in_set: bool = False, schema: StructType = ITEMS, **options: Any
) -> OpenReadsReader:
    """Return a driver's reader with at-least-once delivery."""
    servers = world.server_set(*addresses) if in_set else world.servers(*addresses)
    given: dict[str, Any] = {"queues": WORK, "max_items": 100, "max_bytes": OPEN_BYTES, **options}
    parsed = StreamOptions(servers, delivery=Delivery.AT_LEAST_ONCE, **given)
    return OpenReadsReader(parsed, schema, world.connections(servers), lambda: None)


def numbered(first: int, count: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


class _FakeServer(RetryingServer):
    def __init__(self, address: str, world: World) -> None:
        super().__init__(address, seconds=world.seconds, sleep=world.sleep, random=Random(1))
        self._world = world
        self._queue = world[address]
        self._connection: _Calls | None = None

    def ask_once(self, make_call: Callable[[ThriftCalls], Call[T]]) -> T:
        self._queue.asked.append("")
        if self._queue.is_away:
            raise CannotConnect(f"{self}: away")
        self._queue.asked.pop()
        if self._connection is None:
            self._connection = _Calls(self._queue)
            self._world.open_connections += 1
        call = make_call(self._connection)
        assert isinstance(call, Answer)
        if self._queue.loses_answers:
            raise ConnectionFailed(f"{self}: the server closed the connection before it answered")
        value: T = call.value
        return value

    def close(self) -> None:
        if self._connection is not None:
            self._connection = None
            self._world.open_connections -= 1

    def __reduce__(self) -> str:
        raise TypeError("connections do not travel")


@dataclass(frozen=True, slots=True)
class _FakeServers(StreamServers):
    world: str = field(default="")

    def _directory(self, name: str) -> ServerDirectory:
        fixed = self.addresses if self.server_set is None else ()
        return ServerDirectory(self.server_set, name, 0, _WORLDS[self.world].set.follow, fixed=fixed)

    def open(self, address: str) -> RetryingServer:
        return _FakeServer(address, _WORLDS[self.world])
