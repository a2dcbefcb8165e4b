"""The few words of the memcache protocol that tests of promises speak."""

from __future__ import annotations

from typing import Final

from kestrel.testing.server import MemoryClient

STORED: Final = b"STORED\r\n"
NOT_STORED: Final = b"NOT_STORED\r\n"
END: Final = b"END\r\n"


def set_(queue: bytes, data: bytes, expiry: int = 0) -> bytes:
    """The request that puts an item; `expiry` is in seconds, as a client gives it."""
    return b"set %b 0 %d %d\r\n%b\r\n" % (queue, expiry, len(data), data)


def value(queue: bytes, data: bytes) -> bytes:
    """The reply to a get that finds this item."""
    return b"VALUE %b 0 %d\r\n%b\r\nEND\r\n" % (queue, len(data), data)


def stat(client: MemoryClient, queue: bytes, name: str) -> str:
    """One figure of a queue, as `dump_stats` tells it. Raises KeyError where it does not."""
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
