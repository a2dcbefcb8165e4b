"""The interface of a session to the server, for commands about the server as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from twisted.internet.defer import Deferred

from kestrel.queues.status import ServerStatus


class ServerControl(Protocol):
    """The operations on the whole server that a client can request."""

    version: str
    @property
    def status(self) -> ServerStatus:
        """Status that clients see and that gates reads and writes."""

    def uptime_s(self) -> int:
        """Return the seconds since the start."""

    def reload(self) -> Deferred[None]:
        """Read the configuration again. Fails with a `KestrelError` and keeps the old one if the new one is invalid."""

    def iter_config(self, names: Sequence[bytes]) -> Iterator[tuple[bytes, list[tuple[str, str]]]]:
        """Yield the name and the displayed settings of each named queue and alias, or of all of them without names."""

    def shutdown(self) -> None:
        """Begin an orderly stop."""
