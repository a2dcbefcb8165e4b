"""Replies that the memcache client reads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kestrel.client.memcache import MemcacheCalls
from tests.fuzz.choices import Choices
from tests.fuzz.replies import Request, check_replies
from tests.fuzz.target import Target

CALLS = MemcacheCalls(max_item_bytes=100, max_line_bytes=50)

REQUESTS: tuple[Callable[[], Request], ...] = (
    partial(CALLS.put, b"work", b"x"),
    partial(CALLS.get, b"work", 5000, opens=True),
    partial(CALLS.monitor, b"work", 1),
    partial(CALLS.confirm, b"work", 1),
    CALLS.flush_all,
    partial(CALLS.flush_expired, b"work"),
    CALLS.stats,
    CALLS.dump_stats,
    CALLS.status,
    CALLS.version,
    CALLS.reload,
    CALLS.shutdown,
)


def check(data: bytes) -> None:
    choices = Choices(data)
    make = REQUESTS[choices.number(len(REQUESTS))]
    sizes = choices.numbers(15)
    check_replies(make, choices.rest(), sizes)


WORDS = (
    b"VALUE work 0 ", b"\r\n", b"END\r\n", b"STORED", b"NOT_STORED", b"STAT ", b"queue '", b"' {\r\n", b"}\r\n", b"  ",
    b"=", b"SERVER_ERROR ", b"CLIENT_ERROR ", b"ERROR\r\n", b"VERSION ", b"/t=5", b"100", b"DELETED",
)  # fmt: skip

TARGET = Target(check, lambda: WORDS)
