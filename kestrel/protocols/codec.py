"""What wire protocols can do: the faces that a session sees."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from attrs import frozen

from kestrel.commands import Command, Get, GetMany, Inspect, Monitor, Put

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


class Codec(Protocol):
    """Bytes to commands and results to bytes, for one connection. No I/O, no time, no Twisted.

    The encoders are given the command that is answered, since a protocol may word the same result differently.
    """

    def receive(self, data: bytes) -> None:
        """Take in what the network brought; nothing is parsed yet."""

    def end(self) -> None:
        """The connection is gone: hold nothing any more."""

    def next_command(self) -> Command | None:
        """The next request, or None until more bytes arrive. Never raises: bad bytes are a `Malformed`."""

    def __len__(self) -> int:
        """How many bytes are held that no command was made of yet."""

    def stored(self, command: Put, count: int) -> bytes:
        """So many items of a put went in."""

    def done(self, command: Command) -> bytes:
        """A command that has nothing to tell went well. Empty: it has no reply, and the connection ends."""

    def number(self, command: Command, value: int) -> bytes:
        """A bare number."""

    def version(self, command: Command, version: str) -> bytes:
        """Which release answers."""

    def status(self, command: Command, name: str) -> bytes:
        """The server's status."""

    def error(self, command: Command, error: Exception) -> tuple[bytes, bool]:
        """How that error is said, and whether the connection ends with it."""


class ItemCodec(Codec, Protocol):
    """A protocol that has `Get` and `Monitor`."""

    def item(self, command: Get | Monitor, data: bytes) -> bytes:
        """An item that was taken or peeked."""

    def no_item(self, command: Get | Monitor) -> bytes:
        """There was no item, or no further one."""


class FiguresCodec(Codec, Protocol):
    """A protocol that has `Stats`, `DumpStats` or `DumpConfig`."""

    def stats(self, command: Command, stats: Iterable[Stat]) -> bytes:
        """Lines of statistics."""

    def dump_stats(self, command: Command, queues: Iterable[tuple[bytes, Sequence[Stat]]]) -> bytes:
        """Statistics in one block per queue; of a queue that does not exist the block is empty."""


class ManyCodec(Codec, Protocol):
    """A protocol that has `GetMany` and `Inspect`."""

    max_reply_items: int
    """How many items one reply may have."""
    max_reply_bytes: int
    """What they may take together, each with `ITEM_BYTES` besides its data; but a reply always has room for one."""

    def items(self, command: GetMany, items: Sequence[tuple[bytes, int]]) -> bytes:
        """Items that were taken, each with the number of its open read, or 0."""

    def queue_info(self, command: Inspect, info: QueueInfo) -> bytes:
        """A queue at a glance."""


ITEM_BYTES: Final = 32
"""More than any protocol adds to an item's data."""
