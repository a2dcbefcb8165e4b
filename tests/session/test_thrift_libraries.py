"""Thrift clients of other projects with a server in memory: every call, and refusals."""

from __future__ import annotations

from typing import Any

import pytest

from kestrel.testing.server import MemoryServer
from tests.session.servers import serving
from tests.session.thrift_libraries import CLIENTS, REFUSALS, Connect, connector

WAIT_MS = 250


class Wire:
    """A connection to a server in memory. While no reply arrives the clock advances by `WAIT_MS`."""

    def __init__(self, server: MemoryServer) -> None:
        self._server = server
        self._client = server.connect("thrift")
        self._replies = b""

    def write(self, data: bytes) -> None:
        self._client.send(bytes(data))

    def flush(self) -> None:
        reply = self._client.take()
        if not reply:
            self._server.advance(WAIT_MS / 1000)
            reply = self._client.take()
        self._replies += reply

    def read(self, size: int) -> bytes:
        data, self._replies = self._replies[:size], self._replies[size:]
        return data


def figures(info: Any) -> tuple[Any, ...]:
    """Return the fields of a QueueInfo in the order of the IDL."""
    names = ("head_item", "items", "bytes", "journal_bytes", "age", "waiters", "open_transactions")
    return tuple(getattr(info, name) for name in names)


@pytest.fixture(params=CLIENTS)
def connect(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Connect:
    return connector(request.param, tmp_path_factory)


@pytest.mark.parametrize("is_strict", [True, False], ids=["strict", "loose"])
def test_client_library_can_make_every_call(connect: Connect, is_strict: bool) -> None:
    server = serving()
    client = connect(Wire(server), is_strict)
    assert client.put("wörk", [b"a", b"\x00\xff"], 5000) == 2
    assert client.put("work", [], 0) == 0
    first, second = client.get("wörk", 2, 0, 60_000)
    assert (first.data, second.data) == (b"a", b"\x00\xff")
    assert client.confirm("wörk", {first.id}) == 1
    assert client.abort("wörk", {second.id, -5}) == 1
    assert figures(client.peek("wörk")) == (b"\x00\xff", 1, 2, 0, 0, 0, 0)
    server.advance(5.001)
    assert figures(client.peek("wörk")) == (None, 0, 0, 0, 0, 0, 0), "its items have expired"
    assert client.get("work", -1, WAIT_MS, 0) == []
    assert server.clock.seconds() == 5.001 + WAIT_MS / 1000
    assert client.list_queues() == ["work", "wörk"]
    client.flush_queue("work")
    client.flush_all_queues()
    client.delete_queue("work")
    assert client.list_queues() == ["wörk"]
    client.set_status(2)
    assert client.current_status() == 2
    assert client.get_version() == "1.2.3"


@pytest.mark.parametrize("is_strict", [True, False], ids=["strict", "loose"])
def test_client_library_raises_refusal_and_continues(connect: Connect, is_strict: bool) -> None:
    client = connect(Wire(serving("maxRequestItemSize = 200\nmaxThriftListSize = 8")), is_strict)
    for call, message in [
        (lambda: client.put("work", [b"x" * 201], 0), "item too large; limit=200"),
        (lambda: client.put("work", [b""] * 9, 0), "too many items in one call; limit=8"),
        (lambda: client.set_status(0), "0 is no status that can be set"),
        (lambda: client.peek("a/b"), "a queue name cannot hold / ~ . white space or control characters"),
    ]:
        with pytest.raises(REFUSALS) as refused:
            call()
        assert (refused.value.type, refused.value.message) == (6, message)
