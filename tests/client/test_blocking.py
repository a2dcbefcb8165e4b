"""The blocking client, with real servers and with servers that do what no server should."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from kestrel.client.backoff import MAX_BACKOFF_S
from kestrel.client.blocking import BlockingClient
from kestrel.client.errors import (
    BadReply,
    CannotConnect,
    ConnectionFailed,
    OpenReadsError,
    RequestError,
    ServerError,
)
from kestrel.client.put_batch import BATCH_BYTES, BATCH_ITEMS
from kestrel.errors import BadQueueName
from tests.client.scripted import Connection, reset, scripted, talk, talk_and_stay
from tests.server.running import PATIENCE_S, Processes, Server, eventually, own_port

CONFIG = 'queuePath = "queues"\nmaxOpenTransactions = 100\n[[queues]]\nname = "small"\nmaxItems = 2\n'

PUT = b"set work 0 0 1\r\na\r\n"
GET = b"get work\r\n"
STORED = b"STORED\r\n"
END = b"END\r\n"
ITEM = b"VALUE work 0 1\r\na\r\nEND\r\n"
READ_ONLY = b"SERVER_ERROR the server is ReadOnly\r\n"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    with Processes(tmp_path_factory.mktemp("one")) as one, Processes(tmp_path_factory.mktemp("two")) as two:
        started = [one.start(CONFIG), two.start(CONFIG)]
        yield [server.serves() for server in started]


@pytest.fixture
def addresses(servers: list[Server]) -> list[str]:
    return [f"127.0.0.1:{server.port}" for server in servers]


@pytest.fixture
def client(addresses: list[str]) -> Iterator[BlockingClient]:
    """A client of one server, which has nothing in it."""
    with make_client(addresses[0]) as client:
        for queue in ("work", "small", "other"):
            client.delete(queue)
        yield client


@pytest.fixture
def both(addresses: list[str]) -> Iterator[BlockingClient]:
    """A client of two servers that have nothing in them."""
    with make_client(*addresses) as client:
        client.delete("work")
        yield client


class FirstOfAll(Random):
    """Chance that always chooses the first."""

    def choice(self, seq: Any) -> Any:
        return seq[0]


def make_client(*servers: str, timeout_s: float = PATIENCE_S, repeats: bool = False) -> BlockingClient:
    """A client that asks the servers in their order. No time goes by: one that failed is left alone for ever."""
    return BlockingClient(servers, timeout_s=timeout_s, repeats=repeats, random=FirstOfAll(), seconds=lambda: 0.0)


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address where nothing listens."""
    with own_port() as port:
        yield f"127.0.0.1:{port}"


# One server.


def test_items_are_taken_in_the_order_in_which_they_were_put(client: BlockingClient) -> None:
    assert client.put("work", b"a") and client.put(b"work", b"\r\nEND\r\n", expires_in=30)
    assert client.peek("work") == b"a"
    assert [client.get("work"), client.get("work"), client.get("work")] == [b"a", b"\r\nEND\r\n", None]


def test_a_limit_of_the_queue_is_no_error(client: BlockingClient) -> None:
    assert [client.put("small", b"x") for _ in range(3)] == [True, True, False]
    client.flush("small")
    assert client.put_many("small", [b"x"] * 5) == 2


def test_many_items_are_put_in_their_order(client: BlockingClient) -> None:
    items = [b"%d" % number for number in range(2 * BATCH_ITEMS + 1)] + [b"x" * BATCH_BYTES, b"", b"y" * BATCH_BYTES]
    assert client.put_many("work", iter(items)) == len(items)
    assert [client.get("work") for _ in items] == items
    assert client.put_many("work", []) == 0


def test_a_reliable_get_confirms_the_item_when_all_went_well(client: BlockingClient) -> None:
    client.put("work", b"a")
    with client.reliable_get("work") as item:
        assert item == b"a"
        assert client.get("work") is None
    client.close()
    assert client.get("work") is None


def test_an_exception_puts_the_item_back_at_the_head(client: BlockingClient) -> None:
    client.put_many("work", [b"a", b"b"])
    with pytest.raises(ZeroDivisionError), client.reliable_get("work") as item:
        assert item == b"a"
        raise ZeroDivisionError
    assert [client.get("work"), client.get("work")] == [b"a", b"b"]


