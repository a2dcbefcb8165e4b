"""Splits a stream into replies, without what differs between two servers:

the reason after CLIENT_ERROR and SERVER_ERROR; versions; the figures of `stats` and `dump_stats` about time, journal
size or the whole server; the order of queues; and lines that the original does not have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

Stats = dict[str, str]


class Reply(NamedTuple):
    """A reply in a form that can be compared. `stats` are those of `dump_stats` and `stats`."""

    kind: bytes
    detail: bytes = b""
    stats: Stats | None = None


class Unfinished(Exception):
    """The stream ends within a reply."""


Parse = Callable[[bytes], tuple[Reply, bytes]]
"""A parser, which returns the first reply of a stream and the rest. Raises `Unfinished`."""

INCOMPARABLE_STATS: Final = frozenset({"age", "logsize"})
"""Figures of a queue that cannot be compared."""


def replies_in(stream: bytes, parse: Parse) -> tuple[list[Reply], bytes]:
    """Return the complete replies of a stream, and the incomplete one at its end."""
    replies = []
    while stream:
        try:
            reply, stream = parse(stream)
        except Unfinished:
            break
        replies.append(reply)
    return replies, stream


def _line(stream: bytes, end: bytes) -> tuple[bytes, bytes]:
    line, found, rest = stream.partition(end)
    if not found:
        raise Unfinished
    return line, rest


# memcache


def memcache(stream: bytes) -> tuple[Reply, bytes]:
    """Parse the first reply of a memcache stream."""
    line, rest = _line(stream, b"\r\n")
    word = line.partition(b" ")[0]
    match word:
        case b"VALUE":
            return _value(line, rest)
        case b"STAT":
            return _stats(stream)
        case b"queue":
            return _dump(stream)
        case b"VERSION" | b"CLIENT_ERROR" | b"SERVER_ERROR":
            return Reply(word), rest
    return Reply(line), rest


def _value(line: bytes, rest: bytes) -> tuple[Reply, bytes]:
    size = int(line.split(b" ")[3])
    end = b"\r\nEND\r\n"
    if len(rest) < size + len(end):
        raise Unfinished
    return Reply(line, rest[: size + len(end)]), rest[size + len(end) :]


def _stats(stream: bytes) -> tuple[Reply, bytes]:
    stats = {}
    while True:
        line, stream = _line(stream, b"\r\n")
        if line == b"END":
            return Reply(b"STAT", b"", stats), stream
        _, name, value = line.decode("latin-1").split(" ", 2)
        stats[name] = value


def _dump(stream: bytes) -> tuple[Reply, bytes]:
    """Parse one block of `dump_stats`. The END after the last one is a separate reply."""
    head, stream = _line(stream, b"\r\n")
    stats = {}
    while True:
        line, stream = _line(stream, b"\r\n")
        if line == b"}":
            return Reply(b"dump_stats", head, stats), stream
        name, _, value = line.removeprefix(b"  ").decode("latin-1").partition("=")
        stats[name] = value


# text


def text(stream: bytes) -> tuple[Reply, bytes]:
    """Parse the first reply of a text stream: a line, or those of `stats`. A line that looks like a version is one."""
    line, rest = _line(stream, b"\n")
    if line.startswith(b":uptime "):
        while line != b"*":
            line, rest = _line(rest, b"\n")
        return Reply(b":stats"), rest
    if line[:1] == b":" and line[1:].count(b".") >= 2:
        return Reply(b":version"), rest
    return Reply(line), rest


PARSERS: Final[dict[str, Parse]] = {"memcache": memcache, "text": text}


# Comparing


def differences(original: list[Reply], ours: list[Reply]) -> str | None:
    """Return None if the replies are equivalent, or a description of the difference."""
    if len(original) != len(ours):
        return f"{len(original)} replies, here {len(ours)}: {_shown(original)}, here {_shown(ours)}"
    for theirs, our in zip(original, ours, strict=True):
        if theirs[:2] != our[:2]:
            return f"{_shown([theirs])}, here {_shown([our])}"
        if theirs.stats is not None:
            assert our.stats is not None
            compare = _server_difference if theirs.kind == b"STAT" else queue_difference
            if (difference := compare(theirs.stats, our.stats)) is not None:
                return f"in {theirs.detail.decode()}: {difference}"
    return None


def queue_difference(original: Stats, ours: Stats) -> str | None:
    """Return the lines of the original first, in its order, with the figures that can be compared."""
    names = list(original)
    if list(ours)[: len(names)] != names:
        return f"lines {names}, here {list(ours)}"
    if len(ours) > len(names) and not any(names):
        return f"nothing, here {ours}"
    for name, value in original.items():
        if name == "children":
            if sorted(value.split(",")) != sorted(ours[name].split(",")):
                return f"{name}={value}, here {ours[name]}"
        elif name not in INCOMPARABLE_STATS and ours[name] != value:
            return f"{name}={value}, here {ours[name]}"
    return None


def _server_difference(original: Stats, ours: Stats) -> str | None:
    names = [name for name in original if not name.startswith("queue_") or name in _ABOUT_ALL_QUEUES]
    if list(ours)[: len(names)] != names:
        return f"lines {names}, here {list(ours)[: len(names)]}"
    return None


_ABOUT_ALL_QUEUES: Final = frozenset({"queue_creates", "queue_deletes", "queue_expires"})


def stats_of_queue(stats: Stats, queue: str) -> Stats:
    """Return the lines of `stats` about that queue, in the form of `dump_stats`."""
    prefix = f"queue_{queue}_"
    return {name.removeprefix(prefix): value for name, value in stats.items() if name.startswith(prefix)}


def _shown(replies: list[Reply]) -> str:
    whole = b" | ".join(reply.kind + b" " * bool(reply.detail) + reply.detail for reply in replies)
    return repr(whole if len(whole) <= 200 else whole[:200] + b"...")
