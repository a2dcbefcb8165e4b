"""Intended differences from the recordings. The numbers are those of docs/differences.md."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

VERSION: Final = "VERSION x.y.z\r\n"
TEXT_VERSION: Final = ":x.y.z\n"
CLIENT_ERROR: Final = "CLIENT_ERROR reason\r\n"
SERVER_ERROR: Final = "SERVER_ERROR reason\r\n"


class Difference(NamedTuple):
    """A difference. `answers` replaces recorded replies, by the index of the step: the reply, and whether the server
    closes the connection. `afterwards` are further steps.
    """

    number: int
    answers: dict[int, tuple[str, bool]]
    afterwards: tuple[dict[str, Any], ...] = ()


def _value(queue: str, item: str) -> str:
    return f"VALUE {queue} 0 {len(item)}\r\n{item}\r\nEND\r\n"


def _then_nothing_is_stored(queue: str) -> tuple[dict[str, Any], ...]:
    return ({"conn": 9, "send": f"get {queue}\r\n", "recv": "END\r\n", "closed": False},)


_REASON_AND_STAYS: Final = {0: (CLIENT_ERROR, False), 1: (VERSION, False)}
_REASON_AND_HANGS_UP: Final = {0: (CLIENT_ERROR, True)}

DIFFERENCES: Final[dict[str, Difference]] = {
    # The original closes the connection without a reason; this server only if the stream cannot be continued.
    "memcache: spaces only line": Difference(2, _REASON_AND_HANGS_UP),
    "memcache: set 0 args": Difference(2, _REASON_AND_HANGS_UP),
    "memcache: set bytes negative -5": Difference(2, _REASON_AND_HANGS_UP),
    "memcache: long line 100k": Difference(2, _REASON_AND_HANGS_UP),
    "memcache: set expiry not int": Difference(2, _REASON_AND_STAYS, _then_nothing_is_stored("q24")),
    "memcache: set expiry float": Difference(2, _REASON_AND_STAYS, _then_nothing_is_stored("q25")),
    "memcache: set expiry > int": Difference(2, _REASON_AND_STAYS, _then_nothing_is_stored("q26")),
    "memcache: set key a.b": Difference(2, _REASON_AND_STAYS),
    "memcache: set key a~b": Difference(2, _REASON_AND_STAYS),
    "memcache: set key with slash then get": Difference(2, {0: (CLIENT_ERROR, False)}, _then_nothing_is_stored("sl")),
    "memcache: monitor no args": Difference(2, _REASON_AND_STAYS),
    "memcache: monitor one arg": Difference(2, _REASON_AND_STAYS),
    "memcache: monitor slash key": Difference(2, _REASON_AND_STAYS),
    "memcache: quiescent: monitor": Difference(2, {0: (SERVER_ERROR, True)}),
    "memcache: flush_expired no arg": Difference(2, _REASON_AND_STAYS),
    # The two bytes after the data of a set.
    "memcache: set data shorter": Difference(3, {1: (CLIENT_ERROR, True)}, _then_nothing_is_stored("q7")),
    "memcache: double space in set": Difference(3, {0: (CLIENT_ERROR, True)}, _then_nothing_is_stored("dd")),
    # Open reads return in the order of taking.
    "memcache: two open then disconnect: order seen by another": Difference(
        4, {6: (_value("q48", "1"), False), 7: (_value("q48", "2"), False)}
    ),
    # The disconnect of a monitoring client is noticed at once.
    "memcache: monitor disconnect mid-way returns items": Difference(6, {3: (_value("q93", "1"), False)}),
    "text: spaces line": Difference(2, {0: ("-Unknown command: \n", False), 1: (TEXT_VERSION, False)}),
    "text: put illegal a.b": Difference(
        2,
        {
            0: ("-a queue name cannot hold / ~ . white space or control characters\n", False),
            1: (TEXT_VERSION, False),
        },
    ),
    # Bytes are unchanged, and an expiry of 0 means never.
    "text: put latin1 high bytes": Difference(9, {1: (":\xe9\xff\n", False)}),
    "text: put expiry 0": Difference(9, {2: (":a\n", False)}),
    # Requests behind a monitor are answered.
    "text: monitor pipelined": Difference(12, {1: (":a\n*\n" + TEXT_VERSION, False)}),
    # Commands that only the memcache protocol of Kestrel has.
    "text: abort? reload? stats?": Difference(14, {1: ("+0\n", False), 2: (":uptime 0\n*\n", False)}),
    # Names of more than 200 bytes.
    "memcache: long name 255": Difference(12, _REASON_AND_STAYS),
}

NEEDS: Final[dict[str, tuple[str, str]]] = {
    # Changes by conversations that were not recorded.
    "memcache: dump_stats two": ("set q102 0 0 5\r\nhello\r\n", "STORED\r\n"),
    "memcache: dump_stats trailing names of alias": (2 * "set al 0 0 1\r\nx\r\n", 2 * "STORED\r\n"),
    "memcache: quiescent: monitor": ("status Quiescent\r\n", "END\r\n"),
}
"""Requests and their replies that prepare the server for the conversation."""

QUEUES_WITH_OTHER_STATS: Final = {
    "q97": "here a flush brings no queue into being",
}
"""Queues whose lines of `stats` are not compared, and why."""
