"""Sessions of the memcache protocol."""

from __future__ import annotations

from tests.fuzz import sessions
from tests.fuzz.choices import repairing
from tests.fuzz.sessions import check_session
from tests.fuzz.target import Target
from tests.fuzz.targets import memcache


def check(data: bytes) -> None:
    check_session("memcache", data, _check_replies)


def _check_replies(sent: bytes, received: bytes, is_all: bool) -> None:
    assert not is_all or not received or received.endswith(b"\r\n")
    assert sent or not received


TARGET = Target(check, lambda: memcache.WORDS, repairing(sessions.choose, memcache.repaired))