def test_reliable_gets_within_each_other_finish_their_own_items(client: BlockingClient) -> None:
    client.put_many("work", [b"a", b"b"])
    with client.reliable_get("work") as first, pytest.raises(ZeroDivisionError), client.reliable_get("work") as second:
        assert (first, second) == (b"a", b"b")
        raise ZeroDivisionError
    assert [client.get("work"), client.get("work")] == [b"b", None]


def test_a_reliable_get_of_nothing_gives_none(client: BlockingClient) -> None:
    with client.reliable_get("work", timeout=0.02) as item:
        assert item is None


def test_an_open_read_that_ended_unasked_is_told_at_the_end(client: BlockingClient) -> None:
    client.put("work", b"a")
    with pytest.raises(OpenReadsError), client.reliable_get("work"):
        client.delete("work")


def test_a_get_waits_for_an_item(client: BlockingClient, servers: list[Server]) -> None:
    with servers[0].connect() as other:
        other.send(b"get other/t=%d\r\n" % (PATIENCE_S * 1000))
        eventually(lambda: client.stats()[f"127.0.0.1:{servers[0].port}"].get("queue_other_waiters") == "1", "it waits")
        client.put("other", b"a")
        other.expect(b"VALUE other 0 1\r\na\r\nEND\r\n")
    client.put("work", b"b")
    assert client.get("work", timeout=PATIENCE_S) == b"b"


def test_a_monitor_gives_items_and_confirms_them_at_its_end(client: BlockingClient) -> None:
    client.put_many("work", [b"a", b"b", b"c"])
    assert list(client.monitor("work", 10, 2)) == [b"a", b"b"]
    client.close()
    assert [client.get("work"), client.get("work")] == [b"c", None]


def test_a_monitor_that_is_left_early_puts_all_its_items_back(client: BlockingClient) -> None:
    client.put_many("work", [b"a", b"b", b"c"])
    for item in client.monitor("work", 10, 3):
        if item == b"b":
            break
    assert client.get("work", timeout=PATIENCE_S) == b"a"


def test_what_is_asked_of_queues_and_servers(client: BlockingClient, addresses: list[str]) -> None:
    address = addresses[0]
    client.put("work", b"a")
    client.flush("work")
    assert client.stats()[address]["queue_work_items"] == "0"
    assert client.dump_config("small", b"none")[address][b"small"]["maxItems"] == "2"
    assert set(client.version()) == set(client.status()) == {address}
    client.set_status("ReadOnly")
    assert client.status() == {address: "ReadOnly"}
    client.set_status("Up")
    assert client.status() == {address: "Up"}


def test_a_name_that_cannot_be_is_told_before_anybody_is_asked(nobody: str) -> None:
    client = make_client(nobody)
    with pytest.raises(BadQueueName):
        client.put("a b", b"x")
    with pytest.raises(BadQueueName):
        client.put_many("a b", [b"x"])
    with pytest.raises(BadQueueName):
        client.get("a\r\nflush_all")


def test_what_makes_no_sense_is_told_before_anybody_is_asked(nobody: str) -> None:
    for expires_in in (0, -1, 1_000_000):
        with pytest.raises(RequestError, match=r"expire|expiry"):
            make_client(nobody).put("work", b"x", expires_in=expires_in)
    with pytest.raises(ValueError, match="unknown protocol"):
        BlockingClient(nobody, "text")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one server"):
        BlockingClient([])


def test_an_expiry_of_part_of_a_second_is_rounded_up() -> None:
    request = b"set work 0 2 1\r\na\r\n"
    with scripted(talk((request, STORED))) as server, make_client(server.address) as client:
        assert client.put("work", b"a", expires_in=1.001)


# Connections.


def test_a_connection_is_kept_from_one_request_to_the_next() -> None:
    with (
        scripted(talk_and_stay((PUT, STORED), (GET, ITEM), (GET, END))) as server,
        make_client(server.address) as client,
    ):
        assert (client.put("work", b"a"), client.get("work"), client.get("work")) == (True, b"a", None)


def test_a_kept_connection_that_has_ended_meanwhile_is_made_anew() -> None:
    with scripted(talk((PUT, STORED)), talk((PUT, STORED))) as server, make_client(server.address) as client:
        assert client.put("work", b"a")
        wait_for_the_end(client)
        assert client.put("work", b"a")


