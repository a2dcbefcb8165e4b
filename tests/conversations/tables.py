"""What is not as it was recorded: our differences on purpose, and what is not served yet.

The numbers of the differences are those of docs/differences.md.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

VERSION: Final = "VERSION x.y.z\r\n"
CLIENT_ERROR: Final = "CLIENT_ERROR reason\r\n"


class Difference(NamedTuple):
    """Where we answer otherwise, and what.

    `answers` replaces, by the step's index, what was recorded: the reply and whether the server hangs up.
    `afterwards` are steps to play besides.
    """

    number: int
    answers: dict[int, tuple[str, bool]]
    afterwards: tuple[dict[str, Any], ...] = ()


class LeftOut(NamedTuple):
    """Conversations that cannot go as recorded before something is served; each tells of what went before it."""

    reason: str
    names: tuple[str, ...]


def _value(queue: str, item: str) -> str:
    return f"VALUE {queue} 0 {len(item)}\r\n{item}\r\nEND\r\n"


def _then_nothing_is_stored(queue: str) -> tuple[dict[str, Any], ...]:
    return ({"conn": 9, "send": f"get {queue}\r\n", "recv": "END\r\n", "closed": False},)


_REASON_AND_STAYS: Final = {0: (CLIENT_ERROR, False), 1: (VERSION, False)}
_REASON_AND_HANGS_UP: Final = {0: (CLIENT_ERROR, True)}

DIFFERENCES: Final[dict[str, Difference]] = {
    # A reason where the original hangs up without a word; and it hangs up only where the stream is out of step.
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
    "memcache: flush_expired no arg": Difference(2, _REASON_AND_STAYS),
    # The two bytes after the data of a set.
    "memcache: set data shorter": Difference(3, {1: (CLIENT_ERROR, True)}, _then_nothing_is_stored("q7")),
    "memcache: double space in set": Difference(3, {0: (CLIENT_ERROR, True)}, _then_nothing_is_stored("dd")),
    # Open reads come back in the order in which they were taken.
    "memcache: two open then disconnect: order seen by another": Difference(
        4, {6: (_value("q48", "1"), False), 7: (_value("q48", "2"), False)}
    ),
    # A monitoring client that disconnects is noticed at once.
    "memcache: monitor disconnect mid-way returns items": Difference(6, {3: (_value("q93", "1"), False)}),
    # Names over 200 bytes.
    "memcache: long name 255": Difference(12, _REASON_AND_STAYS),
}

NEEDS: Final[dict[str, str]] = {
    # A conversation that the recording lacks had stored this.
    "memcache: dump_stats two": "set q102 0 0 5\r\nhello\r\n",
}
"""What to send before, to have the queues as they were."""

THE_QUEUE_MANAGER: Final = "the queue manager"
THE_TEXT_PROTOCOL: Final = "the text protocol is not served yet"

LEFT_OUT: Final[tuple[LeftOut, ...]] = (
    LeftOut(f"{THE_QUEUE_MANAGER}: fanout", ("memcache: fanout: add to master",)),
    LeftOut(f"{THE_QUEUE_MANAGER}: fanout", ("memcache: fanout: three segments",)),
    LeftOut(f"{THE_QUEUE_MANAGER}: fanout", ("memcache: fanout: key x+",)),
    LeftOut(f"{THE_QUEUE_MANAGER}: maxItems", ("memcache: maxItems=1 full",)),
    LeftOut(f"{THE_QUEUE_MANAGER}: maxItemSize", ("memcache: maxItemSize=3",)),
    LeftOut(f"{THE_QUEUE_MANAGER}: discardOldWhenFull", ("memcache: discardOldWhenFull maxItems=2",)),
    LeftOut(f"{THE_QUEUE_MANAGER}: maxSize", ("memcache: maxSize=5",)),
    LeftOut(f"{THE_QUEUE_MANAGER}: maxAge", ("memcache: maxAge=300ms queue",)),
    LeftOut(f"{THE_QUEUE_MANAGER}: openTransactionTimeout", ("memcache: openTransactionTimeout=300ms",)),
    LeftOut(f"{THE_QUEUE_MANAGER}: aliases", ("memcache: dump_stats trailing names of alias",)),
    LeftOut(
        f"{THE_QUEUE_MANAGER}: status changes",
        (
            "memcache: status readonly",
            "memcache: readonly: get allowed",
            "memcache: readonly: flush",
            "memcache: readonly: flush_all",
            "memcache: readonly: flush_all_expired",
            "memcache: quiescent: monitor",
            "memcache: quiescent: dump_stats",
            "memcache: status writeavoid",
        ),
    ),
)
"""Of the protocols that are served. Those of one entry are played one after the other, and count as one."""

QUEUES_WITH_OTHER_STATS: Final = {
    "q105": f"{THE_QUEUE_MANAGER}: a parent's line with its children",
    "q97": "here a flush brings no queue into being",
}
"""Whose lines of `stats` are not compared, and why."""
