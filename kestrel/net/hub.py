"""The hub: all plain TCP clients as a single descriptor of the reactor.

The hub keeps its connections in its own epoll set, which the reactor watches. So the reactor calls it once for all
ready connections. It serves them in one tick: it reads from each, lets the barrier commit, and sends the replies.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from twisted.internet.error import ConnectionLost
from twisted.internet.interfaces import IReadDescriptor
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import classImplements

from kestrel.net.hub_transport import BROKEN, PEER_ENDED, READABLE, WRITABLE, HubTransport

log = Logger(__name__)

IS_AVAILABLE: Final = hasattr(select, "epoll")
"""True on Linux, which has epoll."""

PEER_GONE: Final = BROKEN | PEER_ENDED

MAX_EVENTS_PER_TICK: Final = 128
"""Limit of connections served in one tick. The others come first in the next, because epoll rotates its ready list."""

TIME_SLICE_S: Final = 0.002
"""Time after which the reactor's timers and other descriptors are served."""


class Hub:
    """A reader of the reactor that serves its connections in ticks.

    `end_tick` follows each `begin_tick`, even after an error. `seconds` measures work. `schedule` calls a function soon
    on the reactor's thread.
    """

    def __init__(
        self,
        seconds: Callable[[], float],
        begin_tick: Callable[[], None],
        end_tick: Callable[[], None],
        schedule: Callable[[Callable[[], None]], Any],
    ) -> None:
        self._seconds = seconds
        self._begin_tick = begin_tick
        self._end_tick = end_tick
        self._schedule = schedule
        self._epoll = select.epoll()
        self._transports: dict[int, HubTransport] = {}
        self._ending: list[tuple[HubTransport, Failure]] = []
        self._is_working = False

    def __len__(self) -> int:
        return len(self._transports)

    def connect(self, sock: socket.socket, protocol: Any, peer: tuple[Any, ...]) -> HubTransport:
        """Return the transport of an accepted connection, which is read from now on."""
        transport = HubTransport(sock, protocol, peer, self._epoll, self._end_later)
        self._epoll.register(transport.descriptor, transport.interest)
        self._transports[transport.descriptor] = transport
        return transport

    def close(self, reason: Failure | None = None) -> None:
        """Close all connections and the epoll set. The reactor must have removed the hub. Safe during a tick."""
        if self._epoll.closed:
            return
        why = Failure(ConnectionLost()) if reason is None else reason
        for transport in list(self._transports.values()):
            self._end(transport, why)
        self._ending.clear()
        self._epoll.close()

    # IReadDescriptor.

    def fileno(self) -> int:
        """Return the epoll set's descriptor, which is readable when a connection is ready, or -1 when it is closed."""
        return -1 if self._epoll.closed else self._epoll.fileno()

    def logPrefix(self) -> str:
        return "hub"

    def connectionLost(self, reason: Failure) -> None:
        """Close the hub, because the reactor has removed it."""
        self.close(reason)

    def doRead(self) -> None:
        """Serve the ready connections, tick by tick, for about 2 ms."""
        ends_at = self._seconds() + TIME_SLICE_S
        self._is_working = True
        try:
            # the set is closed when the last client of a stop has gone, which may happen in this loop
            while not self._epoll.closed:
                events = self._epoll.poll(0, MAX_EVENTS_PER_TICK)
                if not events and not self._ending:
                    break
                self._tick(events, ends_at)
                if self._seconds() >= ends_at:
                    break
        except BaseException:  # an exception here would make the reactor drop the hub with all connections
            log.failure("A tick of the hub failed")
        self._is_working = False
        if self._ending:
            self._schedule(self.doRead)

    # Ticks.

    def _tick(self, events: list[tuple[int, int]], ends_at: float) -> None:
        transports = self._transports
        self._begin_tick()
        try:
            if self._ending:
                self._end_pending()
            for fd, flags in events:
                if flags & PEER_GONE:  # first, so that their open reads are available to the requests of this tick
                    transport = transports.get(fd)
                    if transport is not None:
                        self._work(transport, partial(_read_after_hang_up, transport, flags))
                        if self._seconds() >= ends_at:
                            # many clients have left: the next ticks handle the rest, so that others need not wait
                            break

            came: list[HubTransport] = []
            for fd, flags in events:
                if flags & PEER_GONE:
                    continue
                transport = transports.get(fd)
                if transport is None:
                    continue
                if flags & WRITABLE:
                    self._work(transport, transport.flush)
                if flags & READABLE and transport.receive():
                    came.append(transport)

            for transport in came:
                try:
                    why = transport.deliver()
                except BaseException:
                    self._failed(transport)
                else:
                    if why is not None:
                        self._end(transport, Failure(why))
        finally:
            self._end_tick()

    def _work(self, transport: HubTransport, work: Callable[[], Exception | None]) -> None:
        """Call `work`, and end the connection if it fails or returns a reason."""
        try:
            why = work()
        except BaseException:
            self._failed(transport)
        else:
            if why is not None:
                self._end(transport, Failure(why))

    def _failed(self, transport: HubTransport) -> None:
        """End a connection whose protocol raised an error. Others are not affected."""
        reason = Failure()
        log.failure("A connection failed", reason)
        self._end(transport, reason)

    # Ends.

    def _end_later(self, transport: HubTransport, reason: Failure) -> None:
        """End the connection for that reason, after the current call of its protocol."""
        if not self._ending and not self._is_working:
            self._schedule(self.doRead)
        self._ending.append((transport, reason))

    def _end_pending(self) -> None:
        over, self._ending = self._ending, []
        for transport, reason in over:
            self._end(transport, reason)

    def _end(self, transport: HubTransport, reason: Failure) -> None:
        descriptor = transport.descriptor
        if self._transports.get(descriptor) is not transport:
            return  # it has ended for another reason in the same tick
        del self._transports[descriptor]
        with suppress(OSError):  # if a protocol has closed the socket, the epoll set no longer has it
            self._epoll.unregister(descriptor)  # before the close, after which its number may be used again
        transport.end(reason)


# @implementer is not used, because mypyc does not compile a decorated class to a native class.
classImplements(Hub, IReadDescriptor)


def _read_after_hang_up(transport: HubTransport, flags: int) -> Exception | None:
    """Read from a client that half-closed or disconnected: each tick reads one piece of its remaining bytes."""
    why = transport.read()
    if why is None and flags & BROKEN:
        why = transport.peer_gone()
    if why is None and flags & WRITABLE and not flags & BROKEN:
        why = transport.flush()
    return why