def wait_for_the_end(client: BlockingClient) -> None:
    """Return when the server has hung up on the one kept connection; nothing is taken from it."""
    [[connection]] = client._pool._idle.values()
    connection._socket.settimeout(PATIENCE_S)
    assert connection._socket.recv(1, socket.MSG_PEEK) == b""


def test_a_connection_on_which_something_came_unasked_is_not_used_again() -> None:
    with (
        scripted(talk_and_stay((PUT, STORED + b"?")), talk((PUT, STORED))) as server,
        make_client(server.address) as client,
    ):
        assert client.put("work", b"a") and client.put("work", b"a")


def test_a_connection_is_not_used_again_after_a_refusal() -> None:
    with scripted(talk((GET, b"ERROR\r\n")), talk((GET, ITEM))) as server, make_client(server.address) as client:
        with pytest.raises(OpenReadsError):
            client.get("work")
        assert client.get("work") == b"a"


def test_a_closed_client_can_be_used_again() -> None:
    with scripted(talk_and_stay((GET, ITEM)), talk((GET, ITEM))) as server:
        client = make_client(server.address)
        assert client.get("work") == b"a"
        client.close()
        assert client.get("work") == b"a"
        client.close()


def test_a_server_that_is_not_there_is_told(nobody: str) -> None:
    for address in (nobody, "two..dots:1"):
        with make_client(address) as client, pytest.raises(CannotConnect, match=address):
            client.get("work")


def test_a_reply_that_never_comes_is_a_failed_connection() -> None:
    for play in (talk_and_stay((GET, b"")), talk_and_stay((GET, b"VALUE work 0 1\r\n"))):
        with (
            scripted(play) as server,
            make_client(server.address, timeout_s=0.05) as client,
            pytest.raises(ConnectionFailed, match="timed out"),
        ):
            client.get("work")


def test_a_server_that_does_not_read_has_not_had_the_request() -> None:
    is_over = b"the client has given up"

    def play(connection: socket.socket) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        assert waiting.recv(len(is_over)) == is_over

    waiting, telling = socket.socketpair()
    waiting.settimeout(PATIENCE_S)
    with waiting, telling, scripted(play) as server, make_client(server.address, timeout_s=0.05) as client:
        with pytest.raises(CannotConnect):
            client.put("work", b"x" * (15 << 20))
        telling.sendall(is_over)


@pytest.mark.parametrize(
    "reply", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\0\r\n", b"VALUE other 0 1\r\na\r\nEND\r\n"]
)
def test_garbage_is_a_bad_reply_and_ends_the_connection(reply: bytes) -> None:
    with scripted(talk_and_stay((GET, reply)), talk((GET, ITEM))) as server, make_client(server.address) as client:
        with pytest.raises(BadReply):
            client.get("work")
        assert client.get("work") == b"a"


# Puts, and what may be put again.


def test_a_put_that_was_refused_goes_to_another_server() -> None:
    with (
        scripted(talk((PUT, READ_ONLY))) as one,
        scripted(talk_and_stay((PUT, STORED), (PUT, STORED))) as two,
        make_client(one.address, two.address) as client,
    ):
        assert client.put("work", b"a")
        assert client.put("work", b"a")  # the first one is left alone


def test_a_put_that_all_servers_refuse_has_the_reason_of_the_last() -> None:
    with (
        scripted(talk((PUT, READ_ONLY))) as one,
        scripted(talk((PUT, b"SERVER_ERROR disk full\r\n"))) as two,
        make_client(one.address, two.address) as client,
        pytest.raises(ServerError, match="disk full"),
    ):
        client.put("work", b"a")


def test_a_put_that_is_wrong_goes_nowhere_else(nobody: str) -> None:
    with (
        scripted(talk((PUT, b"CLIENT_ERROR item too large\r\n"))) as server,
        make_client(server.address, nobody) as client,
        pytest.raises(RequestError, match="too large"),
    ):
        client.put("work", b"a")


def test_gets_go_on_from_a_server_that_refuses_puts() -> None:
    with (
        scripted(talk((PUT, READ_ONLY)), talk((GET, ITEM))) as one,
        scripted(talk((PUT, STORED))) as two,
        make_client(one.address, two.address) as client,
    ):
        assert client.put("work", b"a")
        assert client.get("work") == b"a"


