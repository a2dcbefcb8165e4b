"""Interfaces of the wire protocols, as a session uses them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Final

from attrs import frozen
from mypy_extensions import mypyc_attr

from kestrel.commands import Command, Get, GetMany, Inspect, ListQueues, Monitor, Put, RangeCommand
from kestrel.item import Item
from kestrel.protocols.buffer import ReceiveBuffer

Stat = tuple[str, object]
"""The name and value of one figure."""


@frozen
class QueueInfo:
    """Some figures of a queue. Sizes are in bytes. `age_ms` is how long the head has been in the queue."""

    head: bytes | None = None
    items: int = 0
    bytes: int = 0
    journal_bytes: int = 0
    age_ms: int = 0
    waiters: int = 0
    open_reads: int = 0


@frozen
class RangeState:
    """The position of a reader by ids. Its next batch ends at `end_id`."""

    first_id: int
    """The lowest id that is not released."""
    next_id: int
    """The id of the next item."""
    end_id: int


@mypyc_attr(allow_interpreted_subclasses=True)
class Codec(ABC):
    """A codec between bytes and commands or results, for one connection. It does no I/O and imports no Twisted.

    Its encoders get the command that is answered, since protocols encode the same result differently for some commands.
    A codec has the encoders of the commands that it makes.
    """

    client_id: bytes | None = None
    """The name that the client claimed in its last request, if the protocol has one. It is not verified."""
    max_reply_items: int
    """Limit of items in one reply, if the protocol has such replies."""
    max_reply_bytes: int
    """Limit of all items in a reply, each with its data and `ITEM_OVERHEAD_BYTES`. One item always fits."""

    def __init__(self) -> None:
        self.buffer = ReceiveBuffer()
        """Received bytes that are not parsed yet. Without any, there is no next command."""

    def end(self) -> None:
        """Drop all held bytes and those that follow: the connection ends, or the stream is out of step."""
        self.buffer.close()

    @abstractmethod
    def next_command(self) -> Command | None:
        """Return the next command, or None until more bytes arrive. Invalid bytes yield a `Malformed`, never an
        exception.
        """

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of held bytes that are not parsed yet. It is 0 only between requests."""

    @abstractmethod
    def stored(self, command: Put, count: int) -> bytes:
        """Encode the number of items that a put stored."""

    @abstractmethod
    def done(self, command: Command) -> bytes:
        """Encode the success of a command without a result. Empty if it has no reply and the connection is closed."""

    @abstractmethod
    def number(self, command: Command, value: int) -> bytes:
        """Encode a number that is the result of a command."""

    @abstractmethod
    def version(self, command: Command, version: str) -> bytes:
        """Encode the server's version."""

    @abstractmethod
    def status(self, command: Command, name: str) -> bytes:
        """Encode the server's status."""

    @abstractmethod
    def error(self, command: Command, error: Exception) -> tuple[bytes, bool]:
        """Return an encoded error, and whether the connection must be closed after it."""

    # Results of commands that only memcache and text have.

    def item(self, command: Get | Monitor, data: bytes) -> bytes:
        """Encode an item that was taken or peeked."""
        raise NotImplementedError

    def no_item(self, command: Get | Monitor) -> bytes:
        """Encode that there is no item, or no further one."""
        raise NotImplementedError

    def stats(self, command: Command, stats: Iterable[Stat]) -> bytes:
        """Encode some figures. More may follow, and `end_of_list` ends them."""
        raise NotImplementedError

    def dump_stats(self, command: Command, queue: bytes, stats: Sequence[Stat]) -> bytes:
        """Encode the figures or settings of one queue or alias. `stats` is empty if it is missing.

        Those of other queues may follow, and `end_of_list` ends them.
        """
        raise NotImplementedError

    def help(self) -> bytes:
        """Encode the commands of the protocol, for a person who types them."""
        raise NotImplementedError

    def end_of_list(self, command: Command) -> bytes:
        """Encode the end of a list."""
        raise NotImplementedError

    # Results of commands that only thrift has.

    def items(self, command: GetMany, items: Sequence[tuple[bytes, int]]) -> bytes:
        """Encode items that were taken, each with the id of its open read, or 0."""
        raise NotImplementedError

    def queue_info(self, command: Inspect, info: QueueInfo) -> bytes:
        """Encode some figures of a queue."""
        raise NotImplementedError

    def queue_names(self, command: ListQueues, names: Sequence[bytes]) -> bytes:
        """Encode names of queues."""
        raise NotImplementedError

    def range_state(self, command: RangeCommand, state: RangeState) -> bytes:
        """Encode the position of a reader."""
        raise NotImplementedError

    def range_items(self, command: RangeCommand, items: Sequence[tuple[int, Item]]) -> bytes:
        """Encode items with their ids. Each takes at most twice `ITEM_OVERHEAD_BYTES` in addition to its data."""
        raise NotImplementedError


ITEM_OVERHEAD_BYTES: Final = 32
"""Upper bound of the bytes that a protocol adds to an item's data."""
