"""The commands of clients: every wire protocol parses its requests into these values.

They are plain slotted classes, because one is made for every request. Queue names are bytes as the client sent them.
They are checked where a queue is looked up, not here.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any, Final

from mypy_extensions import mypyc_attr


@mypyc_attr(acyclic=True)
class Command:
    """One request of a client."""

    __slots__ = ("call",)

    call: Any
    """Data of the codec that made the command, for its reply."""


@mypyc_attr(acyclic=True)
class OptionalReplyCommand(Command):
    """A command that the client may send without expecting a reply.

    Without `wants_reply` neither the result nor an error is sent to the client.
    """

    __slots__ = ("wants_reply",)

    wants_reply: bool


@mypyc_attr(acyclic=True, free_list_len=1)
class Put(OptionalReplyCommand):
    """Append items to a queue.

    `expiry_ms` is 0 for never. With `expiry_is_relative` it counts from now, and a negative value means expired on
    arrival. Otherwise it is in milliseconds since the epoch. After a refused item the next ones are still tried, unless
    `stops_at_refusal`.
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
        wants_reply: bool = True,
    ) -> None:
        self.queue = queue
        self.items = items
        self.expiry_ms = expiry_ms
        self.expiry_is_relative = expiry_is_relative
        self.stops_at_refusal = stops_at_refusal
        self.wants_reply = wants_reply


MAX_DELAY_MS: Final = 10 * 365 * 86_400_000
"""Limit of a delay: ten years."""


class DelayedPut(Put):
    """Append items to a queue `delay_ms` from now, 1 to `MAX_DELAY_MS`. Until then they are not visible in it."""

    __slots__ = ("delay_ms",)

    def __init__(
        self,
        queue: bytes,
        items: Sequence[bytes],
        expiry_ms: int,
        expiry_is_relative: bool,
        delay_ms: int,
        *,
        stops_at_refusal: bool = False,
        wants_reply: bool = True,
    ) -> None:
        super().__init__(
            queue,
            items,
            expiry_ms,
            expiry_is_relative,
            stops_at_refusal=stops_at_refusal,
            wants_reply=wants_reply,
        )
        self.delay_ms = delay_ms


class Get(Command):
    """Take or peek the head of a queue, or only end an open read.

    `closes` first confirms the connection's oldest open read of the queue, `closes_all` all of them. `aborts` puts the
    oldest one back. `closes` without `opens`, and `aborts`, take nothing. `opens` takes the item as an open read, and
    `peeks` leaves it in the queue. `wait_ms` <= 0 does not wait. `key` is the request as the client wrote it, for
    replies that echo it.
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
    """Stream items as open reads until `wait_ms` have passed or `max_items` are sent.

    A `max_items` of None is the connection's limit of open reads. With a negative one, only that limit and the time
    apply. `closes_all` first confirms all open reads that the connection has of the queue.
    """

    __slots__ = ("closes_all", "key", "max_items", "queue", "wait_ms")

    def __init__(self, queue: bytes, wait_ms: int, max_items: int | None, *, closes_all: bool = False) -> None:
        self.queue = self.key = queue
        self.wait_ms = wait_ms
        self.max_items = max_items
        self.closes_all = closes_all


class Confirm(Command):
    """Confirm the `count` oldest open reads of this connection and queue, or none of them."""

    __slots__ = ("count", "queue")

    def __init__(self, queue: bytes, count: int) -> None:
        self.queue = queue
        self.count = count


class GetMany(Command):
    """Take items until there are `max_items` or `wait_ms` have passed. A `wait_ms` <= 0 does not wait.

    A negative `max_items` takes what one reply can hold. With `auto_abort_ms` > 0, each item is an open read with an id
    that any connection may confirm within that time. Otherwise the items are removed.
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
    """Confirm open reads of a queue by the ids from `GetMany`. Unknown ids are ignored."""

    __slots__ = ()


class AbortIds(_OpenReadIdsCommand):
    """Abort open reads of a queue by the ids from `GetMany`, which puts them back at its head."""

    __slots__ = ()


class RangeCommand(Command):
    """A command that reads a queue's items by their ids. `reader` is the name of the reader."""

    __slots__ = ("queue", "reader")

    def __init__(self, queue: bytes, reader: bytes) -> None:
        self.queue = queue
        self.reader = reader


