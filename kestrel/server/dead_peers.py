"""keepAlive: clients that went without a word are noticed."""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from twisted.internet.interfaces import IReactorTime

from kestrel.queues.timer import Timer

KEEPALIVE_PROBES: Final = 4
"""After so many questions without an answer the connection is closed."""
CONNECTIONS_PER_CHECK: Final = 500
"""So many connections are looked at in one go."""

TCP_INFO: Final[int | None] = getattr(socket, "TCP_INFO", None) if sys.platform == "linux" else None
_INFO: Final = struct.Struct("=2x2B52xI")
"""Of the system's struct tcp_info: retransmissions and probes without an answer, and milliseconds since the last."""

MAX_KEEPALIVE_S: Final = 32_767
"""Linux takes no longer one, of nine hours."""


def enable_tcp_keepalive(listening: socket.socket, silent_ms: int | None) -> None:
    """Have the system ask those who are accepted there from now on: after so long a silence, and for as long again.

    None: never. Longer than the system can it does not wait. Connections have these settings of the socket that they
    were accepted on, where they are TCP.
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
        if option is not None:  # elsewhere the system's own times hold
            listening.setsockopt(socket.IPPROTO_TCP, option, value)


def peer_is_dead(connected: socket.socket, silent_ms: int) -> bool:
    """Whether that client owes an answer to what was sent to it, and its system has given none for twice that time.

    While anything is unanswered the system asks for no sign of life: it sends again, for a quarter of an hour.
    A client that is there and does not read is another matter: its system answers.
    """
    if TCP_INFO is None or connected.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    try:
        info = connected.getsockopt(socket.IPPROTO_TCP, TCP_INFO, _INFO.size)
        retransmits, probes, last_answer_ms = _INFO.unpack(info)
    except (OSError, struct.error):
        return False
    return int(retransmits) + int(probes) >= KEEPALIVE_PROBES and int(last_answer_ms) >= 2 * silent_ms


class KeepAliveConnection(Protocol):
    """A connection."""

    def handle(self) -> socket.socket | None:
        """The system's end of it, if it has one."""

    def abort(self) -> None:
        """Drop it."""


class DeadPeerChecker:
    """Drops connections whose client has vanished. A few of them at a time, so that nobody waits for the rest."""

    def __init__(
        self,
        clock: IReactorTime,
        connections: Callable[[], Sequence[KeepAliveConnection]],
        peer_is_dead: Callable[[socket.socket, int], bool] = peer_is_dead,
    ) -> None:
        self._timer = Timer(clock, self._look)
        self._connections = connections
        self._peer_is_dead = peer_is_dead
        self._silent_ms: int | None = None
        self._rest: list[KeepAliveConnection] = []

    def keep(self, silent_ms: int | None) -> None:
        """From now on, with that `keepAlive`; None: look no more."""
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
