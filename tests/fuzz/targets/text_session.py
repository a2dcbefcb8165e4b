"""Sessions of the text protocol."""

from __future__ import annotations

from collections.abc import Mapping

from tests.fuzz import spoken
from tests.fuzz.fed import fed
from tests.fuzz.sessions import LATER, OTHER_CLIENT, SEND, check_session
from tests.fuzz.target import Target
from tests.fuzz.targets import text


def check(data: bytes) -> None:
    check_session("text", data, _check_replies)


def _check_replies(sent: bytes, received: bytes, is_all: bool) -> None:
    """No item has a line feed that was put by text, and so every line is one of a reply."""
    *lines, behind = received.split(b"\n")
    assert all(line[:1] in (b"+", b"-", b":", b"*") for line in lines)
    assert not is_all or not behind


def seeds() -> Mapping[str, bytes]:
    return {
        **{name: fed(said, place % 3, 2, SEND, 9, SEND, 20) for place, (name, said) in enumerate(
            spoken.conversations("text").items())},
        "waits": fed(b"get work 500\nput work:\nx\n\n", 1, 4, SEND, 12, LATER, 3, OTHER_CLIENT, 0, SEND, 99),
        "monitor": fed(b"put work:\na\nb\nc\nd\n\nmonitor work 5\nconfirm work 2\npeek work\nquit\n", 0, 0),
        "statuses": fed(b"status readonly\nput work:\nx\n\nstatus\nstatus up\nput all 1:\nx\n\nget other\n", 1, 0),
    }  # fmt: skip


TARGET = Target(check, seeds, lambda: text.WORDS)