def test_a_server_that_is_not_there_is_left_for_another(
    nobody: str, addresses: list[str], both: BlockingClient
) -> None:
    with make_client(nobody, addresses[0]) as client:
        assert client.put("work", b"a")
        assert client.put_many("work", [b"b"] * 20) == 20
        assert client.peek("work") == b"a"
        with client.reliable_get("work") as item:
            assert item == b"a"
        assert client.get("work") == b"b"


@pytest.mark.parametrize("end", [talk, reset])
def test_a_put_whose_connection_ended_before_the_reply_is_not_put_again(
    end: Callable[..., Connection], nobody: str
) -> None:
    for put in PUTS:
        with scripted(end((PUT, b""))) as server, make_client(server.address, nobody) as client:
            with pytest.raises(ConnectionFailed) as raised:
                put(client)
            assert type(raised.value) is ConnectionFailed


def test_a_put_is_put_again_where_an_item_may_come_twice() -> None:
    for put in PUTS:
        with (
            scripted(talk((PUT, b""))) as one,
            scripted(talk((PUT, STORED))) as two,
            make_client(one.address, two.address, repeats=True) as client,
        ):
            assert put(client) == 1


PUTS: list[Callable[[BlockingClient], int]] = [
    lambda client: client.put("work", b"a"),
    lambda client: client.put_many("work", [b"a"]),
]


def test_a_server_that_says_why_it_hangs_up_on_a_large_item_is_heard(processes: Processes) -> None:
    server = processes.serve('queuePath = "queues"\nmaxRequestItemSize = 10\n')
    with make_client(f"127.0.0.1:{server.port}") as client, pytest.raises(RequestError, match="item too large"):
        client.put("work", b"x" * (10 << 20))


def sets(*items: bytes) -> bytes:
    return b"".join(b"set work 0 0 %d\r\n%b\r\n" % (len(item), item) for item in items)


def test_items_behind_a_refusal_with_which_the_server_hung_up_go_elsewhere() -> None:
    one = scripted(talk((sets(b"a", b"b", b"c", b"d"), STORED + READ_ONLY)))
    two = scripted(talk((sets(b"b", b"c", b"d"), STORED * 3)))
    with one as first, two as second, make_client(first.address, second.address) as client:
        assert client.put_many("work", [b"a", b"b", b"c", b"d"]) == 4


def test_only_the_refused_items_go_elsewhere_where_the_server_stays() -> None:
    one = scripted(talk((sets(b"a", b"b", b"c"), STORED + b"SERVER_ERROR disk full\r\n" + STORED)))
    two = scripted(talk((sets(b"b"), b"NOT_STORED\r\n")))
    with one as first, two as second, make_client(first.address, second.address) as client:
        assert client.put_many("work", [b"a", b"b", b"c"]) == 2


def test_a_connection_is_not_used_again_after_a_refusal_among_many_answers() -> None:
    one = scripted(talk_and_stay((sets(b"a", b"b"), STORED + READ_ONLY)), talk((GET, ITEM)))
    two = scripted(talk((sets(b"b"), STORED)))
    with one as first, two as second, make_client(first.address, second.address) as client:
        assert client.put_many("work", [b"a", b"b"]) == 2
        assert client.get("work") == b"a"


def test_items_whose_replies_are_missing_are_not_put_again(nobody: str) -> None:
    with (
        scripted(talk((sets(b"a", b"b"), STORED))) as server,
        make_client(server.address, nobody) as client,
        pytest.raises(ConnectionFailed),
    ):
        client.put_many("work", [b"a", b"b"])


def test_a_wrong_item_ends_a_put_of_many(nobody: str) -> None:
    reply = STORED + b"CLIENT_ERROR item too large\r\n"
    with (
        scripted(talk((sets(b"a", b"b", b"c"), reply))) as server,
        make_client(server.address, nobody) as client,
        pytest.raises(RequestError, match="too large"),
    ):
        client.put_many("work", [b"a", b"b", b"c"])


BEHIND_A_REFUSAL: dict[str, Connection] = {
    "silence": talk_and_stay((sets(b"a", b"b"), READ_ONLY)),
    "garbage": talk_and_stay((sets(b"a", b"b"), READ_ONLY + b"WHAT?\r\n")),
    "half a reply": talk((sets(b"a", b"b"), READ_ONLY + b"STOR")),
}


