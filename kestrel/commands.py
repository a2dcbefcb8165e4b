"""What a client can ask for: the values that every wire protocol makes of its bytes.

Plain slotted classes, because one is made for every request. Queue names are bytes as the client sent them
and are checked where a queue is looked up, not here.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any


class Command:
    """One request of one client."""

    __slots__ = ("call",)

    call: Any
    """What the codec that made the command wants to know again when it answers; only its own business."""


class Put(Command):
    """Append items to a queue.

    `expiry_ms` is 0 for never; counted from now when `expiry_is_relative` (then it may be negative: expired
    on arrival), else in milliseconds since the epoch. When an item is refused the next ones are tried all the same,
    unless `stops_at_refusal`.
    """

    __slots__ = ("expiry_is_relative", "expiry_ms", "items", "queue", "stops_at_refusal")

    def __init__(
        self,
        queue: bytes,
        items: Sequence[bytes],
        expiry_ms: int,
        expiry_is_relative: bool,
        *,
        stops_at_refusal: bool = False,
    ) -> None:
        self.queue = queue
        self.items = items
        self.expiry_ms = expiry_ms
        self.expiry_is_relative = expiry_is_relative
        self.stops_at_refusal = stops_at_refusal


class Get(Command):
    """Take or peek the head of a queue, and end the oldest open read before that.

    `wait_ms` <= 0 does not wait. `closes` confirms the connection's oldest open read of the queue first, `closes_all`
    all of them; `opens` leaves the item taken as an open read. `closes` without `opens`, and `aborts`, take nothing.
    `key` is the request as the client wrote it, for replies that echo it.
    """

    __slots__ = ("aborts", "closes", "closes_all", "key", "opens", "peeks", "queue", "wait_ms")

    def __init__(
        self,
        queue: bytes,
        wait_ms: int = 0,
        *,
        opens: bool = False,
        closes: bool = False,
        closes_all: bool = False,
        aborts: bool = False,
        peeks: bool = False,
        key: bytes = b"",
    ) -> None:
        self.queue = queue
        self.key = key or queue
        self.wait_ms = wait_ms
        self.opens = opens
        self.closes = closes
        self.closes_all = closes_all
        self.aborts = aborts
        self.peeks = peeks


class Monitor(Command):
    """Stream items as open reads until `wait_ms` have passed or `max_items` were sent.

    `max_items` None is the connection's limit of open reads; negative: only that limit and the time. `closes_all`
    confirms all that the connection has open of the queue first.
    """

    __slots__ = ("closes_all", "key", "max_items", "queue", "wait_ms")

    def __init__(self, queue: bytes, wait_ms: int, max_items: int | None, *, closes_all: bool = False) -> None:
        self.queue = self.key = queue
        self.wait_ms = wait_ms
        self.max_items = max_items
        self.closes_all = closes_all


class Confirm(Command):
    """Finish the `count` oldest open reads of this connection and queue, or none of them."""

    __slots__ = ("count", "queue")

    def __init__(self, queue: bytes, count: int) -> None:
        self.queue = queue
        self.count = count


class GetMany(Command):
    """Take items until there are `max_items`, or `wait_ms` have passed; <= 0 takes what is there.

    A negative `max_items` takes what one reply can hold. With `auto_abort_ms` > 0 each item is an open read with a
    number that any connection may confirm within that time; otherwise the items are gone for good.
    """

    __slots__ = ("auto_abort_ms", "max_items", "queue", "wait_ms")

    def __init__(self, queue: bytes, max_items: int, wait_ms: int = 0, auto_abort_ms: int = 0) -> None:
        self.queue = queue
        self.max_items = max_items
        self.wait_ms = wait_ms
        self.auto_abort_ms = auto_abort_ms


class _OpenReadIdsCommand(Command):
    __slots__ = ("ids", "queue")

    def __init__(self, queue: bytes, ids: Set[int]) -> None:
        self.queue = queue
        self.ids = ids


class ConfirmIds(_OpenReadIdsCommand):
    """Finish those open reads of a queue, by the numbers that `GetMany` gave out; others are passed over."""

    __slots__ = ()


class AbortIds(_OpenReadIdsCommand):
    """Return those open reads of a queue to its head, by the numbers that `GetMany` gave out."""

    __slots__ = ()


class RangeCommand(Command):
    """About reading a queue's items by their ids; `reader` is the name under which somebody does."""

    __slots__ = ("queue", "reader")

    def __init__(self, queue: bytes, reader: bytes) -> None:
        self.queue = queue
        self.reader = reader


class OpenRange(RangeCommand):
    """Keep the items until the reader releases them, and tell where a batch of `max_items` ends.

    It begins at `first_id`, or where <= 0 at the first that is not released; `max_items` <= 0 is all that there are.
    """

    __slots__ = ("first_id", "max_items")

    def __init__(self, queue: bytes, reader: bytes, first_id: int = 0, max_items: int = 0) -> None:
        super().__init__(queue, reader)
        self.first_id = first_id
        self.max_items = max_items


class ReadRange(RangeCommand):
    """The items from `first_id` on and below `end_id`; `max_bytes` <= 0 is what one reply can hold."""

    __slots__ = ("end_id", "first_id", "max_bytes")

    def __init__(self, queue: bytes, reader: bytes, first_id: int, end_id: int, max_bytes: int = 0) -> None:
        super().__init__(queue, reader)
        self.first_id = first_id
        self.end_id = end_id
        self.max_bytes = max_bytes


class ReleaseRange(RangeCommand):
    """All below `end_id` is done."""

    __slots__ = ("end_id",)

    def __init__(self, queue: bytes, reader: bytes, end_id: int) -> None:
        super().__init__(queue, reader)
        self.end_id = end_id


class CloseRange(RangeCommand):
    """Keep nothing for the reader any more."""

    __slots__ = ()


class _QueueCommand(Command):
    __slots__ = ("queue",)

    def __init__(self, queue: bytes) -> None:
        self.queue = queue


class Delete(_QueueCommand):
    """Forget a queue, its items, open reads and files."""

    __slots__ = ()


class Inspect(_QueueCommand):
    """Look at the head of a queue and at a few of its figures."""

    __slots__ = ()


class Flush(_QueueCommand):
    """Drop every item of a queue that is not an open read."""

    __slots__ = ()


class FlushExpired(_QueueCommand):
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


class Upgrade(Command):
    """The codec speaks otherwise from here on: let the client know."""

    __slots__ = ()


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


class OtherProtocol(Malformed):
    """A line of another protocol, such as HTTP: refuse it, and hang up."""

    __slots__ = ()

    def __init__(self, protocol: str) -> None:
        super().__init__(f"this port does not speak {protocol}", closes=True)
