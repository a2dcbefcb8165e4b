"""Sessions of the memcache protocol."""

from __future__ import annotations

from collections.abc import Mapping

from tests.fuzz import sessions, spoken
from tests.fuzz.fed import fed, mending
from tests.fuzz.sessions import HALF_CLOSE, LATER, OTHER_CLIENT, READS, SEND, check_session
from tests.fuzz.target import Target
from tests.fuzz.targets import memcache


def check(data: bytes) -> None:
    check_session("memcache", data, _check_replies)


def _check_replies(sent: bytes, received: bytes, is_all: bool) -> None:
    assert not is_all or not received or received.endswith(b"\r\n")
    assert sent or not received


def seeds() -> Mapping[str, bytes]:
    return {
        **{name: fed(said, place % 3, 2, SEND, 9, SEND, 20) for place, (name, said) in enumerate(
            spoken.conversations("memcache").items())},
        "waits": fed(b"get work/t=500\r\nset work 0 0 1\r\nx\r\n", 1, 4, SEND, 15, LATER, 3, OTHER_CLIENT, 0, SEND, 99),
        "gone": fed(
            b"monitor work 10 5\r\nset work 0 1 1\r\nx\r\n", 1, 5,
            SEND, 18, READS, 0, OTHER_CLIENT, 0, SEND, 40, HALF_CLOSE, 0,
        ),
        "reads-nothing": fed(b"stats\r\n" * 250, 1, 1, READS, 0),
        "reads-nothing-of-little": fed(b"get work/t=9\r\n" + b"stats\r\n" * 250, 2, 3, READS, 0, SEND, 99, LATER, 3),
        "fanout": fed(b"set work 0 0 1\r\nx\r\nget work+a/open\r\nset all 0 0 1\r\ny\r\ndump_stats\r\nstats\r\n", 1, 0),
        "expiry": fed(
            b"set short 0 0 1\r\nx\r\nget work/open\r\nget work/abort\r\nget work/open\r\nget work/abort\r\n"
            b"get work/open\r\nget work/abort\r\nget failed\r\n",
            1, 2, SEND, 19, LATER, 20,
        ),
    }  # fmt: skip


TARGET = Target(check, seeds, lambda: memcache.WORDS, mending(sessions.choose, memcache.mended))
