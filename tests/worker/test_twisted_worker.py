"""The worker for Twisted programs, with the real client and servers in memory."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from kestrel.worker import WorkerCounts
from kestrel.worker.twisted_worker import TwistedWorker
from tests.client.memory_world import World


class Working:
    """A running TwistedWorker of the queue `work` in a world."""

    def __init__(self, world: World, function: Callable[[bytes], object], **options: Any) -> None:
        self.world = world
        options = {"random": Random(1)} | options
        self.worker = TwistedWorker(world.network.clock, world.client, "work", function, **options)
        self.ended: Deferred[WorkerCounts] = world.begin(self.worker.run())

    def end(self) -> WorkerCounts:
        """Stop the worker, which must end at once, and return its counts."""
        self.worker.stop()
        self.world.settle()
        counts = self.world.result(self.ended)
        assert isinstance(counts, WorkerCounts)
        return counts


@pytest.fixture(params=["memcache", "thrift"])
def world(request: pytest.FixtureRequest) -> World:
    """A server in memory and a client."""
    return World(protocol=request.param)


def fail(_: bytes) -> None:
    """Raise an error."""
    raise LookupError("not today")


def test_items_are_handled_and_confirmed(world: World) -> None:
    world.put(b"a", b"b")
    handled: list[bytes] = []
    working = Working(world, handled.append)
    world.put(b"c")
    world.settle()
    assert handled == [b"a", b"b", b"c"]
    assert working.end() == WorkerCounts(done=3)
    assert world.left() == []


def test_concurrency_is_limited_and_stop_waits_for_calls(world: World) -> None:
    world.put(b"a", b"b", b"c")
    calls: dict[bytes, Deferred[None]] = {}

    def handle(item: bytes) -> Deferred[None]:
        calls[item] = Deferred()
        return calls[item]

    working = Working(world, handle, concurrency=2)
    assert sorted(calls) == [b"a", b"b"]
    working.worker.stop()
    world.settle()
    assert not working.ended.called
    for call in list(calls.values()):
        call.callback(None)
    world.settle()
    assert world.result(working.ended) == WorkerCounts(done=2)
    assert world.left() == [b"c"]


def test_a_stop_ends_the_wait_for_an_item(world: World) -> None:
    handled: list[bytes] = []
    working = Working(world, handled.append)
    assert working.end() == WorkerCounts()
    world.put(b"a")
    world.advance(2)
    assert handled == [] and world.left() == [b"a"]


def test_a_failed_call_is_repeated_after_a_pause(world: World) -> None:
    world.put(b"a")
    calls: list[bytes] = []

    async def handle(item: bytes) -> None:
        calls.append(item)
        if len(calls) < 3:
            fail(item)

    working = Working(world, handle, retry_pause_s=10.0)
    assert len(calls) == 1
    world.advance(4.9)
    assert len(calls) == 1
    world.advance(5.1)
    assert len(calls) == 2
    world.advance(20)
    assert working.end() == WorkerCounts(done=1, failed_calls=2)


def test_a_stop_ends_a_pause_and_returns_the_item(world: World) -> None:
    world.put(b"a")
    assert Working(world, fail, retry_pause_s=10.0).end() == WorkerCounts(returned=1, failed_calls=1)
    assert world.left() == [b"a"]


def test_an_item_that_always_fails_goes_to_the_error_queue(world: World) -> None:
    world.put(b"a")
    working = Working(world, fail, retries=1, error_queue="failed")
    world.advance(1)
    assert working.end() == WorkerCounts(moved=1, failed_calls=2)
    assert (world.left(), world.left("failed")) == ([], [b"a"])


def test_an_item_returns_if_the_error_queue_is_full(world: World) -> None:
    world.put(b"x", b"y", queue="small")
    world.put(b"a")
    assert Working(world, fail, retries=0, error_queue="small").end() == WorkerCounts(returned=1, failed_calls=1)
    assert world.left() == [b"a"]


def test_a_worker_goes_on_after_an_outage(world: World, caplog: pytest.LogCaptureFixture) -> None:
    handled: list[bytes] = []
    working = Working(world, handled.append)
    world.endpoint.is_away = True
    world.endpoint.disconnect()
    world.advance(30)
    world.endpoint.is_away = False
    world.advance(20)
    world.put(b"a")
    world.advance(2)
    assert handled == [b"a"]
    assert working.end() == WorkerCounts(done=1)
    began, ended = caplog.messages
    assert began.startswith("cannot take items: ") and ended == "takes items again"


def test_a_connection_that_ends_during_a_call(world: World) -> None:
    world.put(b"a")
    calls: list[Deferred[None]] = []

    def handle(_: bytes) -> Deferred[None]:
        calls.append(Deferred())
        return calls[-1]

    working = Working(world, handle)
    world.endpoint.disconnect()
    world.settle()
    calls[0].callback(None)
    world.advance(2)
    if world.protocol == "memcache":  # the item has returned, and is delivered again
        calls[1].callback(None)
        world.settle()
    assert working.end() == WorkerCounts(done=1, unconfirmed=len(calls) - 1)
    assert world.left() == []


def test_an_exception_that_ends_programs_ends_the_worker(world: World) -> None:
    world.put(b"a")

    def leave(_: bytes) -> None:
        raise SystemExit(3)

    working = Working(world, leave, concurrency=2)
    world.settle()
    with pytest.raises(SystemExit):
        world.result(working.ended)
    assert world.left() == [b"a"]
