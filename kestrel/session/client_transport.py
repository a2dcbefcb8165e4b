"""What a session needs of the connection below it."""

from __future__ import annotations

from abc import ABC, abstractmethod


class ClientTransport(ABC):
    """The way to one client, whatever its transport."""

    @property
    @abstractmethod
    def peer(self) -> str:
        """Who that is, for the log."""

    @abstractmethod
    def peer_has_closed(self) -> bool:
        """Whether the client's last byte was read, and it has left, which nobody was told of yet. False if unknown."""

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Hand replies to the transport."""

    @abstractmethod
    def close_when_sent(self) -> None:
        """Hang up when everything written has left."""

    @abstractmethod
    def abort(self) -> None:
        """Drop the connection with whatever it is owed."""

    @abstractmethod
    def set_reading(self, is_wanted: bool) -> None:
        """Read from the client, or not for a while."""
