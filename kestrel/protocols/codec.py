"""What every wire protocol can do: the face that a session sees."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from kestrel.commands import Command, Get, Monitor

Stat = tuple[str, object]
"""One line of statistics: its name and its value."""


class Codec(Protocol):
    """Bytes to commands and results to bytes, for one connection. No I/O, no time, no Twisted.

    The encoders are given the command that is answered where a protocol words the same result differently.
    """

    def receive(self, data: bytes) -> None:
        """Take in what the network brought; nothing is parsed yet."""

    def next_command(self) -> Command | None:
        """The next request, or None until more bytes arrive. Never raises: bad bytes are a `Malformed`."""

    def __len__(self) -> int:
        """How many bytes are held that no command was made of yet."""

    def stored(self, count: int) -> bytes:
        """So many items of a put went in."""

    def item(self, command: Get | Monitor, data: bytes) -> bytes:
        """An item that was taken or peeked."""

    def no_item(self) -> bytes:
        """There was no item, or no further one."""

    def done(self, command: Command) -> bytes:
        """A command that has nothing to tell went well."""

    def number(self, value: int) -> bytes:
        """A bare number."""

    def version(self, version: str) -> bytes:
        """Which release answers."""

    def status(self, name: str) -> bytes:
        """The server's status."""

    def stats(self, stats: Iterable[Stat]) -> bytes:
        """Lines of statistics."""

    def dump_stats(self, queues: Iterable[tuple[bytes, Sequence[Stat]]]) -> bytes:
        """Statistics in one block per queue; of a queue that does not exist the block is empty."""

    def error(self, error: Exception) -> tuple[bytes, bool]:
        """How that error is said, and whether the connection ends with it."""
