"""Clients of a server set in a real ZooKeeper, with real servers."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from kestrel.client.blocking import BlockingClient
from kestrel.client.errors import ClientFailure, NoServer
from kestrel.cluster.member import SERVER_SETS
from kestrel.tls import TlsOptions
from tests.child import Child, join
from tests.client.certificates import Authority
from tests.cluster.servers import await_members, config
from tests.cluster.sets import SERVED, Sets, items
from tests.cluster.zookeeper import ZooKeeper
from tests.server.running import PATIENCE_S, ROOT, Processes, Server, eventually, own_port


@pytest.fixture
def client(sets: Sets) -> Iterator[BlockingClient]:
    with BlockingClient(sets.uri, timeout_s=PATIENCE_S) as client:
        yield client


# The blocking client.


@pytest.mark.parametrize("protocol", ["memcache", "thrift"])
def test_puts_and_gets_follow_the_sets(protocol: str, sets: Sets, servers: list[Server]) -> None:
    one, two = servers
    sets.join(one)
    with BlockingClient(sets.uri, protocol, timeout_s=PATIENCE_S) as client:  # type: ignore[arg-type]
        assert client.put("work", b"a")
        sets.join(two, "read")
        eventually(lambda: len(client.status()) == 2, "the client knows the second")
        assert client.put_many("work", [b"b", b"c"]) == 2
        assert (items(one), items(two)) == (3, 0)
        sets.replace(one, two, "write")
        eventually(lambda: client.put("work", b"d") and items(two), "puts go to the second")
        had = items(one)
        client.put("work", b"e")
        assert items(one) == had and items(two) == 2
        while client.get("work") is not None:
            pass
        assert items(one) == items(two) == 0


def test_servers_that_join_and_leave_lose_no_item(
    tmp_path: Path, zookeeper: ZooKeeper, prefix: str
) -> None:
    """A server leaves the sets, stops, and comes back, while one thread puts and another gets."""
    put: list[bytes] = []
    unknown: list[bytes] = []
    got: list[bytes] = []
    is_over = threading.Event()
    uri = f"zk://{zookeeper.hosts}{prefix}"

    def put_on() -> None:
        number = 0
        with BlockingClient(uri, timeout_s=PATIENCE_S) as client:
            while not is_over.is_set():
                number += 1
                item = b"%d" % number
                try:
                    if client.put("work", item):
                        put.append(item)
                except ClientFailure:
                    unknown.append(item)

    def get_on() -> None:
        with BlockingClient(uri, timeout_s=PATIENCE_S) as client:
            while True:
                with suppress(ClientFailure), client.reliable_get("work", timeout=1) as item:
                    if item is not None:
                        got.append(item)
                    elif is_over.is_set():
                        return

    with Processes(tmp_path / "one") as one, Processes(tmp_path / "two") as two:
        for each in (one, two):
            each.folder.mkdir()
        given = SERVED + config(zookeeper, prefix)
        running = [one.serve(given), two.serve(given)]
        await_members(zookeeper, prefix, {server.port: "Up" for server in running})
        threads = [threading.Thread(target=each, daemon=True) for each in (put_on, get_on)]
        for thread in threads:
            thread.start()
        try:
            eventually(lambda: len(put) > 50, "items are put")
            running[0].stop()
            running[0] = one.serve(given)
            await_members(zookeeper, prefix, {server.port: "Up" for server in running})
        finally:
            is_over.set()
            join(*threads)
    assert not set(put) - set(got)
    assert not set(got) - set(put) - set(unknown)
    assert len(unknown) <= 2


def test_waiting_get_uses_a_server_that_joins(
    sets: Sets, servers: list[Server], client: BlockingClient
) -> None:
    one, two = servers
    sets.join(one)
    with two.connect() as other:
        other.put(b"work", b"a")

    def join_the_second() -> None:
        with one.connect() as other:
            eventually(lambda: other.stats().get("queue_work_waiters", "0") != "0", "the get waits at the first")
        sets.join(two)

    joining = threading.Thread(target=join_the_second, daemon=True)
    joining.start()
    assert client.get("work", timeout=PATIENCE_S) == b"a"
    join(joining)


def test_forked_process_follows_the_sets_itself(sets: Sets, servers: list[Server], client: BlockingClient) -> None:
    one, two = servers
    sets.join(one)
    assert client.put("work", b"a")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            sets = None  # type: ignore[assignment]  # ZooKeeper's client of the test is the parent's
            if client.get("work") == b"a" and client.put("work", b"b"):
                client.close()
                status = 0
        finally:
            os._exit(status)
    # A lock that another thread held at the fork is never released in the child, which may hang at its end.
    killing = threading.Timer(PATIENCE_S, os.kill, (child, signal.SIGKILL))
    killing.daemon = True
    killing.start()
    status = os.waitpid(child, 0)[1]
    killing.cancel()
    assert os.waitstatus_to_exitcode(status) == 0
    assert client.get("work") == b"b"
    sets.join(two)
    eventually(lambda: len(client.status()) == 2, "the parent still follows")


def test_closed_client_has_no_session_and_can_be_used_again(
    sets: Sets, servers: list[Server], client: BlockingClient
) -> None:
    sets.join(servers[0])
    before = threading.active_count()
    for _ in range(3):
        assert client.put("work", b"a")
        client.close()
        eventually(lambda: threading.active_count() <= before, "its threads have ended")


def test_garbage_collected_client_has_no_session(sets: Sets, servers: list[Server]) -> None:
    sets.join(servers[0])
    before = threading.active_count()
    assert BlockingClient(sets.uri, timeout_s=PATIENCE_S).put("work", b"a")
    gc.collect()
    eventually(lambda: threading.active_count() <= before, "its threads have ended")


def test_unreachable_zookeeper_is_reported_and_found_later(tmp_path: Path, servers: list[Server]) -> None:
    with (
        own_port() as port,
        closing(ZooKeeper(tmp_path, port)) as zookeeper,
        BlockingClient(f"zk://127.0.0.1:{port}/k", timeout_s=0.3) as client,
    ):
        for _ in range(2):
            with pytest.raises(NoServer, match=f"zk://127.0.0.1:{port}/k: Connection refused"):
                client.put("work", b"a")
        zookeeper.start()
        sets = Sets(zookeeper, "/k")
        sets.join(servers[0])

        def is_put() -> bool:
            with suppress(NoServer):
                return client.put("work", b"a")
            return False

        eventually(is_put, "it is followed")
        zookeeper.kill()
        assert client.put("work", b"a") and client.get("work") == b"a"
        client.close()
        with pytest.raises(NoServer):
            client.put("work", b"a")


def test_certificate_must_match_the_member_or_the_server_name(
    processes: Processes, tmp_path: Path, sets: Sets
) -> None:
    authority = Authority(tmp_path)
    cert_file, key_file = authority.sign("mq.example")
    tls = f"ssl:0:interface=127.0.0.1:privateKey={key_file}:certKey={cert_file}"
    server = processes.serve(SERVED, endpoint=tls)
    sets.join(server)
    with (
        BlockingClient(sets.uri, tls=TlsOptions(authority.ca_file), timeout_s=PATIENCE_S) as client,
        pytest.raises(ClientFailure, match="certificate"),
    ):
        client.put("work", b"a")
    named = TlsOptions(authority.ca_file, server_name="mq.example")
    with BlockingClient(sets.uri, tls=named, timeout_s=PATIENCE_S) as client:
        assert client.put("work", b"a")


# The Twisted client.

PROGRAM = """
import sys
from twisted.internet.defer import Deferred
from twisted.internet.task import LoopingCall, react
from kestrel.client.client import Client
from kestrel.client.errors import NoServer

