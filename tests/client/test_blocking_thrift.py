"""The blocking client on thrift: the same, in other words."""

from __future__ import annotations

import socket
import threading

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
    """Makes the requests that the client should make, with the same numbers."""
    return ThriftCalls()


class Replies:
    """Makes the replies of a server to the requests of one client, in their order."""

    def __init__(self) -> None:
        self._number = 0

    def __call__(self, method: bytes, *result: bytes) -> bytes:
        self._number += 1
        return binary.frame(binary.header(method, binary.REPLY, self._number), *result, binary.END)

    def number(self, method: bytes, value: int) -> bytes:
        """A reply that is a number."""
        return self(method, binary.i32_field(0, value))


@pytest.fixture
def reply() -> Replies:
    return Replies()


def test_items_are_put_and_taken(calls: ThriftCalls, reply: Replies) -> None:
    play = talk(
        (calls.put(b"work", [b"a"], 1500).request, reply.number(b"put", 1)),
        (calls.put(b"work", [b"a"]).request, reply.number(b"put", 0)),
        (calls.peek(b"work").request, reply(b"peek", binary.struct_field(0), binary.binary_field(1, b"a"), binary.END)),
        (calls.get(b"work", 1, 500).request, reply(b"get", HELD)),
        (calls.get(b"work", 1).request, reply(b"get", NOTHING)),
    )
    with scripted(play) as server, make_client(server) as client:
        assert client.put("work", b"a", expires_in=1.5) is True
        assert client.put("work", b"a") is False
        assert client.peek("work") == b"a"
        assert client.get("work", timeout=0.5) == b"a"
        assert client.get("work") is None


def test_many_items_go_in_one_call(calls: ThriftCalls, reply: Replies) -> None:
    items = [b"a", b"b", b"c"]
    with (
        scripted(talk((calls.put(b"work", items).request, reply.number(b"put", 3)))) as server,
        make_client(server) as client,
    ):
        assert client.put_many("work", items) == 3


def test_items_that_did_not_go_in_with_others_are_tried_one_by_one(calls: ThriftCalls, reply: Replies) -> None:
    play = talk(
        (calls.put(b"work", [b"a", b"too large", b"c", b"d"]).request, reply.number(b"put", 1)),
        (calls.put(b"work", [b"too large"]).request, reply.number(b"put", 0)),
        (calls.put(b"work", [b"c"]).request, reply.number(b"put", 1)),
        (calls.put(b"work", [b"d"]).request, reply.number(b"put", 0)),
    )
    with scripted(play) as server, make_client(server) as client:
        assert client.put_many("work", [b"a", b"too large", b"c", b"d"]) == 2


def test_a_reliable_get_is_confirmed_by_its_number(calls: ThriftCalls, reply: Replies) -> None:
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


def test_an_item_that_was_held_for_too_long_is_told_at_the_end(calls: ThriftCalls, reply: Replies) -> None:
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


def test_what_is_asked_of_queues_and_servers(calls: ThriftCalls, reply: Replies) -> None:
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


def test_what_thrift_does_not_have_is_told() -> None:
    with BlockingClient("127.0.0.1", "thrift") as client:
        for ask in (client.stats, client.dump_config, lambda: next(client.monitor("work", 1))):
            with pytest.raises(RequestError, match="no such request"):
                ask()


def test_a_confirm_whose_connection_has_ended_meanwhile_is_made_on_another(calls: ThriftCalls, reply: Replies) -> None:
    gives = talk((calls.get(b"work", 1, 0, 60_000).request, reply(b"get", HELD)))
    second = talk((calls.confirm(b"work", [7]).request, reply.number(b"confirm", 1)))
    has_hung_up = threading.Event()

    def first(connection: socket.socket) -> None:
        gives(connection)
        connection.close()
        has_hung_up.set()

    with scripted(first, second) as server, make_client(server) as client, client.reliable_get("work") as item:
        assert item == b"a"
        assert has_hung_up.wait(PATIENCE_S)


def test_a_confirm_that_was_not_answered_is_tried_once_more(calls: ThriftCalls, reply: Replies) -> None:
    taken, held = calls.get(b"work", 1, 0, 60_000).request, reply(b"get", HELD)
    lost, again = calls.confirm(b"work", [7]).request, calls.confirm(b"work", [7]).request
    reply.number(b"confirm", 1)  # the one that is lost
    first = talk((taken, held), (lost, b""))
    second = talk((again, reply.number(b"confirm", 1)))
    with scripted(first, second) as server, make_client(server) as client, client.reliable_get("work") as item:
        assert item == b"a"


def test_whether_a_confirm_that_was_not_answered_was_done_is_not_known_by_asking_again(
    calls: ThriftCalls, reply: Replies
) -> None:
    taken, held = calls.get(b"work", 1, 0, 60_000).request, reply(b"get", HELD)
    lost, again = calls.confirm(b"work", [7]).request, calls.confirm(b"work", [7]).request
    reply.number(b"confirm", 1)  # the one that is lost
    first = talk((taken, held), (lost, b""))
    second = talk((again, reply.number(b"confirm", 0)))
    with (
        scripted(first, second) as server,
        make_client(server) as client,
        pytest.raises(ConnectionFailed),
        client.reliable_get("work"),
    ):
        pass


def test_an_item_that_is_too_large_goes_to_no_server() -> None:
    with (
        BlockingClient("127.0.0.1", "thrift", max_item_bytes=3) as client,
        pytest.raises(RequestError, match="too large"),
    ):
        client.put("work", b"xxxx")
