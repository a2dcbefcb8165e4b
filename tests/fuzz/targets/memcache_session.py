"""Sessions of the memcache protocol."""

from __future__ import annotations

from collections.abc import Mapping

from tests.fuzz import protocol_seeds, sessions
from tests.fuzz.choices import repairing, with_choices
from tests.fuzz.sessions import ADVANCE_TIME, HALF_CLOSE, SEND, SWITCH_CLIENT, TOGGLE_READING, check_session
from tests.fuzz.target import Target
from tests.fuzz.targets import memcache


def check(data: bytes) -> None:
    check_session("memcache", data, _check_replies)


def _check_replies(sent: bytes, received: bytes, is_all: bool) -> None:
    assert not is_all or not received or received.endswith(b"\r\n")
    assert sent or not received


def seeds() -> Mapping[str, bytes]:
    return {
        **{name: with_choices(stream, index % 3, 2, SEND, 9, SEND, 20) for index, (name, stream) in enumerate(
            protocol_seeds.conversations("memcache").items())},
        "waits": with_choices(
            b"get work/t=500\r\nset work 0 0 1\r\nx\r\n", 1, 4, SEND, 15, ADVANCE_TIME, 3, SWITCH_CLIENT, 0, SEND, 99,
        ),
        "gone": with_choices(
            b"monitor work 10 5\r\nset work 0 1 1\r\nx\r\n", 1, 5,
            SEND, 18, TOGGLE_READING, 0, SWITCH_CLIENT, 0, SEND, 40, HALF_CLOSE, 0,
        ),
        "reads-nothing": with_choices(b"stats\r\n" * 250, 1, 1, TOGGLE_READING, 0),
        "reads-nothing-of-little": with_choices(
            b"get work/t=9\r\n" + b"stats\r\n" * 250, 2, 3, TOGGLE_READING, 0, SEND, 99, ADVANCE_TIME, 3,
        ),
        "fanout": with_choices(
            b"set work 0 0 1\r\nx\r\nget work+a/open\r\nset all 0 0 1\r\ny\r\ndump_stats\r\nstats\r\n", 1, 0,
        ),
        "expiry": with_choices(
            b"set short 0 0 1\r\nx\r\nget work/open\r\nget work/abort\r\nget work/open\r\nget work/abort\r\n"
            b"get work/open\r\nget work/abort\r\nget failed\r\n",
            1, 2, SEND, 19, ADVANCE_TIME, 20,
        ),
    }  # fmt: skip


TARGET = Target(check, seeds, lambda: memcache.WORDS, repairing(sessions.choose, memcache.repaired))
