"""The Twisted client on thrift, with servers in memory: differences from memcache."""

from __future__ import annotations

import pytest
from twisted.internet.defer import Deferred

from kestrel.client.errors import OpenReadsError, ServerError
from tests.client.memory_world import World, work_on


@pytest.fixture
def world() -> World:
    return World(protocol="thrift")


def test_item_held_too_long_returns_to_its_queue(world: World) -> None:
    world.run(world.client.put("work", b"a"))
    done: Deferred[None] = Deferred()
    reading = world.begin(work_on(world.client, done, hold=3))
    world.advance(3)
    done.callback(None)
    world.settle()
    with pytest.raises(OpenReadsError):
        world.result(reading)
    assert world.left() == [b"a"]


def test_refused_put_goes_to_another_server() -> None:
    world = World(2, "thrift")
    assert world.servers[0].connect().ask(b"status readonly\r\n") == b"END\r\n"
    assert world.run(world.client.put_many("work", [b"a", b"b"])) == 2
    assert world.servers[1].connect().ask(b"get work\r\n") == b"VALUE work 0 1\r\na\r\nEND\r\n"
    assert world.servers[1].connect().ask(b"status readonly\r\n") == b"END\r\n"
    with pytest.raises(ServerError):
        world.run(world.client.put("work", b"c"))


def test_version_and_status_are_returned(world: World) -> None:
    assert world.run(world.client.version()) == {"servers[0]": "1.2.3"}
    world.run(world.client.set_status("ReadOnly"))
    assert world.run(world.client.status()) == {"servers[0]": "ReadOnly"}


def test_read_is_confirmed_on_another_connection(world: World) -> None:
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
