"""Items through the Twisted client: reliable reads that are confirmed and aborted, monitors, errors."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing
from typing import Any, cast

import pytest
from twisted.internet.defer import CancelledError, Deferred, inlineCallbacks

from kestrel.client.client import Client
from kestrel.client.errors import CannotConnect, ConnectionFailed, OpenReadsError, RequestError
from kestrel.config.model import Config, QueueOverrides
from kestrel.errors import BadQueueName
from kestrel.testing.network import MemoryEndpoint, MemoryNetwork
from kestrel.testing.server import MemoryServer

CONFIG = Config(
    max_open_transactions=100,
    queues={
        b"small": QueueOverrides({"max_items": 2}),
        b"quick": QueueOverrides({"open_transaction_timeout_ms": 5000}),
    },
)


class World:
    """A server in memory, and a client of it."""

    def __init__(self, config: Config = CONFIG) -> None:
        self.network = MemoryNetwork()
        self.server = MemoryServer(clock=self.network.clock, config=config)
        self.endpoint: MemoryEndpoint = self.network.endpoint(self.server)
        self.client = Client(self.network.clock, self.endpoint)
        self.run, self.begin, self.result = self.network.run, self.network.begin, self.network.result
        self.advance, self.settle = self.network.advance, self.network.settle

    def put(self, *items: bytes, queue: str = "work") -> None:
        assert self.run(self.client.put_many(queue, items)) == len(items)

    def left(self, queue: str = "work") -> list[bytes]:
        """What another client takes now, to the last item."""
        other = Client(self.network.clock, self.endpoint)
        left = []
        while (data := self.run(other.get(queue))) is not None:
            left.append(data)
        self.run(other.close())
        return left


@pytest.fixture
def world() -> World:
    return World()


# Puts.


def test_a_put_says_whether_it_was_stored(world: World) -> None:
    assert [world.run(world.client.put("small", b"a")) for _ in range(3)] == [True, True, False]


def test_many_puts_say_how_many_were_stored(world: World) -> None:
    assert world.run(world.client.put_many("small", [b"a", b"b", b"c"])) == 2
    assert world.run(world.client.put_many("work", iter([b""] * 1500))) == 1500
    assert world.run(world.client.put_many("work", [])) == 0


def test_an_item_larger_than_the_transport_takes_at_once_goes_and_comes(world: World) -> None:
    data = bytes(range(256)) * 8192
    puts = [world.begin(world.client.put("work", data)) for _ in range(3)]
    assert all(world.result(put) for put in puts)
    assert world.left() == [data] * 3


def test_an_item_expires(world: World) -> None:
    assert world.run(world.client.put("work", b"a", expires_in=5))
    world.advance(6)
    assert world.run(world.client.get("work")) is None


@pytest.mark.parametrize("queue", [b"a b", "a\r\nflush_all", b"", "a/open"])
def test_a_name_that_cannot_be_is_never_sent(world: World, queue: Any) -> None:
    for work in (world.client.put(queue, b"a"), world.client.get(queue), world.client.flush(queue)):
        with pytest.raises(BadQueueName):
            world.run(work)
    assert world.endpoint.attempts == 0


def test_a_wrong_request_is_not_repeated(world: World) -> None:
    with pytest.raises(RequestError):
        world.run(world.client.put("work", b"a", expires_in=0))
    with pytest.raises(RequestError):
        world.run(world.client.set_status("sleepy"))


# Queues.


def test_peeking_takes_nothing_flushing_and_deleting_everything(world: World) -> None:
    world.put(b"a", b"b")
    assert [world.run(world.client.peek("work")) for _ in range(2)] == [b"a", b"a"]
    world.run(world.client.flush("work"))
    assert world.run(world.client.peek("work")) is None
    world.put(b"c")
    world.run(world.client.delete("work"))
    assert world.left() == []


# Reliable reads.


async def work_on(client: Client, what: Any = None, queue: str = "work", timeout: float = 0) -> bytes | None:
    """A reliable read; `what` is awaited or raised while it is open."""
    async with client.reliable_get(queue, timeout=timeout) as item:
        if isinstance(what, BaseException):
            raise what
        if what is not None:
            await what
    return item


def test_an_item_is_confirmed_at_the_end(world: World) -> None:
    world.put(b"a", b"b")
    done: Deferred[None] = Deferred()
    reading = world.begin(work_on(world.client, done))
    assert world.server.connect().ask(b"get work/peek\r\n") == b"VALUE work 0 1\r\nb\r\nEND\r\n"
    done.callback(None)
    world.settle()
    assert world.result(reading) == b"a"
    assert world.left() == [b"b"]


def test_an_exception_puts_the_item_back_at_the_head(world: World) -> None:
    world.put(b"a", b"b")
    with pytest.raises(LookupError, match="no such thing"):
        world.run(work_on(world.client, LookupError("no such thing")))
    assert world.left() == [b"a", b"b"]


def test_a_cancellation_puts_the_item_back_at_the_head(world: World) -> None:
    world.put(b"a", b"b")
    reading = world.begin(work_on(world.client, Deferred()))
    reading.cancel()
    world.settle()
    with pytest.raises(CancelledError):
        world.result(reading)
    assert world.left() == [b"a", b"b"]
    assert world.run(work_on(world.client)) is None  # and the connection is as good as before


@pytest.mark.parametrize("end", [KeyboardInterrupt(), GeneratorExit()])
def test_whatever_ends_the_coroutine_puts_the_item_back_at_the_head(world: World, end: BaseException) -> None:
    world.put(b"a", b"b")
    with pytest.raises(type(end)):
        world.run(work_on(world.client, end))
    world.settle()
    assert world.left() == [b"a", b"b"]


def test_a_coroutine_that_is_closed_puts_its_item_back(world: World) -> None:
    world.put(b"a", b"b")
    world.run(world.client.version())
    coroutine = work_on(world.client, Deferred())
    awaited = coroutine.send(None)
    world.settle()
    while awaited.called:
        awaited = coroutine.send(None)
        world.settle()
    coroutine.close()  # as the interpreter does when nobody refers to it any more
    world.settle()
    assert world.left() == [b"a", b"b"]


def test_where_there_is_no_item_the_body_is_told_when_the_time_is_up(world: World) -> None:
    assert world.run(work_on(world.client)) is None
    reading = world.begin(work_on(world.client, timeout=5))
    world.advance(4.75)
    assert not reading.called
    world.advance(0.25)
    assert world.result(reading) is None


def test_a_reliable_read_waits_for_an_item_and_cancelled_takes_none(world: World) -> None:
    reading = world.begin(work_on(world.client, timeout=5))
    cancelled = world.begin(work_on(world.client, timeout=5))
    cancelled.cancel()
    with pytest.raises(CancelledError):
        world.result(cancelled)
    world.settle()
    world.put(b"a", b"b")
    assert world.result(reading) == b"a"
    assert world.left() == [b"b"]


def test_a_read_that_is_cancelled_while_its_item_is_on_the_way_loses_nothing(world: World) -> None:
    world.put(b"a")
    world.run(work_on(world.client, queue="other"))
    [connection] = world.endpoint.connections[1:]  # beside the one that is shared
    reading = Deferred.fromCoroutine(work_on(world.client))
    connection.move()
    world.server.settle()
    assert connection.server_end.received.startswith(b"VALUE work 0 1\r\na")
    reading.cancel()
    with pytest.raises(CancelledError):
        world.result(reading)
    world.settle()
    assert world.left() == [b"a"]


def test_reads_that_are_open_at_the_same_time_are_confirmed_each_for_itself(world: World) -> None:
    world.put(b"a", b"b", b"c")
    ends: list[Deferred[None]] = [Deferred() for _ in range(3)]
    readings = [world.begin(work_on(world.client, end)) for end in ends]
    ends[2].callback(None)
    ends[1].errback(LookupError())
    ends[0].callback(None)
    world.settle()
    assert [world.result(readings[0]), world.result(readings[2])] == [b"a", b"c"]
    with pytest.raises(LookupError):
        world.result(readings[1])
    assert world.left() == [b"b"]


def test_a_read_that_was_open_for_too_long_says_so(world: World) -> None:
    world.put(b"a", queue="quick")
    done: Deferred[None] = Deferred()
    reading = world.begin(work_on(world.client, done, queue="quick"))
    world.advance(6)
    done.callback(None)
    world.settle()
    with pytest.raises(OpenReadsError):
        world.result(reading)
    assert world.left("quick") == [b"a"]


def test_a_read_whose_connection_ended_says_so_and_the_item_is_back(world: World) -> None:
    world.put(b"a")
    done: Deferred[None] = Deferred()
    reading = world.begin(work_on(world.client, done))
    world.endpoint.disconnect()
    world.settle()
    done.callback(None)
    world.settle()
    with pytest.raises(ConnectionFailed):
        world.result(reading)
    assert world.left() == [b"a"]


def test_an_exception_is_told_also_when_the_connection_has_ended(world: World) -> None:
    world.put(b"a")
    failed: Deferred[None] = Deferred()
    reading = world.begin(work_on(world.client, failed))
    world.endpoint.disconnect()
    world.settle()
    failed.errback(LookupError())
    with pytest.raises(LookupError):
        world.result(reading)


# Monitors.


async def collect(items: AsyncGenerator[bytes, None], into: list[bytes], most: int = 1000) -> None:
    """Take items until there are no more, or so many."""
    async with aclosing(items):
        async for data in items:
            into.append(data)
            if len(into) == most:
                return


def test_a_monitor_brings_items_as_they_come_and_confirms_them_at_its_end(world: World) -> None:
    got: list[bytes] = []
    monitoring = world.begin(collect(world.client.monitor("work", 10), got))
    for data in (b"a", b"b"):
        world.put(data)
        assert got[-1:] == [data]
    world.advance(10)
    world.result(monitoring)
    assert got == [b"a", b"b"]
    assert world.left() == []
    assert len(world.endpoint.connections) == 2  # the monitor's is kept


def test_a_monitor_brings_as_many_as_were_asked_for(world: World) -> None:
    world.put(b"a", b"b", b"c")
    got: list[bytes] = []
    world.run(collect(world.client.monitor("work", 10, 2), got))
    assert (got, world.left()) == ([b"a", b"b"], [b"c"])


def test_a_monitor_that_is_left_early_confirms_nothing(world: World) -> None:
    world.put(b"a", b"b", b"c")
    got: list[bytes] = []
    world.run(collect(world.client.monitor("work", 10), got, most=2))
    world.settle()
    assert (got, world.left()) == ([b"a", b"b"], [b"a", b"b", b"c"])


def test_a_monitor_that_is_cancelled_confirms_nothing(world: World) -> None:
    world.put(b"a")
    got: list[bytes] = []
    monitoring = world.begin(collect(world.client.monitor("work", 10), got))
    monitoring.cancel()
    with pytest.raises(CancelledError):
        world.result(monitoring)
    world.settle()
    assert (got, world.left()) == ([b"a"], [b"a"])


def test_a_loop_that_breaks_ends_the_monitor(world: World) -> None:
    world.put(b"a", b"b")

    async def first() -> bytes:
        async for data in world.client.monitor("work", 10):
            return data
        raise AssertionError("there was none")

    assert world.run(first()) == b"a"
    world.settle()
    assert world.left() == [b"a", b"b"]


def test_a_slow_consumer_leaves_items_with_the_server(world: World) -> None:
    large = b"x" * 100_000
    world.put(*[large] * 90)
    got: list[bytes] = []
    steps: list[Deferred[None]] = []

    async def consume() -> None:
        async for data in world.client.monitor("work", 1000):
            got.append(data)
            steps.append(Deferred())
            await steps[-1]

    consuming = world.begin(consume())
    [connection] = [each for each in world.endpoint.connections if not each.transport.is_listening]
    for _ in range(50):
        world.settle()
    held = len(connection.transport.unread) + cast(Any, connection.transport)._protocol._buffer.size
    assert len(got) == 1
    assert held < 4 * len(large)
    while len(got) < 90:
        steps[-1].callback(None)
        world.settle()
    steps[-1].callback(None)
    world.advance(1000)
    world.result(consuming)
    assert world.left() == []


def test_a_monitor_of_a_server_that_is_away_fails(world: World) -> None:
    world.endpoint.is_away = True
    with pytest.raises(CannotConnect):
        world.run(collect(world.client.monitor("work", 10), []))


# How it is used.


def test_its_coroutines_can_be_yielded_in_inline_callbacks(world: World) -> None:
    @inlineCallbacks
    def program() -> Generator[Any, Any, bytes]:
        stored = yield world.client.put("work", b"a")
        assert stored is True
        data: bytes = yield Deferred.fromCoroutine(world.client.get("work"))
        return data

    running = program()
    world.settle()
    assert world.result(running) == b"a"