@pytest.mark.parametrize("play", BEHIND_A_REFUSAL.values(), ids=list(BEHIND_A_REFUSAL))
def test_items_behind_a_refusal_are_not_put_again_unless_the_server_hung_up_with_it(
    play: Connection, nobody: str
) -> None:
    with (
        scripted(play) as server,
        make_client(server.address, nobody, timeout_s=0.1) as client,
        pytest.raises(ConnectionFailed) as raised,
    ):
        client.put_many("work", [b"a", b"b"])
    assert not isinstance(raised.value, CannotConnect)


# Gets from several servers.


def test_the_items_of_all_servers_are_found(addresses: list[str], both: BlockingClient) -> None:
    for address, data in zip(addresses, (b"a", b"b"), strict=True):
        with make_client(address) as client:
            client.put("work", data)
    assert {both.get("work"), both.get("work")} == {b"a", b"b"}
    assert both.get("work") is None


def test_what_is_asked_of_queues_is_asked_of_all_servers(addresses: list[str], both: BlockingClient) -> None:
    for address in addresses:
        with make_client(address) as client:
            client.put("work", b"a")
    assert set(both.stats()) == set(addresses)
    both.flush("work")
    assert both.get("work") is None


def test_all_servers_are_asked_also_when_one_is_not_there(
    nobody: str, client: BlockingClient, addresses: list[str]
) -> None:
    client.put("work", b"a")
    with make_client(nobody, addresses[0]) as broken, pytest.raises(CannotConnect):
        broken.flush("work")
    assert client.get("work") is None


def test_all_servers_are_asked_before_any_is_waited_for() -> None:
    waits = b"get work/t=1000\r\n"
    with (
        scripted(talk((GET, END), (waits, END))) as one,
        scripted(talk((GET, END), (waits, ITEM))) as two,
        make_client(one.address, two.address) as client,
    ):
        assert client.get("work", timeout=5) == b"a"


def test_servers_are_waited_for_in_turn_until_the_time_is_up() -> None:
    first = [(GET, END), (b"get work/t=1000\r\n", END), (b"get work/t=500\r\n", END)]
    second = [(GET, END), (b"get work/t=1000\r\n", END), (GET, END)]
    with scripted(talk(*first)) as one, scripted(talk(*second)) as two, make_client(one.address, two.address) as client:
        assert client.get("work", timeout=2.5) is None


def test_the_only_server_is_waited_for_all_the_time_and_asked_once() -> None:
    with scripted(talk((b"get work/t=2500\r\n", END))) as server, make_client(server.address) as client:
        assert client.get("work", timeout=2.5) is None


def test_a_get_that_failed_goes_to_another_server() -> None:
    with (
        scripted(talk((GET, b""))) as one,
        scripted(talk((GET, ITEM))) as two,
        make_client(one.address, two.address) as client,
    ):
        assert client.get("work") == b"a"


def test_a_get_fails_when_no_server_answers(nobody: str) -> None:
    with (
        scripted(talk((GET, READ_ONLY))) as one,
        make_client(one.address, nobody) as client,
        pytest.raises(CannotConnect),
    ):
        client.get("work")


def test_a_get_finds_nothing_when_one_server_is_empty_and_the_other_one_fails(nobody: str) -> None:
    with scripted(talk((GET, END))) as one, make_client(nobody, one.address) as client:
        assert client.get("work") is None


def test_a_server_that_failed_a_get_is_asked_again_when_it_has_been_left_alone_for_a_while() -> None:
    now_s = 0.0
    one = scripted(talk((GET, b"")), talk((GET, ITEM)))
    two = scripted(talk((GET, ITEM), (GET, END)))
    with one as first, two as second:
        servers = [first.address, second.address]
        with BlockingClient(servers, random=FirstOfAll(), seconds=lambda: now_s) as client:
            assert [client.get("work"), client.get("work")] == [b"a", None]
            now_s += MAX_BACKOFF_S
            assert client.get("work") == b"a"


# Reads whose connection ends.


def test_the_connection_of_a_monitor_that_is_left_early_is_not_used_again() -> None:
    monitor = talk_and_stay((b"monitor work 10 5\r\n", ITEM))
    with scripted(monitor, talk((GET, ITEM))) as server, make_client(server.address) as client:
        for item in client.monitor("work", 10, 5):
            assert item == b"a"
            break
        assert client.get("work") == b"a"


