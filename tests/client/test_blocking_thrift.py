"""The blocking client on thrift."""

from __future__ import annotations

import socket
import threading
from contextlib import AbstractContextManager, nullcontext

import pytest

from kestrel.client.blocking import BlockingClient
from kestrel.client.errors import ConnectionFailed, OpenReadsError, RequestError
from kestrel.client.thrift import ThriftCalls
from kestrel.protocols import thrift_binary as binary
from tests.client.scripted import ScriptedServer, scripted, talk
from tests.server.running import PATIENCE_S

HELD = binary.list_field(0, binary.STRUCT, 1) + binary.binary_field(1, b"a") + binary.i64_field(2, 7) + binary.END
NOTHING = binary.list_field(0, binary.STRUCT, 0)


def make_client(server: ScriptedServer) -> BlockingClient:
    return BlockingClient(server.address, "thrift", timeout_s=PATIENCE_S)


@pytest.fixture
def calls() -> ThriftCalls:
    """Return calls that make the expected requests, with the same numbers as the client."""
    return ThriftCalls()


class Replies:
    """Encodes the replies of a server to the requests of one client, in order."""

    def __init__(self) -> None:
        self._number = 0

    def __call__(self, method: bytes, *result: bytes) -> bytes:
        self._number += 1
        return binary.frame(binary.header(method, binary.REPLY, self._number), *result, binary.END)

    def number(self, method: bytes, value: int) -> bytes:
        """Return a reply that is a number."""
        return self(method, binary.i32_field(0, value))


@pytest.fixture
def reply() -> Replies:
    return Replies()


def test_refused_items_of_a_batch_are_put_one_by_one(calls: ThriftCalls, reply: Replies) -> None:
    play = talk(
        (calls.put(b"work", [b"a", b"too large", b"c", b"d"]).request, reply.number(b"put", 1)),
        (calls.put(b"work", [b"too large"]).request, reply.number(b"put", 0)),
        (calls.put(b"work", [b"c"]).request, reply.number(b"put", 1)),
        (calls.put(b"work", [b"d"]).request, reply.number(b"put", 0)),
    )
    with scripted(play) as server, make_client(server) as client:
        assert client.put_many("work", [b"a", b"too large", b"c", b"d"]) == 2


def test_reliable_get_is_confirmed_by_its_id(calls: ThriftCalls, reply: Replies) -> None:
    play = talk(
        (calls.get(b"work", 1, 0, 60_000).request, reply(b"get", HELD)),
        (calls.confirm(b"work", [7]).request, reply.number(b"confirm", 1)),
        (calls.get(b"work", 1, 0, 5_000).request, reply(b"get", NOTHING)),
    )
    with scripted(play) as server, make_client(server) as client:
        with client.reliable_get("work") as item:
            assert item == b"a"
        with client.reliable_get("work", hold=5) as item:
            assert item is None


def test_item_held_too_long_raises_an_error(calls: ThriftCalls, reply: Replies) -> None:
    play = talk(
        (calls.get(b"work", 1, 0, 1).request, reply(b"get", HELD)),
        (calls.confirm(b"work", [7]).request, reply.number(b"confirm", 0)),
    )
    with (
        scripted(play) as server,
        make_client(server) as client,
        pytest.raises(OpenReadsError),
        client.reliable_get("work", hold=0),
    ):
        pass


def test_requests_about_queues_and_servers(calls: ThriftCalls, reply: Replies) -> None:
    play = talk(
        (calls.delete(b"work").request, reply(b"delete_queue")),
        (calls.set_status("Quiescent").request, reply(b"set_status")),
        (calls.status().request, reply.number(b"current_status", 1)),
        (calls.version().request, reply(b"get_version", binary.binary_field(0, b"1.0"))),
    )
    with scripted(play) as server, make_client(server) as client:
        client.delete("work")
        client.set_status("Quiescent")
        assert client.status() == {server.address: "Quiescent"}
        assert client.version() == {server.address: "1.0"}


def test_requests_that_thrift_lacks_are_request_errors() -> None:
    with BlockingClient("127.0.0.1", "thrift") as client:
        for ask in (client.stats, client.dump_config, lambda: next(client.monitor("work", 1))):
            with pytest.raises(RequestError, match="no such request"):
                ask()


def test_confirm_uses_another_connection_if_its_own_has_ended(calls: ThriftCalls, reply: Replies) -> None:
    gives = talk((calls.get(b"work", 1, 0, 60_000).request, reply(b"get", HELD)))
    calls.confirm(b"work", [7])  # not sent, because the connection has ended
    reply.number(b"confirm", 1)
    second = talk((calls.confirm(b"work", [7]).request, reply.number(b"confirm", 1)))
    has_hung_up = threading.Event()

    def first(connection: socket.socket) -> None:
        gives(connection)
        connection.close()
        has_hung_up.set()

    with scripted(first, second) as server, make_client(server) as client, client.reliable_get("work") as item:
        assert item == b"a"
        assert has_hung_up.wait(PATIENCE_S)


@pytest.mark.parametrize(
    ("confirmed", "result"), [(1, nullcontext()), (0, pytest.raises(ConnectionFailed))], ids=["is open", "is not open"]
)
def test_unanswered_confirm_is_repeated_and_may_fail(
    calls: ThriftCalls, reply: Replies, confirmed: int, result: AbstractContextManager[object]
) -> None:
    taken, held = calls.get(b"work", 1, 0, 60_000).request, reply(b"get", HELD)
    lost, again = calls.confirm(b"work", [7]).request, calls.confirm(b"work", [7]).request
    reply.number(b"confirm", 1)  # the lost reply
    first = talk((taken, held), (lost, b""))
    second = talk((again, reply.number(b"confirm", confirmed)))
    with scripted(first, second) as server, make_client(server) as client, result, client.reliable_get("work") as item:
        assert item == b"a"


def test_item_that_is_too_large_is_not_sent() -> None:
    with (
        BlockingClient("127.0.0.1", "thrift", max_item_bytes=3) as client,
        pytest.raises(RequestError, match="too large"),
    ):
        client.put("work", b"xxxx")
