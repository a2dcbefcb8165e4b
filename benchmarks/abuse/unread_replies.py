"""Clients that request lists of all queues and do not read them."""

from __future__ import annotations

from typing import Final

from benchmarks.abuse.abuse_process import Place
from benchmarks.abuse.connections import LITTLE
from tests.memcache_text import set_
from tests.server.running import Server

QUEUES: Final = 20_000
CLIENTS: Final = 60
PIPELINED: Final = 1000
CONFIG: Final = f'maxQueues = {QUEUES + 100}\nmaxTotalMemory = "200MiB"\n[default]\nkeepJournal = false\n'
_AT_ONCE: Final = 500


def _get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


LISTS: Final = (
    ("memcache", b"stats\r\n"),
    ("memcache", b"dump_stats\r\n"),
    ("memcache", b"dump_config\r\n"),
    ("text", b"dump_stats\n"),
    ("text", b"dump_config\n"),
)
ANSWERS: Final = tuple(
    ("admin", _get(path))
    for path in (
        "/stats.json",
        "/stats.txt",
        "/metrics",
        "/api/overview",
        "/api/server",
        "/api/history?queue=",
        "/stats.json?period=60",
        "/stats.json?namespace=abuse",
    )
)


def make_queues(server: Server) -> None:
    """Make many queues with the longest names."""
    with server.connect() as client:
        for first in range(0, QUEUES, _AT_ONCE):
            names = [b"%05d" % number + b"x" * 190 for number in range(first, first + _AT_ONCE)]
            client.send(b"".join(set_(name, b"x") for name in names))
            client.expect(b"STORED\r\n" * len(names))


def lists(place: Place) -> None:
    """Request each list of memcache and text a thousand times, and read nothing."""
    _leave_unread(place, LISTS)


def answers(place: Place) -> None:
    """Request each response of the admin port a thousand times, and read nothing."""
    _leave_unread(place, ANSWERS)


def _leave_unread(place: Place, requests: tuple[tuple[str, bytes], ...]) -> None:
    # References keep the connections open.
    clients = []
    for number in range(CLIENTS):
        if not place.goes_on():
            break
        protocol, request = requests[number % len(requests)]
        client = place.connect(protocol, receive_buffer=LITTLE)
        clients.append(client)
        place.send_what_is_taken(client, request * PIPELINED)
        place.fates["left unread"] += 1
    while place.goes_on():
        place.pause(0.05)
