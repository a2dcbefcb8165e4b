"""The Twisted client on thrift, with servers in memory: the same, in other words."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred

from kestrel.client.client import Client
from kestrel.client.errors import OpenReadsError, RequestError, ServerError
from kestrel.config.model import Config, QueueOverrides
from kestrel.testing.network import MemoryNetwork
from kestrel.testing.server import MemoryServer

CONFIG = Config(max_open_transactions=100, queues={b"small": QueueOverrides({"max_items": 2})})


class World:
    """Servers in memory, and a client that speaks thrift with them."""

    def __init__(self, servers: int = 1) -> None:
        self.network = MemoryNetwork()
        self.servers = [MemoryServer(clock=self.network.clock, config=CONFIG) for _ in range(servers)]
        self.endpoints = [self.network.endpoint(server, "thrift") for server in self.servers]
        self.client = Client(self.network.clock, self.endpoints, "thrift")
        self.run, self.begin, self.result = self.network.run, self.network.begin, self.network.result
        self.advance, self.settle = self.network.advance, self.network.settle

    def take(self) -> bytes | None:
        return self.run(self.client.get("work"))


@pytest.fixture
def world() -> World:
    return World()


async def work_on(client: Client, what: Any = None, timeout: float = 0, hold: float = 60) -> bytes | None:
    """A reliable read; `what` is awaited or raised while it is open."""
    async with client.reliable_get("work", timeout=timeout, hold=hold) as item:
        if isinstance(what, BaseException):
            raise what
        if what is not None:
            await what
    return item


def test_items_are_put_and_taken_in_their_order(world: World) -> None:
    items = [b"%d" % number for number in range(1200)]
    assert world.run(world.client.put("work", b"first"))
    assert world.run(world.client.put_many("work", items)) == 1200
    assert world.run(world.client.peek("work")) == b"first"
    assert [world.take() for _ in range(1202)] == [b"first", *items, None]


def test_a_limit_refuses_items_one_by_one(world: World) -> None:
    assert world.run(world.client.put_many("small", [b"a", b"b", b"c", b"d"])) == 2
    assert not world.run(world.client.put("small", b"a"))


def test_a_get_waits_for_its_time(world: World) -> None:
    waiting = world.begin(world.client.get("work", timeout=5))
    world.advance(4.75)
    assert not waiting.called
    world.advance(0.25)
    assert world.result(waiting) is None


def test_reads_are_confirmed_and_aborted(world: World) -> None:
    world.run(world.client.put_many("work", [b"a", b"b"]))
    assert world.run(work_on(world.client)) == b"a"
    with pytest.raises(LookupError):
        world.run(work_on(world.client, LookupError()))
    with pytest.raises(KeyboardInterrupt):
        world.run(work_on(world.client, KeyboardInterrupt()))
    world.settle()
    assert [world.take(), world.take()] == [b"b", None]


def test_a_cancelled_read_is_aborted(world: World) -> None:
    world.run(world.client.put("work", b"a"))
    reading = world.begin(work_on(world.client, Deferred()))
    reading.cancel()
    world.settle()
    with pytest.raises(CancelledError):
        world.result(reading)
    assert world.take() == b"a"


def test_an_item_that_is_held_for_too_long_goes_back_and_that_is_told(world: World) -> None:
    world.run(world.client.put("work", b"a"))
    done: Deferred[None] = Deferred()
    reading = world.begin(work_on(world.client, done, hold=3))
    world.advance(3)
    done.callback(None)
    world.settle()
    with pytest.raises(OpenReadsError):
        world.result(reading)
    assert world.take() == b"a"


def test_a_put_goes_elsewhere_when_a_server_refuses_it() -> None:
    world = World(2)
    assert world.servers[0].connect().ask(b"status readonly\r\n") == b"END\r\n"
    assert world.run(world.client.put_many("work", [b"a", b"b"])) == 2
    assert world.servers[1].connect().ask(b"get work\r\n") == b"VALUE work 0 1\r\na\r\nEND\r\n"
    assert world.servers[1].connect().ask(b"status readonly\r\n") == b"END\r\n"
    with pytest.raises(ServerError):
        world.run(world.client.put("work", b"c"))


def test_servers_are_administered(world: World) -> None:
    world.run(world.client.put("work", b"a"))
    world.run(world.client.flush("work"))
    assert world.take() is None
    world.run(world.client.delete("work"))
    assert world.run(world.client.version()) == {"servers[0]": "1.2.3"}
    world.run(world.client.set_status("ReadOnly"))
    assert world.run(world.client.status()) == {"servers[0]": "ReadOnly"}


def test_what_thrift_has_no_words_for_is_a_wrong_request(world: World) -> None:
    async def monitor() -> None:
        async for _ in world.client.monitor("work", 5):
            raise AssertionError("it cannot")

    for work in (monitor(), world.client.stats(), world.client.dump_config()):
        with pytest.raises(RequestError, match="use the memcache protocol"):
            world.run(work)


def test_a_read_outlives_its_connection_and_is_confirmed_over_another(world: World) -> None:
    world.run(world.client.put("work", b"a"))
    done: Deferred[None] = Deferred()
    working = world.begin(work_on(world.client, done))
    world.settle()
    world.servers[0].core.abort()
    world.settle()
    done.callback(None)
    world.settle()
    assert world.result(working) == b"a"
    world.advance(61)
    assert world.take() is None
