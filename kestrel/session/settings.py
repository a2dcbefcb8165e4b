"""What a session needs from outside: its limits, and the server's own commands."""

from __future__ import annotations

from typing import Protocol

from attrs import frozen


@frozen
class SessionSettings:
    """The limits of one connection.

    `max_open_reads` counts per connection and queue; `max_pipeline_bytes` is how much may be held for one
    connection: of replies, before no more of its requests are carried out; of requests behind one that waits, before
    it is hung up on. `traces_sessions`
    logs when a session opens and closes.
    """

    max_open_reads: int = 1
    max_pipeline_bytes: int = 1024 * 1024
    traces_sessions: bool = False


class ServerControl(Protocol):
    """What a client can ask of the server as a whole."""

    version: str

    def uptime_s(self) -> int:
        """Seconds since the start."""

    def reload(self) -> None:
        """Read the configuration again; raises a `KestrelError` and keeps the old one when it is wrong."""

    def shutdown(self) -> None:
        """Begin an orderly stop."""
