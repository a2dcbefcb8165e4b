"""Items through the Twisted client: reliable reads that are confirmed and aborted, monitors, errors."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, cast

import pytest
from twisted.internet.defer import CancelledError, Deferred

from kestrel.client.errors import CannotConnect, ConnectionFailed, OpenReadsError, RequestError
from kestrel.errors import BadQueueName
from tests.client.memory_world import World, work_on


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture(params=["memcache", "thrift"])
def either(request: pytest.FixtureRequest) -> World:
    """A world for each protocol."""
    return World(protocol=request.param)


# Puts.


def test_put_returns_whether_the_item_was_stored(either: World) -> None:
    assert [either.run(either.client.put("small", b"a")) for _ in range(3)] == [True, True, False]


def test_put_many_returns_the_number_of_stored_items(either: World) -> None:
    assert either.run(either.client.put_many("small", [b"a", b"b", b"c"])) == 2
    items = [b"%d" % number for number in range(1200)]
    assert either.run(either.client.put_many("work", iter(items))) == 1200
    assert either.left() == items
    assert either.run(either.client.put_many("work", [])) == 0


def test_large_items_are_stored_and_returned(either: World) -> None:
    data = bytes(range(256)) * 8192
    puts = [either.begin(either.client.put("work", data)) for _ in range(3)]
    assert all(either.result(put) for put in puts)
    assert either.left() == [data] * 3


@pytest.mark.parametrize("queue", [b"a b", "a\r\nflush_all", b"", "a/open"])
def test_invalid_queue_name_is_not_sent(either: World, queue: Any) -> None:
    for work in (either.client.put(queue, b"a"), either.client.get(queue), either.client.flush(queue)):
        with pytest.raises(BadQueueName):
            either.run(work)
    assert either.endpoint.attempts == 0


def test_invalid_request_is_not_repeated(either: World) -> None:
    with pytest.raises(RequestError):
        either.run(either.client.put("work", b"a", expires_in=0))
    with pytest.raises(RequestError):
        either.run(either.client.set_status("sleepy"))


# Queues.


def test_peek_keeps_items_flush_and_delete_remove_them(either: World) -> None:
    either.put(b"a", b"b")
    assert [either.run(either.client.peek("work")) for _ in range(2)] == [b"a", b"a"]
    either.run(either.client.flush("work"))
    assert either.run(either.client.peek("work")) is None
    either.put(b"c")
    either.run(either.client.delete("work"))
    assert either.left() == []


# Reliable reads.


def test_cancellation_puts_the_item_back_at_the_head(either: World) -> None:
    either.put(b"a", b"b")
    reading = either.begin(work_on(either.client, Deferred()))
    reading.cancel()
    either.settle()
    with pytest.raises(CancelledError):
        either.result(reading)
    assert either.left() == [b"a", b"b"]
    assert either.run(work_on(either.client)) is None  # the connection still works


@pytest.mark.parametrize("end", [LookupError(), KeyboardInterrupt(), GeneratorExit()])
def test_exception_puts_the_item_back_at_the_head(either: World, end: BaseException) -> None:
    either.put(b"a", b"b")
    with pytest.raises(type(end)):
        either.run(work_on(either.client, end))
    either.settle()
    assert either.left() == [b"a", b"b"]


def test_closed_coroutine_puts_its_item_back(either: World) -> None:
    either.put(b"a", b"b")
    either.run(either.client.version())
    coroutine = work_on(either.client, Deferred())
    awaited = coroutine.send(None)
    either.settle()
    while awaited.called:
        awaited = coroutine.send(None)
        either.settle()
    coroutine.close()  # as the interpreter does without references to it
    either.settle()
    assert either.left() == [b"a", b"b"]


def test_reliable_get_returns_none_at_its_timeout(either: World) -> None:
    assert either.run(work_on(either.client)) is None
    reading = either.begin(work_on(either.client, timeout=5))
    either.advance(4.75)
    assert not reading.called
    either.advance(0.25)
    assert either.result(reading) is None


def test_reliable_get_waits_and_takes_nothing_if_cancelled(either: World) -> None:
    reading = either.begin(work_on(either.client, timeout=5))
    cancelled = either.begin(work_on(either.client, timeout=5))
    cancelled.cancel()
    with pytest.raises(CancelledError):
        either.result(cancelled)
    either.settle()
    either.put(b"a", b"b")
    assert either.result(reading) == b"a"
    assert either.left() == [b"b"]


def test_cancelled_read_returns_an_item_in_transit(world: World) -> None:
    world.put(b"a")
    world.run(work_on(world.client, queue="other"))
    [connection] = world.endpoint.connections[1:]  # beside the one that is shared
    reading = Deferred.fromCoroutine(work_on(world.client))
    connection.move()
    world.server.settle()
    assert connection.server_end.received.startswith(b"VALUE work/open 0 1\r\na")
    reading.cancel()
    with pytest.raises(CancelledError):
        world.result(reading)
    world.settle()
    assert world.left() == [b"a"]


def test_concurrent_reads_end_independently(either: World) -> None:
    either.put(b"a", b"b", b"c")
    ends: list[Deferred[None]] = [Deferred() for _ in range(3)]
    readings = [either.begin(work_on(either.client, end)) for end in ends]
    ends[2].callback(None)
    ends[1].errback(LookupError())
    ends[0].callback(None)
    either.settle()
    assert [either.result(readings[0]), either.result(readings[2])] == [b"a", b"c"]
    with pytest.raises(LookupError):
        either.result(readings[1])
    assert either.left() == [b"b"]


def test_expired_read_raises_an_error_at_its_end(world: World) -> None:
    world.put(b"a", queue="quick")
    done: Deferred[None] = Deferred()
    reading = world.begin(work_on(world.client, done, queue="quick"))
    world.advance(6)
    done.callback(None)
    world.settle()
    with pytest.raises(OpenReadsError):
        world.result(reading)
    assert world.left("quick") == [b"a"]


def test_lost_connection_fails_the_read_and_returns_its_item(world: World) -> None:
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


def test_exception_in_the_body_is_raised_despite_a_lost_connection(world: World) -> None:
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
    """Append items to a list, at most `most`."""
    async with aclosing(items):
        async for data in items:
            into.append(data)
            if len(into) == most:
                return


def test_monitor_returns_items_as_they_arrive_and_confirms_them(world: World) -> None:
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


@pytest.mark.parametrize(
    ("max_items", "most", "left"), [(2, 1000, [b"c"]), (None, 2, [b"a", b"b", b"c"])], ids=["ends", "is left early"]
)
def test_monitor_confirms_its_items_only_at_its_end(
    world: World, max_items: int | None, most: int, left: list[bytes]
) -> None:
    world.put(b"a", b"b", b"c")
    got: list[bytes] = []
    world.run(collect(world.client.monitor("work", 10, max_items), got, most))
    world.settle()
    assert (got, world.left()) == ([b"a", b"b"], left)


def test_cancelled_monitor_confirms_nothing(world: World) -> None:
    world.put(b"a")
    got: list[bytes] = []
    monitoring = world.begin(collect(world.client.monitor("work", 10), got))
    monitoring.cancel()
    with pytest.raises(CancelledError):
        world.result(monitoring)
    world.settle()
    assert (got, world.left()) == ([b"a"], [b"a"])


def test_slow_consumer_leaves_items_with_the_server(world: World) -> None:
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


def test_monitor_of_an_unreachable_server_fails(world: World) -> None:
    world.endpoint.is_away = True
    with pytest.raises(CannotConnect):
        world.run(collect(world.client.monitor("work", 10), []))
