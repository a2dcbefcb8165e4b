"""Interface between a session and its connection."""

from __future__ import annotations

from abc import ABC, abstractmethod


class ClientTransport(ABC):
    """The connection to one client, over any transport."""

    @property
    @abstractmethod
    def peer(self) -> str:
        """Name of the client for the log."""

    @abstractmethod
    def peer_has_closed(self) -> bool:
        """Return True if the client has disconnected but the session has not been told. False if unknown."""

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Pass replies to the transport."""

    @abstractmethod
    def close_when_sent(self) -> None:
        """Close the connection when all written bytes are sent."""

    @abstractmethod
    def abort(self) -> None:
        """Close the connection at once and drop unsent bytes."""

    @abstractmethod
    def set_reading(self, is_wanted: bool) -> None:
        """Start or pause reading from the client."""