def test_a_confirm_that_cannot_be_sent_is_told() -> None:
    with (
        scripted(talk((b"get work/open\r\n", ITEM))) as server,
        make_client(server.address) as client,
        pytest.raises(ConnectionFailed),
        client.reliable_get("work") as item,
    ):
        assert item == b"a"


def test_an_exception_is_not_hidden_by_an_abort_that_fails() -> None:
    with (
        scripted(talk((b"get work/open\r\n", ITEM))) as server,
        make_client(server.address) as client,
        pytest.raises(ZeroDivisionError),
        client.reliable_get("work"),
    ):
        raise ZeroDivisionError


def test_a_connection_is_kept_after_an_abort() -> None:
    exchanges = ((b"get work/open\r\n", ITEM), (b"get work/abort\r\n", END), (GET, ITEM))
    with scripted(talk(*exchanges)) as server, make_client(server.address) as client:
        with pytest.raises(ZeroDivisionError), client.reliable_get("work"):
            raise ZeroDivisionError
        assert client.get("work") == b"a"


def test_the_end_of_a_read_whose_connection_has_ended_was_certainly_not_carried_out() -> None:
    with (
        scripted(talk((b"get work/open\r\n", ITEM))) as server,
        make_client(server.address) as client,
        pytest.raises(CannotConnect, match=server.address),
        client.reliable_get("work"),
    ):
        server.wait_until_over()


def test_a_read_that_was_not_finished_ends_with_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the next confirm on that connection would be for it."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with (
        scripted(talk_and_stay((b"get work/open\r\n", ITEM)), talk((GET, ITEM))) as server,
        make_client(server.address) as client,
    ):
        monkeypatch.setattr(client, "_finish", interrupted)
        with pytest.raises(KeyboardInterrupt), client.reliable_get("work"):
            pass
        assert client.get("work") == b"a"


# Monitors of several servers.

MONITOR = b"monitor work 1 1\r\n"
CONFIRM = b"confirm work 1\r\n"


def test_a_server_that_refuses_to_be_monitored_is_left_for_another() -> None:
    with (
        scripted(talk((MONITOR, READ_ONLY))) as one,
        scripted(talk(*[(MONITOR, ITEM + END), (CONFIRM, END)] * 2)) as two,
        make_client(one.address, two.address) as client,
    ):
        assert [list(client.monitor("work", 1, 1)) for _ in range(2)] == [[b"a"], [b"a"]]


def test_after_a_monitor_that_found_nothing_the_next_one_is_of_another_server() -> None:
    with (
        scripted(talk((MONITOR, END))) as one,
        scripted(talk((MONITOR, ITEM + END), (CONFIRM, END))) as two,
        make_client(one.address, two.address) as client,
    ):
        assert [list(client.monitor("work", 1, 1)) for _ in range(2)] == [[], [b"a"]]


# The end.


def test_a_closed_client_has_no_monitor_running() -> None:
    with scripted(talk_and_stay((MONITOR, ITEM))) as server:
        client = make_client(server.address)
        items = client.monitor("work", 1, 1)
        assert next(items) == b"a"
        client.close()
        with pytest.raises(ConnectionFailed, match="closed"):
            next(items)


def test_a_forked_process_has_connections_of_its_own() -> None:
    with (
        scripted(talk_and_stay((GET, ITEM)), talk((GET, ITEM))) as server,
        make_client(server.address) as client,
    ):
        assert client.get("work") == b"a"
        parent = os.getpid()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "getpid", lambda: parent + 1)
            assert client.get("work") == b"a"


# Errors.


def test_a_failure_names_the_server_once() -> None:
    for play in (talk((GET, READ_ONLY)), talk((GET, b""))):
        with scripted(play) as server, make_client(server.address) as client:
            with pytest.raises((ServerError, ConnectionFailed)) as raised:
                client.get("work")
            assert str(raised.value).count(server.address) == 1


def test_what_is_no_option_is_told_when_the_client_is_made() -> None:
    with pytest.raises(ValueError, match="timeout_s"):
        BlockingClient("localhost", timeout_s=0)
    with pytest.raises(TypeError, match="tls"):
        BlockingClient("localhost", tls=True)  # type: ignore[arg-type]
