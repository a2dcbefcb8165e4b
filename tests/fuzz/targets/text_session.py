"""Sessions of the text protocol."""

from __future__ import annotations

from collections.abc import Mapping

from tests.fuzz import protocol_seeds
from tests.fuzz.choices import with_choices
from tests.fuzz.sessions import ADVANCE_TIME, SEND, SWITCH_CLIENT, check_session
from tests.fuzz.target import Target
from tests.fuzz.targets import text


def check(data: bytes) -> None:
    check_session("text", data, _check_replies)


def _check_replies(sent: bytes, received: bytes, is_all: bool) -> None:
    """Check that every line is one of a reply. No item contains a line feed, because all were put with text."""
    *lines, behind = received.split(b"\n")
    assert all(line[:1] in (b"+", b"-", b":", b"*") for line in lines)
    assert not is_all or not behind


def seeds() -> Mapping[str, bytes]:
    return {
        **{name: with_choices(stream, index % 3, 2, SEND, 9, SEND, 20) for index, (name, stream) in enumerate(
            protocol_seeds.conversations("text").items())},
        "waits": with_choices(
            b"get work 500\nput work:\nx\n\n", 1, 4, SEND, 12, ADVANCE_TIME, 3, SWITCH_CLIENT, 0, SEND, 99
        ),
        "monitor": with_choices(b"put work:\na\nb\nc\nd\n\nmonitor work 5\nconfirm work 2\npeek work\nquit\n", 0, 0),
        "statuses": with_choices(
            b"status readonly\nput work:\nx\n\nstatus\nstatus up\nput all 1:\nx\n\nget other\n", 1, 0
        ),
    }  # fmt: skip


TARGET = Target(check, seeds, lambda: text.WORDS)
