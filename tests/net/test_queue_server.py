"""The server but for its process: another configuration at any time, and a stop that is one for good."""

from __future__ import annotations

from pathlib import Path

import pytest
from twisted.internet.defer import Deferred

from kestrel.config.load import loads
from kestrel.testing.server import MemoryClient, MemoryServer
from tests.memcache_text import END, STORED, items, set_, value

EVERY_SECOND = "expirationTimerFrequency = '1s'\nclientTimeout = '10s'\n"
FANOUT_ONLY = "[[queues]]\nname = 'a'\nfanoutOnly = true\n"


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_configuration_that_comes_after_the_stop_began_changes_nothing(is_closed: bool, tmp_path: Path) -> None:
    old, new = loads(EVERY_SECOND + FANOUT_ONLY), loads(EVERY_SECOND)
    server = MemoryServer(config=old, folder=tmp_path / "queues")
    assert server.connect().ask(set_(b"a", b"gone")) == STORED
    stopped = server.core.hang_up()
    if is_closed:
        stopped.addCallback(lambda _: server.core.close())
    server.settle()
    assert stopped.called
    server.core.use(new)
    server.settle()
    assert server.clock.getDelayedCalls() == []
    assert [path.name for path in (tmp_path / "queues").iterdir()] == [".kestrel"], "no journal was made"
    assert server.core.config is old


def test_a_reload_that_was_under_way_at_the_stop_changes_nothing() -> None:
    server = MemoryServer(config=loads(EVERY_SECOND))
    read: Deferred[None] = Deferred()
    read.addCallback(lambda _: server.core.use(loads(EVERY_SECOND + "[default]\nmaxItems = 1")))
    server.control.reload = lambda: read
    client = server.connect()
    assert client.ask(b"reload\r\n") == b""
    client.disconnect()
    server.stop()
    server.settle()
    read.callback(None)
    server.settle()
    assert server.clock.getDelayedCalls() == []


def stop(server: MemoryServer) -> list[object]:
    """Stop in order; what the stop fired with."""
    stopped: list[object] = []
    server.stop().addCallback(stopped.append)
    server.settle()
    return stopped


def test_a_stop_answers_those_who_wait_and_hangs_up_on_everyone() -> None:
    server = MemoryServer(config=loads(EVERY_SECOND))
    waiter, idle, busy = server.connect(), server.connect(), server.connect()
    assert waiter.ask(b"get work/t=60000\r\n") == b""
    busy.send(set_(b"other", b"x") + b"get other\r\n")
    assert len(stop(server)) == 1
    assert (waiter.take(), idle.take(), busy.take()) == (END, b"", STORED + value(b"other", b"x"))
    assert all(client.is_closed for client in (waiter, idle, busy))
    assert server.clock.getDelayedCalls() == [], "nothing happens by itself any more"


def test_a_stop_waits_for_who_does_not_read_until_it_is_dropped(tmp_path: Path) -> None:
    server = MemoryServer(folder=tmp_path / "queues")
    client: MemoryClient = server.connect()
    assert client.ask(set_(b"work", b"x" * 1_000_000) + set_(b"held", b"one")) == STORED * 2
    client.reads = False
    client.send(b"get held/open\r\nget work\r\n")
    server.settle()
    stopped: list[object] = []
    server.stop().addCallback(stopped.append)
    server.settle()
    assert stopped == []
    server.core.abort()
    server.settle()
    assert len(stopped) == 1
    client = MemoryServer(folder=tmp_path / "queues").connect()
    assert items(client, b"held") == [b"one"], "what it had open is there"
