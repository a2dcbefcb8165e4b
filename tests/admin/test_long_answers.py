"""Responses about all queues are made as the client reads, so a client that does not read costs little memory."""

from __future__ import annotations

import tracemalloc

import pytest

from kestrel.admin.time_slices import STALLED_CLIENT_TIMEOUT_S
from tests.admin.browsing import Admin, request

KIB = 1024
QUEUES = 1500
CLIENTS = 10
MOST_HELD_BYTES = 256 * KIB
"""Memory of one response: 64 KiB in the transport, the last piece, and the state."""

PATHS = ["/stats.json", "/stats.txt", "/metrics", "/api/overview"]


@pytest.fixture(scope="module")
def admin() -> Admin:
    admin = Admin()
    for number in range(QUEUES):
        admin.server.manager.queue(b"%04d" % number + b"x" * 190)
    admin.server.settle()
    return admin


@pytest.mark.parametrize("path", PATHS)
def test_unread_answer_holds_one_piece(admin: Admin, path: str) -> None:
    assert len(admin.get(path).body) > MOST_HELD_BYTES
    clients = [admin.connect() for _ in range(CLIENTS)]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for client in clients:
            client.reads = False
            client.send(request("GET", path))
            admin.server.settle()
        held_bytes = (tracemalloc.get_traced_memory()[0] - before) / CLIENTS
    finally:
        tracemalloc.stop()
    memory = admin.server.manager.memory_limit
    assert memory.used_bytes > 0
    assert held_bytes < MOST_HELD_BYTES
    for client in clients:
        client.disconnect()
    admin.server.settle()
    assert memory.used_bytes == 0


@pytest.mark.parametrize("path", PATHS)
def test_queues_may_come_and_go_during_an_answer(path: str) -> None:
    admin = Admin()
    for number in range(400):
        admin.server.manager.queue(b"%03d" % number + b"x" * 190)
    client = admin.connect()
    client.reads = False
    client.ask(request("GET", path))
    admin.server.manager.delete(b"398" + b"x" * 190)
    admin.server.manager.queue(b"zzz")
    client.reads = True
    admin.server.settle()
    reply = client.take()
    assert b"399xxx" in reply
    assert reply.endswith(b"\r\n0\r\n\r\n")


def test_memory_of_a_dropped_client_is_freed(admin: Admin) -> None:
    client = admin.connect()
    client.reads = False
    client.ask(request("GET", "/stats.json"))
    assert admin.server.manager.memory_limit.used_bytes > 0
    admin.server.advance(STALLED_CLIENT_TIMEOUT_S)
    admin.server.settle()
    assert client.is_closed
    assert admin.server.manager.memory_limit.used_bytes == 0


def test_many_children_are_listed_in_pieces() -> None:
    admin = Admin()
    children = [f"parent+{number:04}" + "x" * 180 for number in range(3000)]
    for child in ["parent", *children]:
        admin.server.manager.queue(child.encode())
    assert admin.get("/api/queue/parent").json["children"] == children
    client = admin.connect()
    client.reads = False
    client.ask(request("GET", "/api/queue/parent"))
    assert len(client.transport.unsent) < MOST_HELD_BYTES
