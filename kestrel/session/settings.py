"""A session's limits, and the interface to the server for commands about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from attrs import frozen
from twisted.internet.defer import Deferred

from kestrel.queues.status import ServerStatus


@frozen
class SessionSettings:
    """The limits of a connection.

    `max_open_reads` counts per connection and queue. `max_pipeline_bytes` bounds the bytes held for a connection: at
    that many reply bytes, no more of its requests run. With more request bytes behind a waiting command, the server
    closes the connection.

    The server closes a connection that sends no request for `client_timeout_ms`. It also closes one whose request, TLS
    handshake or close takes longer than `request_timeout_ms`. None means no limit.

    The incomplete requests of all connections take at most `max_total_request_bytes`. There are at most
    `max_connections`. A connection made beyond `refuse_writes_over` of them may not write, and beyond
    `refuse_reads_over` not read. None means no limit.

    `traces_sessions` logs when a session opens and closes. Only `administrators` may send commands about the server.
    None means all clients.
    """

    max_open_reads: int = 1
    max_pipeline_bytes: int = 1024 * 1024
    client_timeout_ms: int | None = None
    request_timeout_ms: int | None = 120_000
    max_total_request_bytes: int = 256 * 1024 * 1024
    max_connections: int = 20_000
    refuse_writes_over: int | None = None
    refuse_reads_over: int | None = None
    traces_sessions: bool = False
    administrators: tuple[bytes, ...] | None = None

    def is_administrator(self, identity: bytes | None, *, is_trusted: bool) -> bool:
        """Return True if a client named `identity` may send commands about the server. A trusted client always may."""
        return self.administrators is None or is_trusted or identity in self.administrators


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
