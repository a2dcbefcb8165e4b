"""Replies that the memcache client reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from kestrel.client.memcache import MemcacheCalls
from tests.fuzz.choices import Choices, with_choices
from tests.fuzz.replies import Request, check_replies
from tests.fuzz.target import Target

CALLS = MemcacheCalls(max_item_bytes=100, max_line_bytes=50)

REQUESTS: tuple[tuple[Callable[[], Request], bytes], ...] = (
    # request, reply
    (partial(CALLS.put, b"work", b"x"), b"STORED\r\n"),
    (partial(CALLS.get, b"work", 5000, opens=True), b"VALUE work 0 5\r\nhello\r\nEND\r\n"),
    (partial(CALLS.monitor, b"work", 1), b"VALUE work 0 1\r\na\r\nEND\r\nVALUE work 0 0\r\n\r\nEND\r\nEND\r\n"),
    (partial(CALLS.confirm, b"work", 1), b"ERROR\r\n"),
    (CALLS.flush_all, b"Flushed all queues.\r\n"),
    (partial(CALLS.flush_expired, b"work"), b"12\r\n"),
    (CALLS.stats, b"STAT uptime 61\r\nSTAT queue_\xc3\xa4\xff_children a,b\r\nEND\r\n"),
    (CALLS.dump_stats, b"queue 'a'b' {\r\n  items=3\r\n}\r\nqueue 'none' {\r\n  \r\n}\r\nEND\r\n"),
    (CALLS.status, b"READONLY\r\n"),
    (CALLS.version, b"VERSION 1.2.3\r\n"),
    (CALLS.reload, b"SERVER_ERROR no file\r\n"),
    (CALLS.shutdown, b""),
)


def check(data: bytes) -> None:
    choices = Choices(data)
    make, _ = REQUESTS[choices.number(len(REQUESTS))]
    sizes = choices.numbers(15)
    check_replies(make, choices.rest(), sizes)


def seeds() -> Mapping[str, bytes]:
    return {f"{index:02}": with_choices(reply + b"END", index, 2, 3, 9) for index, (_, reply) in enumerate(REQUESTS)}


WORDS = (
    b"VALUE work 0 ", b"\r\n", b"END\r\n", b"STORED", b"NOT_STORED", b"STAT ", b"queue '", b"' {\r\n", b"}\r\n", b"  ",
    b"=", b"SERVER_ERROR ", b"CLIENT_ERROR ", b"ERROR\r\n", b"VERSION ", b"/t=5", b"100", b"DELETED",
)  # fmt: skip

TARGET = Target(check, seeds, lambda: WORDS)
