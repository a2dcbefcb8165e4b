"""Client libraries and tools for memcached, as they are, against a real server.

Each speaks to a server with the shipped settings; where `echo` is on, replies name the key that was asked for.
"""

import os
import re
import subprocess
import uuid
from collections.abc import Iterator
from typing import Any

import memcache
import pymemcache
import pytest

from kestrel.escaping import unescape_name
from tests.server.running import PATIENCE_S, Processes, Server

CONFIG = 'queuePath = "queues"\nmaxOpenTransactions = 100\n'

BIG = 4 << 20


def served(factory: pytest.TempPathFactory, config: str) -> Iterator[Server]:
    with Processes(factory.mktemp("clients")) as processes:
        yield processes.serve(config)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from served(tmp_path_factory, CONFIG)


@pytest.fixture(scope="module")
def echoing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from served(tmp_path_factory, CONFIG + "echoRequestedKey = true\n")


def pylibmc_client(port: int) -> Any:
    import pylibmc

    return pylibmc.Client([f"127.0.0.1:{port}"])


def python_memcached_client(port: int) -> Any:
    return memcache.Client([f"127.0.0.1:{port}"], server_max_value_length=BIG, socket_timeout=PATIENCE_S)


def pymemcache_client(port: int) -> Any:
    return pymemcache.Client(("127.0.0.1", port), connect_timeout=PATIENCE_S, timeout=PATIENCE_S, default_noreply=False)


PYLIBMC = pytest.param(pylibmc_client, id="pylibmc", marks=pytest.mark.needs("pylibmc"))
PYTHON_MEMCACHED = pytest.param(python_memcached_client, id="python-memcached")
PYMEMCACHE = pytest.param(pymemcache_client, id="pymemcache")


@pytest.fixture(params=[False, True], ids=["as shipped", "echo"])
def server(request: pytest.FixtureRequest) -> Server:
    return request.getfixturevalue("echoing" if request.param else "plain")


@pytest.fixture(params=[PYLIBMC, PYTHON_MEMCACHED, PYMEMCACHE])
def client(request: pytest.FixtureRequest, server: Server) -> Iterator[Any]:
    """Each client on each server."""
    client = request.param(server.port)
    yield client
    close(client)


@pytest.fixture(params=[PYLIBMC, PYTHON_MEMCACHED, PYMEMCACHE])
def reliable(request: pytest.FixtureRequest, plain: Server, echoing: Server) -> Iterator[Any]:
    """Each client on the server whose replies it understands when the key has options."""
    client = request.param((echoing if request.param is pymemcache_client else plain).port)
    yield client
    close(client)


def close(client: Any) -> None:
    (client.close if hasattr(client, "close") else client.disconnect_all)()


@pytest.fixture
def queue() -> str:
    return f"q{uuid.uuid4().hex}"


# What every client can do.


def test_an_item_that_was_set_is_got_once(client: Any, queue: str) -> None:
    assert client.set(queue, b"hello")
    assert client.get(queue) == b"hello"
    assert client.get(queue) is None


def test_items_are_got_in_their_order(client: Any, queue: str) -> None:
    items = [b"%d" % number for number in range(500)]
    for item in items:
        assert client.set(queue, item)
    assert [client.get(queue) for _ in items] == items
    assert client.get(queue) is None


def test_bytes_stay_as_they_are(client: Any, queue: str) -> None:
    for item in (b"", b"\r\n", b"END\r\nVALUE q 0 1\r\nx\r\n", bytes(range(256))):
        assert client.set(queue, item)
        assert client.get(queue) == item


def test_a_big_item_stays_as_it_is(client: Any, queue: str) -> None:
    item = os.urandom(1 << 20)
    assert client.set(queue, item)
    assert client.get(queue) == item


def test_a_deleted_queue_is_empty(client: Any, queue: str) -> None:
    assert client.set(queue, b"hello")
    assert client.delete(queue)
    assert client.get(queue) is None
    assert client.delete(queue)


def test_an_expired_item_is_not_got(client: Any, queue: str) -> None:
    long_ago = 1_000_001  # seconds since the epoch, from a million on
    assert client.set(queue, b"hello", long_ago)
    assert client.set(queue, b"later", 100)
    assert client.get(queue) == b"later"
    assert client.get(queue) is None


def test_flush_all_empties_every_queue(queue: str, processes: Processes) -> None:
    server = processes.serve(CONFIG)  # of its own: in the other, other tests have their items
    client = pymemcache_client(server.port)
    client.set(queue, b"1")
    client.set(queue + "x", b"2")
    # It expects "OK", and is told "Flushed all queues."
    client.flush_all()
    client.close()
    client = pymemcache_client(server.port)
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


@pytest.mark.needs("pylibmc")
def test_libmemcached_reads_stats(plain: Server) -> None:
    client = pylibmc_client(plain.port)
    client.set("counted", b"hello")
    ((_, stats),) = client.get_stats()
    assert int(stats["curr_items"]) > 0
    assert int(stats["cmd_set"]) > 0


# Reliable reads.


def test_an_open_read_is_closed(reliable: Any, queue: str) -> None:
    assert reliable.set(queue, b"1")
    assert reliable.set(queue, b"2")
    assert reliable.get(f"{queue}/open") == b"1"
    assert reliable.get(f"{queue}/close") is None
    assert reliable.get(queue) == b"2"
    assert reliable.get(queue) is None


def test_an_open_read_is_aborted(reliable: Any, queue: str) -> None:
    assert reliable.set(queue, b"1")
    assert reliable.set(queue, b"2")
    assert reliable.get(f"{queue}/open") == b"1"
    assert reliable.get(f"{queue}/abort") is None
    assert reliable.get(queue) == b"1"


def test_many_items_go_from_one_read_to_the_next(reliable: Any, queue: str) -> None:
    items = [b"%d" % number for number in range(300)]
    for item in items:
        assert reliable.set(queue, item)
    assert [reliable.get(f"{queue}/close/open") for _ in items] == items
    assert reliable.get(f"{queue}/close/open") is None


def test_a_client_that_goes_gives_its_open_read_back(reliable: Any, queue: str, plain: Server, echoing: Server) -> None:
    assert reliable.set(queue, b"hello")
    assert reliable.get(f"{queue}/open") == b"hello"
    close(reliable)
    assert reliable.get(f"{queue}/t=5000/open") == b"hello"  # it connects anew


def test_a_peek_leaves_the_item(reliable: Any, queue: str) -> None:
    assert reliable.set(queue, b"hello")
    assert reliable.get(f"{queue}/peek") == b"hello"
    assert reliable.get(f"{queue}/peek") == b"hello"
    assert reliable.get(queue) == b"hello"


def test_a_get_with_a_timeout_waits_no_longer(reliable: Any, queue: str) -> None:
    assert reliable.get(f"{queue}/t=20") is None
    assert reliable.set(queue, b"hello")
    assert reliable.get(f"{queue}/t=5000/open") == b"hello"
    assert reliable.get(f"{queue}/close") is None


# Tools.


@pytest.mark.needs("memcaslap")
def test_memcaslap_runs_to_its_end_though_its_keys_are_no_queue_names(processes: Processes) -> None:
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
def test_memccapable_finds_what_a_queue_can_do(plain: Server, test: str) -> None:
    # Its other tests are about a cache: items that stay, add and replace, noreply.
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
