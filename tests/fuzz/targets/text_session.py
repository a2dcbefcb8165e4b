"""Sessions of the text protocol."""

from __future__ import annotations

from tests.fuzz.sessions import check_session
from tests.fuzz.target import Target
from tests.fuzz.targets import text


def check(data: bytes) -> None:
    check_session("text", data, _check_replies)


def _check_replies(sent: bytes, received: bytes, is_all: bool) -> None:
    """Check that every line is one of a reply. No item contains a line feed, because all were put with text."""
    *lines, behind = received.split(b"\n")
    assert all(line[:1] in (b"+", b"-", b":", b"*") for line in lines)
    assert not is_all or not behind


TARGET = Target(check, lambda: text.WORDS)
