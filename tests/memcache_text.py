"""Requests and replies of the memcache protocol, and clients that use them."""

from __future__ import annotations

from typing import Final

from kestrel.testing.server import MemoryClient

STORED: Final = b"STORED\r\n"
NOT_STORED: Final = b"NOT_STORED\r\n"
END: Final = b"END\r\n"


def set_(queue: bytes, data: bytes, expiry: int = 0) -> bytes:
    """Return a request that puts an item; `expiry` is in seconds, as a client sends it."""
    return b"set %b 0 %d %d\r\n%b\r\n" % (queue, expiry, len(data), data)


def value(key: bytes, data: bytes) -> bytes:
    """Return the reply to a get of this key that finds this item."""
    return b"VALUE %b 0 %d\r\n%b\r\nEND\r\n" % (key, len(data), data)


def put(client: MemoryClient, queue: bytes, *items: bytes, expiry: int = 0) -> None:
    """Put items, which the server must store."""
    assert client.ask(b"".join(set_(queue, data, expiry) for data in items)) == STORED * len(items)


def stat(client: MemoryClient, queue: bytes, name: str) -> str:
    """Return one figure of a queue from `dump_stats`. Raises KeyError if the queue does not have it."""
    lines = client.ask(b"dump_stats %b\r\n" % queue).decode().splitlines()
    return dict(line.strip().split("=", 1) for line in lines if "=" in line)[name]


def items(client: MemoryClient, queue: bytes) -> list[bytes]:
    """Take all items of a queue, head first."""
    found = []
    while (reply := client.ask(b"get %b\r\n" % queue)) != END:
        head, _, rest = reply.partition(b"\r\n")
        data = rest[: int(head.split()[-1])]
        assert reply == value(queue, data)
        found.append(data)
    return found


def stats(client: MemoryClient) -> dict[str, str]:
    """Return the figures of `stats`."""
    *lines, end = client.ask(b"stats\r\n").decode("latin-1").splitlines()
    assert end == "END"
    return dict(line.removeprefix("STAT ").split(" ", 1) for line in lines)


def create(client: MemoryClient, *queues: bytes) -> None:
    """Create empty queues."""
    for queue in queues:
        assert client.ask(b"get %b\r\n" % queue) == END


def is_missing(client: MemoryClient, queue: bytes) -> bool:
    """Return True if the queue does not exist. Asking does not create it."""
    return client.ask(b"dump_stats %b\r\n" % queue) == b"queue '%b' {\r\n  \r\n}\r\nEND\r\n" % queue
