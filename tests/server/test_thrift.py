"""Thrift over real sockets: programs and servers that die with open reads."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from typing import Final

import pytest

from tests.child import Child
from tests.server.running import PATIENCE_S, Processes, Server
from tests.server.thrift_clients import Item, Thrift

CONFIG: Final = 'queuePath = "queues"\nmaxOpenTransactions = 2000\n'

PATIENCE_MS: Final = int(1000 * PATIENCE_S) // 2
"""Timeout of a get whose item must come, shorter than the client's timeout."""

LONG_MS: Final = 3_600_000

ITEMS: Final = [b"%05d" % number for number in range(1000)]


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    with Processes(tmp_path_factory.mktemp("thrift")) as processes:
        yield processes


@pytest.fixture(scope="module")
def server(processes: Processes) -> Server:
    return processes.serve(CONFIG)


@pytest.fixture
def client(server: Server) -> Iterator[Thrift]:
    with Thrift(server.port_of("thrift")) as client:
        yield client


@pytest.fixture
def queue() -> str:
    return f"q{uuid.uuid4().hex}"


# Items.


def test_items_return_in_order_byte_for_byte(client: Thrift, queue: str) -> None:
    items = [b"", b"\n", b"\x00\xff\x80", bytes(range(256)), b"x" * 1_000_000, *ITEMS]
    assert client.put(queue, items) == len(items)
    assert client.get(queue, len(items)) == [Item(item, 0) for item in items]
    assert client.get(queue, 1) == []


# Programs that die.


def killed_while_it_held(processes: Processes, server: Server, queue: str, items: int, auto_abort_ms: int) -> None:
    """Let a program take all items, and kill it."""
    arguments = [str(server.port_of("thrift")), queue, str(items), str(auto_abort_ms)]
    with Child(
        [sys.executable, "-m", "tests.server.thrift_clients", *arguments],
        cwd=processes.folder,
        env=processes.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as program:
        taken = program.read_line()
        program.kill()
    assert taken == b"%d\n" % items


def test_killed_program_returns_open_reads_once_in_order(
    processes: Processes, server: Server, client: Thrift, queue: str
) -> None:
    assert client.put(queue, ITEMS) == len(ITEMS)
    killed_while_it_held(processes, server, queue, len(ITEMS), 600)
    first = client.get(queue, len(ITEMS), PATIENCE_MS, 300)
    assert [item.data for item in first] == ITEMS
    second = client.get(queue, len(ITEMS), PATIENCE_MS, LONG_MS)
    assert [item.data for item in second] == ITEMS, "and so after each auto-abort"
    assert client.get(queue, 1, 350) == [], "no item is there twice"
    assert client.confirm(queue, {item.id for item in first}) == 0
    assert client.confirm(queue, {item.id for item in second}) == len(ITEMS)
    with server.connect() as memcache:
        stats = memcache.stats()
    counted = {name: stats[f"queue_{queue}_{name}"] for name in ("items", "transactions", "canceled_transactions")}
    assert counted == {"items": "0", "transactions": "3000", "canceled_transactions": "2000"}


def test_server_kill_returns_reads_and_invalidates_old_ids(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with Processes(tmp_path_factory.mktemp("death")) as processes:
        server = processes.serve(CONFIG)
        with Thrift(server.port_of("thrift")) as client:
            client.put("work", ITEMS)
            held = [item for _ in range(10) for item in client.get("work", 50, 0, LONG_MS)]
            assert [item.data for item in held] == ITEMS[:500]
            assert client.confirm("work", {item.id for item in held[:100]}) == 100
        server.kill()
        server = processes.serve(CONFIG)
        with Thrift(server.port_of("thrift")) as client:
            again = client.get("work", len(ITEMS), 0, LONG_MS)
            assert [item.data for item in again] == ITEMS[100:]
            assert client.confirm("work", {item.id for item in held}) == 0
            assert client.abort("work", {item.id for item in held}) == 0
            assert client.raw.peek("work").open_transactions == 900
            assert client.confirm("work", {item.id for item in again}) == 900
