"""The hub: all plain TCP clients as one thing that the reactor reads from.

It has an epoll set of its own, in which its connections are. The reactor watches that set, so it is called once for
all that are ready, and what it does for them is one tick: read from each, let the barrier commit, send the replies.
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
"""Linux has what the hub is made of."""

PEER_GONE: Final = BROKEN | PEER_ENDED

MAX_EVENTS_PER_TICK: Final = 128
"""How many connections are served in one turn. The others are first in the next: the system goes round all."""

TIME_SLICE_S: Final = 0.002
"""After so much work timers and other descriptors have their turn."""


class Hub:
    """Serves its connections when the reactor calls `doRead`, in turns that begin and end as they are told.

    `end_tick` follows each `begin_tick`, whatever happens between them. `seconds` measures work, `schedule` calls
    something soon on the reactor's thread.
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
        """How many connections there are."""
        return len(self._transports)

    def connect(self, sock: socket.socket, protocol: Any, peer: tuple[Any, ...]) -> HubTransport:
        """The transport of a connection that was accepted; it reads from now on."""
        transport = HubTransport(sock, protocol, peer, self._epoll, self._end_later)
        self._epoll.register(transport.descriptor, transport.interest)
        self._transports[transport.descriptor] = transport
        return transport

    def close(self, reason: Failure | None = None) -> None:
        """End all connections, and be of no use any more. The reactor must have let go of it. Harmless in a turn."""
        if self._epoll.closed:
            return
        why = Failure(ConnectionLost()) if reason is None else reason
        for transport in list(self._transports.values()):
            self._end(transport, why)
        self._ending.clear()
        self._epoll.close()

    # IReadDescriptor.

    def fileno(self) -> int:
        """The epoll set, which is readable when a connection has something to do; -1 when it is closed."""
        return -1 if self._epoll.closed else self._epoll.fileno()

    def logPrefix(self) -> str:
        """What the log says in front of what is logged meanwhile."""
        return "hub"

    def connectionLost(self, reason: Failure) -> None:
        """The reactor lets go of everything."""
        self.close(reason)

    def doRead(self) -> None:
        """Serve those that have something to do, round by round while there are any, for about 2 ms."""
        ends_at = self._seconds() + TIME_SLICE_S
        self._is_working = True
        try:
            while not self._epoll.closed:  # a stop closes it when the last client has gone, which may be in here
                events = self._epoll.poll(0, MAX_EVENTS_PER_TICK)
                if not events and not self._ending:
                    break
                self._tick(events, ends_at)
                if self._seconds() >= ends_at:
                    break
        except BaseException:  # what comes out of here would make the reactor drop the hub with all connections
            log.failure("A turn of the hub failed")
        self._is_working = False
        if self._ending:
            self._schedule(self.doRead)

    # Turns.

    def _tick(self, events: list[tuple[int, int]], ends_at: float) -> None:
        transports = self._transports
        self._begin_tick()
        try:
            if self._ending:
                self._end_pending()
            for fd, flags in events:
                if flags & PEER_GONE:  # first, so that what they held open is there for those who ask now
                    transport = transports.get(fd)
                    if transport is not None:
                        self._work(transport, partial(_read_after_hang_up, transport, flags))
                        if self._seconds() >= ends_at:
                            break  # a crowd has left: nobody waits for the end of it, which the next turns bring

            came: list[tuple[HubTransport, bytes]] = []
            for fd, flags in events:
                if flags & PEER_GONE:
                    continue
                transport = transports.get(fd)
                if transport is None:
                    continue
                if flags & WRITABLE:
                    self._work(transport, transport.flush)
                if flags & READABLE:
                    data = transport.receive()
                    if data is not None:
                        came.append((transport, data))

            for transport, data in came:
                try:
                    why = transport.received(data)
                except BaseException:
                    self._failed(transport)
                else:
                    if why is not None:
                        self._end(transport, Failure(why))
        finally:
            self._end_tick()

    def _work(self, transport: HubTransport, work: Callable[[], Exception | None]) -> None:
        """Have it do that, which says why the connection is over, or None."""
        try:
            why = work()
        except BaseException:
            self._failed(transport)
        else:
            if why is not None:
                self._end(transport, Failure(why))

    def _failed(self, transport: HubTransport) -> None:
        """A fault of one protocol is the end of its connection, and of nothing else."""
        reason = Failure()
        log.failure("A connection failed", reason)
        self._end(transport, reason)

    # Ends.

    def _end_later(self, transport: HubTransport, reason: Failure) -> None:
        """End it for that reason, but not from within what its protocol is doing."""
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
            return  # it has ended for another reason in the same turn
        del self._transports[descriptor]
        with suppress(OSError):  # a protocol may have closed it, and then the set has forgotten it
            self._epoll.unregister(descriptor)  # before it is closed, when its number is somebody else's
        transport.end(reason)


# A class with a decorator is not compiled to a native class, so there is no @implementer above it.
classImplements(Hub, IReadDescriptor)


def _read_after_hang_up(transport: HubTransport, flags: int) -> Exception | None:
    """It sent its last byte, or hung up. What it sent before is still read, a piece in each turn."""
    why = transport.read()
    if why is None and flags & BROKEN:
        why = transport.peer_gone()
    if why is None and flags & WRITABLE and not flags & BROKEN:
        why = transport.flush()
    return why
