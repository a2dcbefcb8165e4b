"""The list of connected clients: their names, requests, open reads and traffic, and the queues that they wait for."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from kestrel.admin.request_response import AdminRequest, AdminResponse, json_bytes, json_list
from kestrel.admin.server_view import ServerView
from kestrel.escaping import show_name
from kestrel.net.connection import Connection

COLUMNS: Final = (
    "address",
    "protocol",
    "client",
    "requests",
    "open_reads",
    "waits_for",
    "bytes_in",
    "bytes_out",
    "unsent_bytes",
    "silent_msec",
)
"""`client` is the name in the certificate, or the one that a thrift client claims. Values that do not apply are None.
"""

CONNECTIONS_PER_PIECE: Final = 64

CONNECTIONS_PER_RESPONSE: Final = 256
"""Number of listed connections after which a response ends."""


def connections(server_view: ServerView, request: AdminRequest) -> AdminResponse:
    """Return a list of the values of `COLUMNS` for each connection, from number `first` on.

    With `queue`, list only the clients that wait for that queue or have open reads of it. `next` is the number to
    continue at, or None.
    """
    return AdminResponse(_pieces(server_view, request.number("first", 0), request.one("queue")))


def _pieces(server_view: ServerView, first: int, queue: bytes | None) -> Iterator[bytes]:
    connected = server_view.manager.counters.curr_connections
    page = _Page(islice(server_view.core.iter_connections(), first, None), queue)
    yield json_bytes({"connected": connected, "columns": COLUMNS})[:-1] + b',"connections":'
    yield from json_list(page.parts())
    end = first + page.seen
    yield b',"next":' + json_bytes(end if end < connected else None) + b"}"


class _Page:
    """The rows of one response."""

    def __init__(self, rest: Iterator[tuple[str, Connection]], queue: bytes | None) -> None:
        self._rest = rest
        self._queue = queue
        self.seen = 0
        """Number of connections that have been looked at."""

    def parts(self) -> Iterator[list[list[object]]]:
        listed = 0
        while listed < CONNECTIONS_PER_RESPONSE and (some := list(islice(self._rest, CONNECTIONS_PER_PIECE))):
            self.seen += len(some)
            rows = [_row(protocol, each) for protocol, each in some if self._queue is None or _uses(each, self._queue)]
            listed += len(rows)
            yield rows


def _uses(connection: Connection, queue: bytes) -> bool:
    session = connection.session
    open_reads = session.open_reads.count(queue) + session.lease_counts.of(queue)
    return open_reads > 0 or session.awaited_queue == queue


def _row(protocol: str, connection: Connection) -> list[object]:
    session = connection.session
    identity, awaited = session.access.identity, session.awaited_queue
    traffic = _traffic(connection.handle())
    return [
        session.peer,
        protocol,
        None if identity is None else show_name(identity),
        session.commands_done,
        session.open_reads.total() + session.lease_counts.total(),
        None if awaited is None else show_name(awaited),
        traffic.bytes_in,
        traffic.bytes_out,
        session.outbox.held_bytes,
        traffic.silent_ms,
    ]


class _Traffic(NamedTuple):
    """The traffic of a connection, or None where it is unknown."""

    bytes_in: int | None = None
    bytes_out: int | None = None
    silent_ms: int | None = None
    """Time since the client sent its last bytes."""


_TCP_INFO: Final = struct.Struct("=52xI64xQQ")
"""The fields tcpi_last_data_recv, tcpi_bytes_acked and tcpi_bytes_received of Linux's `struct tcp_info`."""


def _traffic(handle: socket.socket | None) -> _Traffic:
    """Return the kernel's figures of a TCP connection, so that sessions need not count bytes for each request."""
    if handle is None:
        return _Traffic()
    try:
        info = handle.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        silent_ms, bytes_out, bytes_in = _TCP_INFO.unpack(info)
    except (OSError, struct.error):  # a Unix socket, one that was closed just now, or an old kernel
        return _Traffic()
    return _Traffic(bytes_in, bytes_out, silent_ms)
