"""What a session needs from outside: its limits, and the server's own commands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from attrs import frozen
from twisted.internet.defer import Deferred

from kestrel.queues.status import ServerStatus


@frozen
class SessionSettings:
    """The limits of one connection.

    `max_open_reads` counts per connection and queue; `max_pipeline_bytes` is how much may be held for one
    connection: of replies, before no more of its requests are carried out; of requests behind one that waits, before
    it is hung up on. One that asks for nothing for `client_timeout_ms` is hung up on, and so is one whose request, TLS
    handshake or end takes longer than `request_timeout_ms` (None: never). Requests that have not come whole take at
    most `max_total_request_bytes`, of all connections together. There are at most `max_connections`. A connection that
    makes more than `refuse_writes_over` of them is refused its writes, and so for reads (None: no limit).
    `traces_sessions` logs when a session opens and closes. `administrators` alone may give commands about the server
    (None: everyone).
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
        """Whether a client of that name may give commands about the server; one of a trusted endpoint always may."""
        return self.administrators is None or is_trusted or identity in self.administrators


class ServerControl(Protocol):
    """What a client can ask of the server as a whole."""

    version: str
    @property
    def status(self) -> ServerStatus:
        """What the server takes at present."""

    def uptime_s(self) -> int:
        """Seconds since the start."""

    def reload(self) -> Deferred[None]:
        """Read the configuration again; fails with a `KestrelError` and keeps the old one when it is wrong."""

    def iter_config(self, names: Sequence[bytes]) -> Iterator[tuple[bytes, list[tuple[str, str]]]]:
        """Yield the settings of these queues and aliases, or of all when none is given, as they are shown."""

    def shutdown(self) -> None:
        """Begin an orderly stop."""
