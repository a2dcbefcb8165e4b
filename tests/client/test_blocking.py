"""The blocking client, with real servers, and with servers that play a script."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final, NamedTuple

import pytest

from kestrel.client.blocking import BlockingClient
from kestrel.client.choice import MAX_BACKOFF_S
from kestrel.client.connection import BlockingConnection
from kestrel.client.errors import BadReply, CannotConnect, ConnectionFailed, OpenReadsError, RequestError, ServerError
from kestrel.client.put_batch import BATCH_BYTES, BATCH_ITEMS
from kestrel.errors import BadQueueName
from tests.client.first_choice import FirstOfAll
from tests.client.scripted import GET, ITEM, PUT, READ_ONLY, Connection, reset, scripted, talk, talk_and_stay
from tests.memcache_text import END, STORED, set_
from tests.server.running import ANY_PORT, PATIENCE_S, Processes, Server, eventually, own_port

CONFIG = 'queuePath = "queues"\nmaxOpenTransactions = 100\n[[queues]]\nname = "small"\nmaxItems = 2\n'


GET_OPEN = b"get work/open\r\n"
MONITOR = b"monitor work 1 1\r\n"
CONFIRM = b"confirm work 1\r\n"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    with Processes(tmp_path_factory.mktemp("one")) as one, Processes(tmp_path_factory.mktemp("two")) as two:
        started = [each.start(CONFIG, "--thrift", ANY_PORT) for each in (one, two)]
        yield [server.serves() for server in started]


@pytest.fixture
def addresses(servers: list[Server]) -> list[str]:
    return [f"127.0.0.1:{server.port}" for server in servers]


@pytest.fixture
def client(addresses: list[str]) -> Iterator[BlockingClient]:
    """Return a client of one server, which is empty."""
    with make_client(addresses[0]) as client:
        for queue in ("work", "small", "other"):
            client.delete(queue)
        yield client


@pytest.fixture(params=["memcache", "thrift"])
def either(request: pytest.FixtureRequest, servers: list[Server], client: BlockingClient) -> Iterator[BlockingClient]:
    """Return a client of one empty server, for each protocol."""
    with make_client(f"127.0.0.1:{servers[0].port_of(request.param)}", protocol=request.param) as either:
        yield either


@pytest.fixture
def both(addresses: list[str]) -> Iterator[BlockingClient]:
    """Return a client of two empty servers."""
    with make_client(*addresses) as client:
        client.delete("work")
        yield client


def make_client(
    *servers: str, timeout_s: float = PATIENCE_S, seconds: Callable[[], float] = lambda: 0.0, **options: Any
) -> BlockingClient:
    """Return a client that asks the servers in order, and a failed one never again while its clock stands still."""
    return BlockingClient(servers, timeout_s=timeout_s, random=FirstOfAll(), seconds=seconds, **options)


UNREACHABLE: Final = "unreachable"
"""In place of a script: the address of a server that is away."""

Script = Sequence[Connection] | str


@contextmanager
def client_of(*scripts: Script, **options: Any) -> Iterator[BlockingClient]:
    """Provide a client of a server for each script."""
    with ExitStack() as stack:
        addresses = []
        for script in scripts:
            if isinstance(script, str):
                addresses.append(f"127.0.0.1:{stack.enter_context(own_port())}")
            else:
                addresses.append(stack.enter_context(scripted(*script)).address)
        yield stack.enter_context(make_client(*addresses, **options))


def sets(*items: bytes) -> bytes:
    return b"".join(set_(b"work", item) for item in items)


@pytest.fixture
def unreachable() -> Iterator[str]:
    """Return an address where nothing listens."""
    with own_port() as port:
        yield f"127.0.0.1:{port}"


# One server.


def test_items_are_taken_in_order(either: BlockingClient) -> None:
    assert either.put("work", b"a") and either.put(b"work", b"\r\nEND\r\n", expires_in=30)
    assert either.peek("work") == b"a"
    assert [either.get("work"), either.get("work"), either.get("work")] == [b"a", b"\r\nEND\r\n", None]


def test_item_with_a_delay_becomes_visible_later(either: BlockingClient) -> None:
    assert either.put("work", b"soon", delay=0.01) and either.put("work", b"much later", delay=86_400)
    assert either.put_many("other", [b"a", b"b"], delay=86_400) == 2
    assert either.get("work", timeout=10) == b"soon"
    assert [either.get("work"), either.get("other")] == [None, None]


def test_put_to_a_full_queue_returns_false(either: BlockingClient) -> None:
    assert [either.put("small", b"x") for _ in range(3)] == [True, True, False]
    either.flush("small")
    assert either.put_many("small", [b"x"] * 5) == 2


def test_many_items_are_put_in_order(either: BlockingClient) -> None:
    items = [b"%d" % number for number in range(2 * BATCH_ITEMS + 1)] + [b"x" * BATCH_BYTES, b"", b"y" * BATCH_BYTES]
    assert either.put_many("work", iter(items)) == len(items)
    assert [either.get("work") for _ in items] == items
    assert either.put_many("work", []) == 0


def test_reliable_get_confirms_its_item(either: BlockingClient) -> None:
    either.put("work", b"a")
    with either.reliable_get("work") as item:
        assert item == b"a"
        assert either.get("work") is None
    either.close()
    assert either.get("work") is None


def test_exception_puts_the_item_back_at_the_head(either: BlockingClient) -> None:
    either.put_many("work", [b"a", b"b"])
    with pytest.raises(ZeroDivisionError), either.reliable_get("work") as item:
        assert item == b"a"
        raise ZeroDivisionError
    assert [either.get("work"), either.get("work")] == [b"a", b"b"]


def test_nested_reliable_gets_finish_their_own_items(either: BlockingClient) -> None:
    either.put_many("work", [b"a", b"b"])
    with either.reliable_get("work") as first, pytest.raises(ZeroDivisionError), either.reliable_get("work") as second:
        assert (first, second) == (b"a", b"b")
        raise ZeroDivisionError
    assert [either.get("work"), either.get("work")] == [b"b", None]


def test_reliable_get_of_an_empty_queue_returns_none(either: BlockingClient) -> None:
    with either.reliable_get("work", timeout=0.02) as item:
        assert item is None


def test_lost_open_read_raises_an_error_at_its_end(either: BlockingClient) -> None:
    either.put("work", b"a")
    with pytest.raises(OpenReadsError), either.reliable_get("work"):
        either.delete("work")


def test_get_waits_for_an_item(client: BlockingClient, servers: list[Server]) -> None:
    with servers[0].connect() as other:
        other.send(b"get other/t=%d\r\n" % (PATIENCE_S * 1000))
        eventually(lambda: client.stats()[f"127.0.0.1:{servers[0].port}"].get("queue_other_waiters") == "1", "it waits")
        client.put("other", b"a")
        other.expect(b"VALUE other/t=%d 0 1\r\na\r\nEND\r\n" % (PATIENCE_S * 1000))
    client.put("work", b"b")
    assert client.get("work", timeout=PATIENCE_S) == b"b"


def test_monitor_returns_items_and_confirms_them_at_its_end(client: BlockingClient) -> None:
    client.put_many("work", [b"a", b"b", b"c"])
    assert list(client.monitor("work", 10, 2)) == [b"a", b"b"]
    client.close()
    assert [client.get("work"), client.get("work")] == [b"c", None]


def test_monitor_left_early_puts_all_its_items_back(client: BlockingClient) -> None:
    client.put_many("work", [b"a", b"b", b"c"])
    for item in client.monitor("work", 10, 3):
        if item == b"b":
            break
    assert client.get("work", timeout=PATIENCE_S) == b"a"


def test_requests_about_queues_and_the_server(client: BlockingClient, addresses: list[str]) -> None:
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


def test_invalid_queue_name_is_rejected_without_connecting(unreachable: str) -> None:
    client = make_client(unreachable)
    for ask in (client.get, lambda name: client.put(name, b"x"), lambda name: client.put_many(name, [b"x"])):
        with pytest.raises(BadQueueName):
            ask("a\r\nflush_all")


def test_invalid_argument_is_rejected_without_connecting(unreachable: str) -> None:
    for expires_in in (0, -1, 1_000_000):
        with pytest.raises(RequestError, match=r"expire|expiry"):
            make_client(unreachable).put("work", b"x", expires_in=expires_in)
    with pytest.raises(ValueError, match="unknown protocol"):
        BlockingClient(unreachable, "text")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one server"):
        BlockingClient([])
    with pytest.raises(ValueError, match="timeout_s"):
        BlockingClient(unreachable, timeout_s=0)
    with pytest.raises(TypeError, match="tls"):
        BlockingClient(unreachable, tls=True)  # type: ignore[arg-type]


# Requests to servers that play a script.


class Case(NamedTuple):
    """The scripts of the servers, and the value of the requests made of them."""

    scripts: Sequence[Script]
    ask: Callable[[BlockingClient], object]
    value: object


def put(client: BlockingClient) -> int:
    return client.put("work", b"a")


def put_one_of_many(client: BlockingClient) -> int:
    return client.put_many("work", [b"a"])


def get(client: BlockingClient) -> bytes | None:
    return client.get("work")


def monitor(client: BlockingClient) -> list[bytes]:
    return list(client.monitor("work", 1, 1))


VALUES: Final = {
    "an expiry of part of a second is rounded up": Case(
        [[talk((b"set work 0 2 1\r\na\r\n", STORED))]], lambda client: client.put("work", b"a", expires_in=1.001), True
    ),
    "a connection is kept": Case(
        [[talk_and_stay((PUT, STORED), (GET, ITEM), (GET, END))]],
        lambda client: [put(client), get(client), get(client)],
        [True, b"a", None],
    ),
    "a connection with unexpected data is not used again": Case(
        [[talk_and_stay((PUT, STORED + b"?")), talk((PUT, STORED))]], lambda client: [put(client), put(client)], [1, 1]
    ),
    "a refused put goes to another server and the first is not asked again": Case(
        [[talk((PUT, READ_ONLY))], [talk_and_stay((PUT, STORED), (PUT, STORED))]],
        lambda client: [put(client), put(client)],
        [True, True],
    ),
    "a server that refuses puts still serves gets": Case(
        [[talk((PUT, READ_ONLY)), talk((GET, ITEM))], [talk((PUT, STORED))]],
        lambda client: [put(client), get(client)],
        [True, b"a"],
    ),
    "items behind a refusal that ends the connection go to another server": Case(
        [[talk((sets(b"a", b"b", b"c", b"d"), STORED + READ_ONLY))], [talk((sets(b"b", b"c", b"d"), STORED * 3))]],
        lambda client: client.put_many("work", [b"a", b"b", b"c", b"d"]),
        4,
    ),
    "only the refused items go to another server if the connection stays": Case(
        [
            [talk((sets(b"a", b"b", b"c"), STORED + b"SERVER_ERROR disk full\r\n" + STORED))],
            [talk((sets(b"b"), b"NOT_STORED\r\n"))],
        ],
        lambda client: client.put_many("work", [b"a", b"b", b"c"]),
        2,
    ),
    "a connection is not used again after a refusal among many replies": Case(
        [[talk_and_stay((sets(b"a", b"b"), STORED + READ_ONLY)), talk((GET, ITEM))], [talk((sets(b"b"), STORED))]],
        lambda client: [client.put_many("work", [b"a", b"b"]), get(client)],
        [2, b"a"],
    ),
    "all servers are asked before one is waited for": Case(
        [[talk((GET, END), (b"get work/t=1000\r\n", END))], [talk((GET, END), (b"get work/t=1000\r\n", ITEM))]],
        lambda client: client.get("work", timeout=5),
        b"a",
    ),
    "servers are waited for in turn until the timeout": Case(
        [
            [talk((GET, END), (b"get work/t=1000\r\n", END), (b"get work/t=500\r\n", END))],
            [talk((GET, END), (b"get work/t=1000\r\n", END), (GET, END))],
        ],
        lambda client: client.get("work", timeout=2.5),
        None,
    ),
    "a single server is asked once with the whole timeout": Case(
        [[talk((b"get work/t=2500\r\n", END))]], lambda client: client.get("work", timeout=2.5), None
    ),
    "a failed get goes to another server": Case([[talk((GET, b""))], [talk((GET, ITEM))]], get, b"a"),
    "a get finds nothing if one server fails and the other is empty": Case(
        [UNREACHABLE, [talk((GET, END))]], get, None
    ),
    "a refused monitor goes to another server": Case(
        [[talk((MONITOR, READ_ONLY))], [talk(*[(MONITOR, ITEM + END), (CONFIRM, END)] * 2)]],
        lambda client: [monitor(client), monitor(client)],
        [[b"a"], [b"a"]],
    ),
    "the monitor after one without items is of another server": Case(
        [[talk((MONITOR, END))], [talk((MONITOR, ITEM + END), (CONFIRM, END))]],
        lambda client: [monitor(client), monitor(client)],
        [[], [b"a"]],
    ),
}


@pytest.mark.parametrize("case", VALUES.values(), ids=list(VALUES))
def test_requests_return_these_values(case: Case) -> None:
    with client_of(*case.scripts) as client:
        assert case.ask(client) == case.value


class Failure(NamedTuple):
    """The scripts of the servers, and the error of a request made of them."""

    scripts: Sequence[Script]
    ask: Callable[[BlockingClient], object]
    error: type[Exception]
    match: str | None = None


UNKNOWN: Final = {
    "silence": talk_and_stay((sets(b"a", b"b"), READ_ONLY)),
    "garbage": talk_and_stay((sets(b"a", b"b"), READ_ONLY + b"WHAT?\r\n")),
    "half a reply": talk((sets(b"a", b"b"), READ_ONLY + b"STOR")),
}
"""Connections on which it is unknown whether the second item was stored."""

FAILURES: Final = {
    "a put that all servers refuse has the reason of the last": Failure(
        [[talk((PUT, READ_ONLY))], [talk((PUT, b"SERVER_ERROR disk full\r\n"))]], put, ServerError, "disk full"
    ),
    "a wrong put goes to no other server": Failure(
        [[talk((PUT, b"CLIENT_ERROR item too large\r\n"))], UNREACHABLE], put, RequestError, "too large"
    ),
    **{
        f"a {name} without a reply is not repeated after a {end.__name__}": Failure(
            [[end((PUT, b""))], UNREACHABLE], ask, ConnectionFailed
        )
        for name, ask in (("put", put), ("put of many", put_one_of_many))
        for end in (talk, reset)
    },
    "items without a reply are not put again": Failure(
        [[talk((sets(b"a", b"b"), STORED))], UNREACHABLE],
        lambda client: client.put_many("work", [b"a", b"b"]),
        ConnectionFailed,
    ),
    "a wrong item ends a put of many": Failure(
        [[talk((sets(b"a", b"b", b"c"), STORED + b"CLIENT_ERROR item too large\r\n"))], UNREACHABLE],
        lambda client: client.put_many("work", [b"a", b"b", b"c"]),
        RequestError,
        "too large",
    ),
    "a get fails if no server answers": Failure([[talk((GET, READ_ONLY))], UNREACHABLE], get, CannotConnect),
    "a get without a reply times out": Failure([[talk_and_stay((GET, b""))]], get, ConnectionFailed, "timed out"),
    "a get with half a reply times out": Failure(
        [[talk_and_stay((GET, b"VALUE work 0 1\r\n"))]], get, ConnectionFailed, "timed out"
    ),
}


@pytest.mark.parametrize("case", FAILURES.values(), ids=list(FAILURES))
def test_requests_fail_with_these_errors(case: Failure) -> None:
    timeout_s = 0.05 if case.match == "timed out" else PATIENCE_S
    with client_of(*case.scripts, timeout_s=timeout_s) as client, pytest.raises(case.error, match=case.match) as raised:
        case.ask(client)
    assert type(raised.value) is case.error


@pytest.mark.parametrize("play", UNKNOWN.values(), ids=list(UNKNOWN))
def test_items_after_nonclosing_refusal_are_uncertain(play: Connection) -> None:
    with client_of([play], UNREACHABLE, timeout_s=0.1) as client, pytest.raises(ConnectionFailed) as raised:
        client.put_many("work", [b"a", b"b"])
    assert not isinstance(raised.value, CannotConnect)


@pytest.mark.parametrize("ask", [put, put_one_of_many])
def test_put_is_repeated_if_duplicates_are_allowed(ask: Callable[[BlockingClient], int]) -> None:
    with client_of([talk((PUT, b""))], [talk((PUT, STORED))], repeats=True) as client:
        assert ask(client) == 1


# Connections.


def test_kept_connection_that_has_ended_is_replaced() -> None:
    with client_of([talk((PUT, STORED)), talk((PUT, STORED))]) as client:
        assert put(client)
        [[connection]] = client._servers.pool._idle.values()
        connection._socket.settimeout(PATIENCE_S)
        assert connection._socket.recv(1, socket.MSG_PEEK) == b""  # the server has closed it
        assert put(client)


def test_connection_is_not_reused_after_a_refusal() -> None:
    with client_of([talk((GET, b"ERROR\r\n")), talk((GET, ITEM))]) as client:
        with pytest.raises(OpenReadsError):
            get(client)
        assert get(client) == b"a"


def test_closed_client_can_be_used_again() -> None:
    with client_of([talk_and_stay((GET, ITEM)), talk((GET, ITEM))]) as client:
        assert get(client) == b"a"
        client.close()
        assert get(client) == b"a"


def test_error_names_the_server_that_cannot_be_reached(unreachable: str) -> None:
    for address in (unreachable, "two..dots:1"):
        with make_client(address) as client, pytest.raises(CannotConnect, match=address):
            client.get("work")


def test_request_that_the_server_does_not_read_was_not_executed() -> None:
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
def test_invalid_reply_ends_the_connection(reply: bytes) -> None:
    with client_of([talk_and_stay((GET, reply)), talk((GET, ITEM))]) as client:
        with pytest.raises(BadReply):
            get(client)
        assert get(client) == b"a"


def test_requests_skip_a_server_that_is_away() -> None:
    peek = (b"get work/peek\r\n", ITEM)
    with client_of(UNREACHABLE, [talk((PUT, STORED), (sets(b"b", b"c"), STORED * 2), peek, (GET_OPEN, END))]) as client:
        assert put(client) and client.put_many("work", [b"b", b"c"]) == 2
        assert client.peek("work") == b"a"
        with client.reliable_get("work") as item:
            assert item is None


def test_reason_for_refusing_a_large_item_is_read(processes: Processes) -> None:
    server = processes.serve('queuePath = "queues"\nmaxRequestItemSize = 10\n')
    with make_client(f"127.0.0.1:{server.port}") as client, pytest.raises(RequestError, match="item too large"):
        client.put("work", b"x" * (10 << 20))


# Gets from several servers.


def test_requests_use_all_servers(addresses: list[str], both: BlockingClient) -> None:
    for address in addresses:
        with make_client(address) as client:
            client.put_many("work", [b"a", b"b"])
    assert set(both.stats()) == set(addresses)
    assert [both.get("work") for _ in range(3)] == [b"a", b"b", b"a"]
    both.flush("work")
    assert both.get("work") is None


def test_flush_reaches_all_servers_even_if_one_is_away() -> None:
    with client_of(UNREACHABLE, [talk((b"flush work\r\n", END))]) as client, pytest.raises(CannotConnect):
        client.flush("work")


def test_failed_server_is_asked_again_after_its_pause() -> None:
    now_s = 0.0
    one, two = [talk((GET, b"")), talk((GET, ITEM))], [talk((GET, ITEM), (GET, END))]
    with client_of(one, two, seconds=lambda: now_s) as client:
        assert [get(client), get(client)] == [b"a", None]
        now_s += MAX_BACKOFF_S
        assert get(client) == b"a"


# Reads whose connection ends.


def test_connection_of_a_monitor_left_early_is_not_reused() -> None:
    with client_of([talk_and_stay((b"monitor work 10 5\r\n", ITEM)), talk((GET, ITEM))]) as client:
        for item in client.monitor("work", 10, 5):
            assert item == b"a"
            break
        assert get(client) == b"a"


def test_confirm_that_cannot_be_sent_fails() -> None:
    with (
        client_of([talk((GET_OPEN, ITEM))]) as client,
        pytest.raises(ConnectionFailed),
        client.reliable_get("work") as item,
    ):
        assert item == b"a"


def test_failed_abort_does_not_hide_the_exception() -> None:
    with client_of([talk((GET_OPEN, ITEM))]) as client, pytest.raises(ZeroDivisionError), client.reliable_get("work"):
        raise ZeroDivisionError


def test_connection_is_kept_after_an_abort() -> None:
    with client_of([talk((GET_OPEN, ITEM), (b"get work/abort\r\n", END), (GET, ITEM))]) as client:
        with pytest.raises(ZeroDivisionError), client.reliable_get("work"):
            raise ZeroDivisionError
        assert get(client) == b"a"


def test_confirm_on_an_ended_connection_was_not_executed() -> None:
    with (
        scripted(talk((GET_OPEN, ITEM))) as server,
        make_client(server.address) as client,
        pytest.raises(CannotConnect, match=server.address),
        client.reliable_get("work"),
    ):
        server.wait_until_over()


def test_interrupted_read_closes_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the next confirm on that connection would confirm it."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with client_of([talk_and_stay((GET_OPEN, ITEM)), talk((GET, ITEM))]) as client:
        with pytest.raises(KeyboardInterrupt), client.reliable_get("work"):
            monkeypatch.setattr(BlockingConnection, "ask", interrupted)
        monkeypatch.undo()
        assert get(client) == b"a"


# The end.


def test_close_ends_a_running_monitor() -> None:
    with client_of([talk_and_stay((MONITOR, ITEM))]) as client:
        items = client.monitor("work", 1, 1)
        assert next(items) == b"a"
        client.close()
        with pytest.raises(ConnectionFailed, match="closed"):
            next(items)


def test_forked_process_opens_its_own_connections() -> None:
    with client_of([talk_and_stay((GET, ITEM)), talk((GET, ITEM))]) as client:
        assert get(client) == b"a"
        parent = os.getpid()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "getpid", lambda: parent + 1)
            assert get(client) == b"a"


# Errors.


def test_error_names_the_server_once() -> None:
    for play in (talk((GET, READ_ONLY)), talk((GET, b""))):
        with scripted(play) as server, make_client(server.address) as client:
            with pytest.raises((ServerError, ConnectionFailed)) as raised:
                client.get("work")
            assert str(raised.value).count(server.address) == 1
