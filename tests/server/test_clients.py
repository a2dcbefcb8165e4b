"""Client libraries and tools for memcached, with their default settings, against a real server.

Libraries that ignore the key of a reply also run against a server that names the queue, as Kestrel does.
"""

import asyncio
import os
import re
import subprocess
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import aiomcache
import memcache
import pymemcache
import pytest

from kestrel.escaping import unescape_name
from tests.child import join
from tests.server.running import PATIENCE_S, Processes, Server, eventually

CONFIG = 'queuePath = "queues"\nmaxOpenTransactions = 100\n'

BIG = 4 << 20


def served(factory: pytest.TempPathFactory, config: str) -> Iterator[Server]:
    with Processes(factory.mktemp("clients")) as processes:
        yield processes.serve(config)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from served(tmp_path_factory, CONFIG)


@pytest.fixture(scope="module")
def like_kestrel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from served(tmp_path_factory, CONFIG + "echoRequestedKey = false\n")


def pylibmc_client(port: int) -> Any:
    import pylibmc

    return pylibmc.Client([f"127.0.0.1:{port}"])


def python_memcached_client(port: int) -> Any:
    return memcache.Client([f"127.0.0.1:{port}"], server_max_value_length=BIG, socket_timeout=PATIENCE_S)


def pymemcache_client(port: int) -> Any:
    return pymemcache.Client(("127.0.0.1", port), connect_timeout=PATIENCE_S, timeout=PATIENCE_S)


class AiomcacheClient:
    """aiomcache with the methods of the blocking libraries. Open reads need one connection."""

    def __init__(self, port: int) -> None:
        self._runner = asyncio.Runner()
        self._client = aiomcache.Client("127.0.0.1", port, pool_size=1)

    def set(self, key: str, value: bytes, expiry_s: int = 0) -> bool:
        return self._runner.run(self._client.set(key.encode(), value, expiry_s))

    def get(self, key: str) -> bytes | None:
        return self._runner.run(self._client.get(key.encode()))

    def delete(self, key: str) -> bool:
        return self._runner.run(self._client.delete(key.encode()))

    def close(self) -> None:
        self._runner.run(self._client.close())


CLIENTS = [
    # how a client is made, and the fixture of its server
    pytest.param((pylibmc_client, "plain"), id="pylibmc", marks=pytest.mark.needs("pylibmc")),
    pytest.param((pylibmc_client, "like_kestrel"), id="pylibmc-like-kestrel", marks=pytest.mark.needs("pylibmc")),
    pytest.param((python_memcached_client, "plain"), id="python-memcached"),
    pytest.param((python_memcached_client, "like_kestrel"), id="python-memcached-like-kestrel"),
    pytest.param((pymemcache_client, "plain"), id="pymemcache"),
    pytest.param((AiomcacheClient, "plain"), id="aiomcache"),
]


@pytest.fixture(params=CLIENTS)
def connected(request: pytest.FixtureRequest) -> Iterator[tuple[Any, Server]]:
    """Return each client with its server."""
    make, name = request.param
    server = request.getfixturevalue(name)
    client = make(server.port)
    yield client, server
    close(client)


@pytest.fixture
def client(connected: tuple[Any, Server]) -> Any:
    return connected[0]


@pytest.fixture
def server(connected: tuple[Any, Server]) -> Server:
    return connected[1]


def close(client: Any) -> None:
    (client.close if hasattr(client, "close") else client.disconnect_all)()


@pytest.fixture
def queue() -> str:
    return f"q{uuid.uuid4().hex}"


# Puts and gets.


def test_item_that_was_put_is_got_once(client: Any, queue: str) -> None:
    assert client.set(queue, b"hello")
    assert client.get(queue) == b"hello"
    assert client.get(queue) is None


def test_item_keeps_its_bytes(client: Any, queue: str) -> None:
    for item in (b"", b"\r\n", b"END\r\nVALUE q 0 1\r\nx\r\n", bytes(range(256)), os.urandom(1 << 20)):
        assert client.set(queue, item)
        assert client.get(queue) == item


def test_deleted_queue_is_empty(client: Any, queue: str) -> None:
    assert client.set(queue, b"hello")
    assert client.delete(queue)
    assert client.get(queue) is None
    assert client.delete(queue)


def test_expired_item_is_not_got(client: Any, queue: str) -> None:
    long_ago = 1_000_001  # seconds since the epoch, from a million on
    assert client.set(queue, b"hello", long_ago)
    assert client.set(queue, b"later", 100)
    assert client.get(queue) == b"later"
    assert client.get(queue) is None


