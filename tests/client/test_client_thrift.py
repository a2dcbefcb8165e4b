"""What differs on thrift for the Twisted client, with servers in memory."""

from __future__ import annotations

import pytest
from twisted.internet.defer import Deferred

from kestrel.client.errors import OpenReadsError, RequestError, ServerError
from tests.client.memory_world import World, work_on


@pytest.fixture
def world() -> World:
    return World(protocol="thrift")


def test_items_are_put_and_taken_in_their_order(world: World) -> None:
    items = [b"%d" % number for number in range(1200)]
    assert world.run(world.client.put("work", b"first"))
    assert world.run(world.client.put_many("work", items)) == 1200
    assert world.run(world.client.peek("work")) == b"first"
    assert world.left() == [b"first", *items]


def test_an_item_that_is_held_for_too_long_goes_back_and_that_is_told(world: World) -> None:
    world.run(world.client.put("work", b"a"))
    done: Deferred[None] = Deferred()
    reading = world.begin(work_on(world.client, done, hold=3))
    world.advance(3)
    done.callback(None)
    world.settle()
    with pytest.raises(OpenReadsError):
        world.result(reading)
    assert world.left() == [b"a"]


def test_a_put_goes_elsewhere_when_a_server_refuses_it() -> None:
    world = World(2, "thrift")
    assert world.servers[0].connect().ask(b"status readonly\r\n") == b"END\r\n"
    assert world.run(world.client.put_many("work", [b"a", b"b"])) == 2
    assert world.servers[1].connect().ask(b"get work\r\n") == b"VALUE work 0 1\r\na\r\nEND\r\n"
    assert world.servers[1].connect().ask(b"status readonly\r\n") == b"END\r\n"
    with pytest.raises(ServerError):
        world.run(world.client.put("work", b"c"))


def test_servers_are_administered(world: World) -> None:
    world.run(world.client.put("work", b"a"))
    world.run(world.client.flush("work"))
    assert world.left() == []
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
    assert world.left() == []
