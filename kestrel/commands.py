"""What a client can ask for: the values that every wire protocol makes of its bytes.

Plain slotted classes, because one is made for every request. Queue names are bytes as the client sent them
and are checked where a queue is looked up, not here.
"""

from __future__ import annotations

from collections.abc import Sequence


class Command:
    """One request of one client."""

    __slots__ = ()


class Put(Command):
    """Append items to a queue.

    `expiry_ms` is 0 for never; counted from now when `expiry_is_relative` (then it may be negative: expired
    on arrival), else in milliseconds since the epoch.
    """

    __slots__ = ("expiry_is_relative", "expiry_ms", "items", "queue")

    def __init__(self, queue: bytes, items: Sequence[bytes], expiry_ms: int, expiry_is_relative: bool) -> None:
        self.queue = queue
        self.items = items
        self.expiry_ms = expiry_ms
        self.expiry_is_relative = expiry_is_relative


class Get(Command):
    """Take or peek the head of a queue, and end the oldest open read before that.

    `wait_ms` <= 0 does not wait. `closes` confirms the connection's oldest open read of the queue first,
    `opens` leaves the item taken as an open read. `closes` without `opens`, and `aborts`, take nothing.
    `key` is the request as the client wrote it, for replies that echo it.
    """

    __slots__ = ("aborts", "closes", "key", "opens", "peeks", "queue", "wait_ms")

    def __init__(
        self,
        queue: bytes,
        wait_ms: int = 0,
        *,
        opens: bool = False,
        closes: bool = False,
        aborts: bool = False,
        peeks: bool = False,
        key: bytes = b"",
    ) -> None:
        self.queue = queue
        self.key = key or queue
        self.wait_ms = wait_ms
        self.opens = opens
        self.closes = closes
        self.aborts = aborts
        self.peeks = peeks


class Monitor(Command):
    """Stream items as open reads until `wait_ms` have passed or `max_items` were sent.

    `max_items` None is the connection's limit of open reads; negative: only that limit and the time.
    """

    __slots__ = ("key", "max_items", "queue", "wait_ms")

    def __init__(self, queue: bytes, wait_ms: int, max_items: int | None) -> None:
        self.queue = self.key = queue
        self.wait_ms = wait_ms
        self.max_items = max_items


class Confirm(Command):
    """Finish the `count` oldest open reads of this connection and queue, or none of them."""

    __slots__ = ("count", "queue")

    def __init__(self, queue: bytes, count: int) -> None:
        self.queue = queue
        self.count = count


class _OfQueue(Command):
    __slots__ = ("queue",)

    def __init__(self, queue: bytes) -> None:
        self.queue = queue


class Delete(_OfQueue):
    """Forget a queue, its items, open reads and files."""

    __slots__ = ()


class Flush(_OfQueue):
    """Drop every item of a queue that is not an open read."""

    __slots__ = ()


class FlushExpired(_OfQueue):
    """Drop the expired items at the head of a queue."""

    __slots__ = ()


class FlushAll(Command):
    """Flush every queue."""

    __slots__ = ()


class FlushAllExpired(Command):
    """Drop the expired items at the head of every queue."""

    __slots__ = ()


class Version(Command):
    """Which release this is."""

    __slots__ = ()


class Stats(Command):
    """The server's counters, and each queue's."""

    __slots__ = ()


class DumpStats(Command):
    """The counters of these queues, or of all when none is named."""

    __slots__ = ("queues",)

    def __init__(self, queues: Sequence[bytes]) -> None:
        self.queues = queues


class DumpConfig(Command):
    """The settings of these queues and aliases, or of all when none is named."""

    __slots__ = ("queues",)

    def __init__(self, queues: Sequence[bytes]) -> None:
        self.queues = queues


class Reload(Command):
    """Read the configuration again."""

    __slots__ = ()


class Status(Command):
    """Ask for the server's status, or with `new_status` (as the client wrote it) change it."""

    __slots__ = ("new_status",)

    def __init__(self, new_status: bytes | None = None) -> None:
        self.new_status = new_status


class Quit(Command):
    """Hang up."""

    __slots__ = ()


class Shutdown(Command):
    """Stop the server in order."""

    __slots__ = ()


class Malformed(Command):
    """Bytes that are no request: answer with the reason and, where the stream is out of step, hang up."""

    __slots__ = ("closes", "reason")

    def __init__(self, reason: str, *, closes: bool) -> None:
        self.reason = reason
        self.closes = closes