# Waiting and reliable reads.


def test_get_with_timeout_waits_for_an_item(client: Any, server: Server, queue: str) -> None:
    def put_when_a_client_waits() -> None:
        with server.connect() as other:
            eventually(lambda: other.stats().get(f"queue_{queue}_waiters") == "1", "the client waits")
            other.put(queue.encode(), b"hello")

    putter = threading.Thread(target=put_when_a_client_waits, name="putter")
    putter.start()
    assert client.get(f"{queue}/t=60000") == b"hello"
    join(putter)
    assert client.get(queue) is None


def test_closed_read_is_removed(client: Any, queue: str) -> None:
    assert client.set(queue, b"1")
    assert client.set(queue, b"2")
    assert client.get(f"{queue}/open") == b"1"
    assert client.get(f"{queue}/close") is None
    assert client.get(queue) == b"2"
    assert client.get(queue) is None


def test_aborted_read_is_delivered_again(client: Any, queue: str) -> None:
    assert client.set(queue, b"1")
    assert client.set(queue, b"2")
    assert client.get(f"{queue}/t=5000/open") == b"1"
    assert client.get(f"{queue}/abort") is None
    assert client.get(queue) == b"1"


# Other requests.


def test_flush_all_empties_every_queue(queue: str, processes: Processes) -> None:
    server = processes.serve(CONFIG)  # a server of its own: other tests have items in the shared one
    client = pymemcache_client(server.port)
    client.set(queue, b"1")
    client.set(queue + "x", b"2")
    assert client.flush_all()
    assert client.get(queue) is None
    assert client.get(queue + "x") is None
    client.close()


def test_stats_can_be_read(plain: Server, queue: str) -> None:
    client = pymemcache_client(plain.port)
    client.set(queue, b"hello")
    stats = client.stats()
    client.close()
    assert int(stats[f"queue_{queue}_items".encode()]) == 1
    assert b"uptime" in stats


@pytest.mark.parametrize(
    ("name", "shown"), [("café".encode(), r"caf\xc3\xa9"), (b"caf\xe8", r"caf\xe8"), (b"a\\b", r"a\\b")]
)
def test_python_memcached_reads_stats_of_any_name(plain: Server, name: bytes, shown: str) -> None:
    with plain.connect() as client:
        client.put(name, b"hello")
    ((_, stats),) = memcache.Client([f"127.0.0.1:{plain.port}"], socket_timeout=PATIENCE_S).get_stats()
    assert stats[f"queue_{shown}_items"] == "1"
    assert unescape_name(shown.encode()) == name


# Tools.


@pytest.mark.needs("memcaslap")
def test_memcaslap_completes_although_its_keys_are_no_queue_names(processes: Processes) -> None:
    # Each of its keys begins with eight control characters, which no queue can have in its name.
    server = processes.serve(CONFIG)
    ended = subprocess.run(
        [
            *("memcaslap", f"--servers=127.0.0.1:{server.port}"),
            *("--threads=1", "--concurrency=8", "--win_size=1k", "--execute_number=4000"),
        ],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=PATIENCE_S,
    )
    assert ended.returncode == 0, ended.stdout[-1000:] + ended.stderr[-1000:]
    assert "CLIENT_ERROR" in ended.stdout + ended.stderr
    assert re.search(r"^cmd_set: 4000$", ended.stdout, re.MULTILINE), ended.stdout[-1000:]
    with server.connect() as client:
        assert int(client.stats()["total_items"]) == 0
        client.put(b"work", b"hello")
        assert client.get(b"work") == b"hello"
    server.stop()
    assert "Traceback" not in server.logged()


@pytest.mark.needs("memccapable")
@pytest.mark.parametrize("test", ["ascii get", "ascii gets"])
def test_memccapable_passes_what_a_queue_supports(plain: Server, test: str) -> None:
    # Its other tests are about a cache: items that stay, add and replace.
    ended = subprocess.run(
        ["memccapable", "-h", "127.0.0.1", "-p", str(plain.port), "-a", "-v", "-T", test],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "[pass]" in ended.stdout


@pytest.mark.needs("memcstat")
def test_memcstat_prints_the_stats(plain: Server) -> None:
    ended = subprocess.run(
        ["memcstat", f"--servers=127.0.0.1:{plain.port}"], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert ended.returncode == 0, ended.stderr
    for name in ("uptime", "curr_items", "total_items", "cmd_get", "cmd_set"):
        assert re.search(rf"^\s*{name}: \d+$", ended.stdout, re.MULTILINE), ended.stdout
