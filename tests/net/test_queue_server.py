"""Reloads and stops of a server without its process."""

from __future__ import annotations

from pathlib import Path

import pytest
from twisted.internet.defer import Deferred

from kestrel.config.load import loads
from kestrel.testing.server import MemoryClient, MemoryServer
from tests.memcache_text import STORED, items, set_

EVERY_SECOND = "expirationTimerFrequency = '1s'\nclientTimeout = '10s'\n"
FANOUT_ONLY = "[[queues]]\nname = 'a'\nfanoutOnly = true\n"


@pytest.mark.parametrize("is_closed", [True, False])
def test_reload_after_the_stop_has_no_effect(is_closed: bool, tmp_path: Path) -> None:
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
    assert [path.name for path in (tmp_path / "queues").iterdir()] == [".kestrel"], "no journal was created"
    assert server.core.config is old


def test_reload_in_progress_at_the_stop_has_no_effect() -> None:
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


def test_stop_waits_for_unread_replies_until_the_client_is_dropped(tmp_path: Path) -> None:
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
    assert items(client, b"held") == [b"one"], "its open read has returned"