ticks = []

async def main(reactor, uri, timeout_s):
    ticking = LoopingCall(lambda: ticks.append(reactor.seconds()))
    ticking.start(0.02)
    async with Client(reactor, uri, timeout_s=float(timeout_s)) as client:
        try:
            print("put", await client.put("work", b"a"), flush=True)
            print("got", await client.get("work", timeout=60), flush=True)
        except NoServer as error:
            print("no server:", error, flush=True)
    ticking.stop()
    print("ticks", len(ticks))

react(lambda reactor, *arguments: Deferred.fromCoroutine(main(reactor, *arguments)), sys.argv[1:])
"""


def begin(uri: str, timeout_s: float = PATIENCE_S) -> Child[str]:
    return Child(
        [sys.executable, "-c", PROGRAM, uri, str(timeout_s)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


def lines_of(program: Child[str]) -> list[str]:
    out, err = program.communicate(timeout=2 * PATIENCE_S)
    assert (program.returncode, err) == (0, "")
    return out.splitlines()


def test_twisted_client_follows_the_sets(sets: Sets, servers: list[Server]) -> None:
    one, two = servers
    for name in SERVER_SETS:
        sets.put(name, b'{"serviceEndpoint": {"host": "a..b-", "port": 1}}')
    sets.join(one, "write")
    sets.join(two, "read")
    program = begin(sets.uri)
    eventually(lambda: items(one) == 1, "it has put")
    sets.join(one, "read")
    sets.leave(two, "read")
    lines = lines_of(program)
    assert lines[:2] == ["put True", "got b'a'"]


@pytest.mark.parametrize("how", ["away", "hanging"])
def test_reactor_does_not_wait_for_zookeeper(how: str) -> None:
    with own_port() as nobody, socket.create_server(("127.0.0.1", 0)) as silent:
        hosts = f"127.0.0.1:{nobody if how == 'away' else silent.getsockname()[1]}"
        put, ticks = lines_of(begin(f"zk://{hosts}/k", 1.0))
        assert put.startswith(f"no server: zk://{hosts}/k: ")
        assert int(ticks.removeprefix("ticks ")) > 20  # of more than fifty
