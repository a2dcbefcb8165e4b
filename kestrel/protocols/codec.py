"""What wire protocols can do: the faces that a session sees."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Final

from attrs import frozen
from mypy_extensions import mypyc_attr

from kestrel.commands import Command, Get, GetMany, Inspect, Monitor, Put, RangeCommand
from kestrel.item import Item

Stat = tuple[str, object]
"""One line of statistics: its name and its value."""


@frozen
class QueueInfo:
    """A queue at a glance. Sizes are bytes; `age_ms` is how long the head has been in the queue."""

    head: bytes | None = None
    items: int = 0
    bytes: int = 0
    journal_bytes: int = 0
    age_ms: int = 0
    waiters: int = 0
    open_reads: int = 0


@frozen
class RangeState:
    """How far a reader by ids is. `end_id` is where its next batch ends; it begins at `first_id` or where it asked."""

    first_id: int
    """The lowest id that it has not released."""
    next_id: int
    """The id of the next item that becomes safe."""
    end_id: int


@mypyc_attr(allow_interpreted_subclasses=True)
class Codec(ABC):
    """Bytes to commands and results to bytes, for one connection. No I/O, no time, no Twisted.

    The encoders are given the command that is answered, since a protocol may word the same result differently.
    """

    client_id: bytes | None = None
    """The name that the client gave itself with its last request, where the protocol has one. Anyone may say that."""

    @abstractmethod
    def receive(self, data: bytes) -> None:
        """Take in what the network brought; nothing is parsed yet."""

    @abstractmethod
    def end(self) -> None:
        """The connection is gone: hold nothing any more."""

    @abstractmethod
    def next_command(self) -> Command | None:
        """The next request, or None until more bytes arrive. Never raises: bad bytes are a `Malformed`."""

    @abstractmethod
    def __len__(self) -> int:
        """How much is held, in bytes, that no command was made of yet. It is 0 only between requests."""

    @abstractmethod
    def stored(self, command: Put, count: int) -> bytes:
        """So many items of a put went in."""

    @abstractmethod
    def done(self, command: Command) -> bytes:
        """A command that has nothing to tell went well. Empty: it has no reply, and the connection ends."""

    @abstractmethod
    def number(self, command: Command, value: int) -> bytes:
        """A bare number."""

    @abstractmethod
    def version(self, command: Command, version: str) -> bytes:
        """Which release answers."""

    @abstractmethod
    def status(self, command: Command, name: str) -> bytes:
        """The server's status."""

    @abstractmethod
    def error(self, command: Command, error: Exception) -> tuple[bytes, bool]:
        """How that error is said, and whether the connection ends with it."""


@mypyc_attr(allow_interpreted_subclasses=True)
class LineCodec(Codec):
    """A protocol that has `Get` and `Monitor`, and `Stats`, `DumpStats` and `DumpConfig`."""

    @abstractmethod
    def item(self, command: Get | Monitor, data: bytes) -> bytes:
        """An item that was taken or peeked."""

    @abstractmethod
    def no_item(self, command: Get | Monitor) -> bytes:
        """There was no item, or no further one."""

    @abstractmethod
    def stats(self, command: Command, stats: Iterable[Stat]) -> bytes:
        """Lines of statistics; others may follow, and at last `end_of_list`."""

    @abstractmethod
    def dump_stats(self, command: Command, queue: bytes, stats: Sequence[Stat]) -> bytes:
        """The block of one queue; of one that does not exist it is empty. Others may follow, and `end_of_list`."""

    @abstractmethod
    def end_of_list(self, command: Command) -> bytes:
        """What stands behind the last line of a list."""


@mypyc_attr(allow_interpreted_subclasses=True)
class GetManyCodec(Codec):
    """A protocol that has `GetMany` and `Inspect`."""

    max_reply_items: int
    """How many items one reply may have."""
    max_reply_bytes: int
    """Limit of all items together, each with its data and `ITEM_OVERHEAD_BYTES`. One item always fits."""

    @abstractmethod
    def items(self, command: GetMany, items: Sequence[tuple[bytes, int]]) -> bytes:
        """Items that were taken, each with the number of its open read, or 0."""

    @abstractmethod
    def queue_info(self, command: Inspect, info: QueueInfo) -> bytes:
        """A queue at a glance."""


@mypyc_attr(allow_interpreted_subclasses=True)
class RangeCodec(GetManyCodec):
    """A protocol that has the commands for ranges of ids."""

    @abstractmethod
    def range_state(self, command: RangeCommand, state: RangeState) -> bytes:
        """How far a reader is."""

    @abstractmethod
    def range_items(self, command: RangeCommand, items: Sequence[tuple[int, Item]]) -> bytes:
        """Items with their ids; each takes at most twice `ITEM_OVERHEAD_BYTES` besides its data."""


ITEM_OVERHEAD_BYTES: Final = 32
"""More than any protocol adds to an item's data."""