class OpenRange(RangeCommand):
    """Keep items until the reader releases them, and reply with the end of a batch of `max_items`.

    The batch begins at `first_id`, or at the first unreleased item if that is <= 0. A `max_items` <= 0 means all items.
    """

    __slots__ = ("first_id", "max_items")

    def __init__(self, queue: bytes, reader: bytes, first_id: int = 0, max_items: int = 0) -> None:
        super().__init__(queue, reader)
        self.first_id = first_id
        self.max_items = max_items


class ReadRange(RangeCommand):
    """Read the items from `first_id` to below `end_id`. A `max_bytes` <= 0 means what one reply can hold."""

    __slots__ = ("end_id", "first_id", "max_bytes")

    def __init__(self, queue: bytes, reader: bytes, first_id: int, end_id: int, max_bytes: int = 0) -> None:
        super().__init__(queue, reader)
        self.first_id = first_id
        self.end_id = end_id
        self.max_bytes = max_bytes


class ReleaseRange(RangeCommand):
    """Release all items below `end_id`."""

    __slots__ = ("end_id",)

    def __init__(self, queue: bytes, reader: bytes, end_id: int) -> None:
        super().__init__(queue, reader)
        self.end_id = end_id


class CloseRange(RangeCommand):
    """Stop keeping items for the reader."""

    __slots__ = ()


class _QueueCommand(Command):
    __slots__ = ("queue",)

    def __init__(self, queue: bytes) -> None:
        self.queue = queue


class Delete(OptionalReplyCommand):
    """Delete a queue, its items, open reads and files."""

    __slots__ = ("queue",)

    def __init__(self, queue: bytes, *, wants_reply: bool = True) -> None:
        self.queue = queue
        self.wants_reply = wants_reply


class Inspect(_QueueCommand):
    """Return the head of a queue and some of its figures."""

    __slots__ = ()


class ListQueues(Command):
    """Return the names of all queues."""

    __slots__ = ()


class Flush(_QueueCommand):
    """Drop every item of a queue that is not an open read."""

    __slots__ = ()


class FlushExpired(_QueueCommand):
    """Drop the expired items at the head of a queue."""

    __slots__ = ()


class FlushAll(OptionalReplyCommand):
    """Flush every queue."""

    __slots__ = ()

    def __init__(self, *, wants_reply: bool = True) -> None:
        self.wants_reply = wants_reply


class FlushAllExpired(Command):
    """Drop the expired items at the head of every queue."""

    __slots__ = ()


class Version(Command):
    """Return the server's version."""

    __slots__ = ()


class Stats(Command):
    """Return the figures of the server, and of each queue and alias."""

    __slots__ = ()


class DumpStats(Command):
    """Return the figures of the named queues and aliases, or of all of them."""

    __slots__ = ("queues",)

    def __init__(self, queues: Sequence[bytes]) -> None:
        self.queues = queues


class DumpConfig(Command):
    """Return the settings of the named queues and aliases, or of all of them."""

    __slots__ = ("queues",)

    def __init__(self, queues: Sequence[bytes]) -> None:
        self.queues = queues


class Reload(Command):
    """Read the configuration again."""

    __slots__ = ()


class Status(Command):
    """Return the server's status, or change it to `new_status`, which is as the client wrote it."""

    __slots__ = ("new_status",)

    def __init__(self, new_status: bytes | None = None) -> None:
        self.new_status = new_status


class Upgrade(Command):
    """Acknowledge that the codec uses an upgraded protocol from here on."""

    __slots__ = ()


class Help(Command):
    """Return the commands of the protocol."""

    __slots__ = ()


class Quit(Command):
    """Close the connection."""

    __slots__ = ()


class Shutdown(Command):
    """Stop the server in an orderly way."""

    __slots__ = ()


class Malformed(OptionalReplyCommand):
    """An invalid request. The reply is the reason. With `closes`, the stream is out of step, and the connection is
    closed.
    """

    __slots__ = ("closes", "reason")

    def __init__(self, reason: str, *, closes: bool, wants_reply: bool = True) -> None:
        self.reason = reason
        self.closes = closes
        self.wants_reply = wants_reply


class OtherProtocol(Malformed):
    """A line of another protocol, such as HTTP, which is refused."""

    __slots__ = ()

    def __init__(self, protocol: str) -> None:
        super().__init__(f"this port does not speak {protocol}", closes=True)
