"""Detection of clients that vanished without closing their connection (keepAlive)."""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Final

from twisted.internet.interfaces import IReactorTime

from kestrel.net.connection import Connection
from kestrel.queues.timer import Timer

KEEPALIVE_PROBES: Final = 4
"""Number of unanswered probes after which a connection is closed."""
CONNECTIONS_PER_CHECK: Final = 500

TCP_INFO: Final[int | None] = getattr(socket, "TCP_INFO", None) if sys.platform == "linux" else None
_INFO: Final = struct.Struct("=2x2B52xI")
"""Fields of the system's struct tcp_info: unanswered retransmissions and probes, and ms since the last answer."""

MAX_KEEPALIVE_S: Final = 32_767
"""Longest keepalive time of Linux, about nine hours."""


def enable_tcp_keepalive(listening: socket.socket, silent_ms: int | None) -> None:
    """Enable TCP keepalive for connections accepted on a socket, after `silent_ms` of silence. None disables it.

    Probes are sent for the same time again before the system closes the connection. Times above the system's maximum
    are reduced to it. Accepted TCP connections inherit these settings from the listening socket.
    """
    if listening.family not in (socket.AF_INET, socket.AF_INET6):
        return
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, silent_ms is not None)
    if silent_ms is None:
        return
    silent_s = min(max(1, round(silent_ms / 1000)), MAX_KEEPALIVE_S)
    for option, value in (
        (getattr(socket, "TCP_KEEPIDLE", None), silent_s),
        (getattr(socket, "TCP_KEEPINTVL", None), max(1, round(silent_s / KEEPALIVE_PROBES))),
        (getattr(socket, "TCP_KEEPCNT", None), KEEPALIVE_PROBES),
    ):
        if option is not None:  # without the option, the system's default applies
            listening.setsockopt(socket.IPPROTO_TCP, option, value)


def peer_is_dead(connected: socket.socket, silent_ms: int) -> bool:
    """Return True if the client's system has not acknowledged sent data for twice `silent_ms`. False if unknown.

    TCP sends no keepalive probes while data is unacknowledged, and retransmits for about 15 minutes. A client that does
    not read is not dead: its system still answers.
    """
    if TCP_INFO is None or connected.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    try:
        info = connected.getsockopt(socket.IPPROTO_TCP, TCP_INFO, _INFO.size)
        retransmits, probes, last_answer_ms = _INFO.unpack(info)
    except (OSError, struct.error):
        return False
    return int(retransmits) + int(probes) >= KEEPALIVE_PROBES and int(last_answer_ms) >= 2 * silent_ms


class DeadPeerChecker:
    """A periodic check that drops connections whose client has vanished, in steps that do not block the reactor."""

    def __init__(
        self,
        clock: IReactorTime,
        connections: Callable[[], Sequence[Connection]],
        peer_is_dead: Callable[[socket.socket, int], bool] = peer_is_dead,
    ) -> None:
        self._timer = Timer(clock, self._look)
        self._connections = connections
        self._peer_is_dead = peer_is_dead
        self._silent_ms: int | None = None
        self._rest: list[Connection] = []

    def keep(self, silent_ms: int | None) -> None:
        """Check connections with this `keepAlive` time from now on. None stops the checks."""
        self._silent_ms = silent_ms
        self._rest = []
        if silent_ms is None:
            self._timer.stop()
        else:
            self._timer.start(silent_ms / 1000 / KEEPALIVE_PROBES)

    def _look(self) -> None:
        if self._silent_ms is None:
            return
        if not self._rest:
            self._rest = list(self._connections())
        now, self._rest = self._rest[:CONNECTIONS_PER_CHECK], self._rest[CONNECTIONS_PER_CHECK:]
        for connection in now:
            sock = connection.handle()
            if sock is not None and self._peer_is_dead(sock, self._silent_ms):
                connection.abort()
        self._timer.start(0 if self._rest else self._silent_ms / 1000 / KEEPALIVE_PROBES)
