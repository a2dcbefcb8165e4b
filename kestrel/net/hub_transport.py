"""One TCP connection of the hub: what Twisted's own transport does for its protocol, with fewer steps.

It sends when it is written to, and asks to be told of room only where the system did not take all. Of its hub it knows
the epoll set, and how to say that the connection is over; the hub alone ends it.
"""

from __future__ import annotations

import select
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from errno import ENOBUFS
from itertools import islice
from typing import Any, Final

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import (
    IConsumer,
    IHalfCloseableProtocol,
    IPushProducer,
    ISystemHandle,
    ITCPTransport,
)
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import classImplements

log = Logger(__name__)

# The numbers of select.EPOLLIN and so on, written out: a compiler makes constants of them.
READABLE: Final = 0x001
WRITABLE: Final = 0x004
BROKEN: Final = 0x008 | 0x010
"""An error, or both directions are at their end. Told of every socket in the set, whether it was asked for or not."""
PEER_ENDED: Final = 0x2000

READ_EVENTS: Final = READABLE | PEER_ENDED

MAX_READ_BYTES: Final = 64 * 1024
"""What one read takes at most: Twisted's own number. Large inputs come in few pieces, and no connection holds up the
others for longer than a piece takes. (Smaller reads are not faster: the memory for one costs as good as nothing.)"""

MAX_SEND_BYTES: Final = 1024 * 1024
"""What one send is given at most. It is copied meanwhile, which takes about 0.3 ms."""

MAX_SEND_PIECES: Final = 512
"""How many writes one send is given together at most; the system takes 1024."""

PAUSE_PRODUCER_BYTES: Final = 64 * 1024
"""A producer is paused while more than that is unsent: Twisted's own number."""

half_closeable_protocol: Any = IHalfCloseableProtocol
"""The interface as what it adapts by, which type checkers do not know of without their plugin."""

LINGER_RESET: Final = struct.pack("ii", 1, 0)


class HubTransport:
    """A connection that was accepted, as its protocol sees it.

    `peer` is what `accept` told of the other side. The hub calls `read`, or `receive` and then `received`, `flush`,
    `peer_gone` and `end`, protocols all else. `end_later` is the hub's: it ends the connection for that reason, but not
    before the caller has returned.
    """

    def __init__(
        self,
        sock: socket.socket,
        protocol: Any,
        peer: tuple[Any, ...],
        epoll: select.epoll,
        end_later: Callable[[HubTransport, Failure], None],
    ) -> None:
        sock.setblocking(False)
        self.descriptor = sock.fileno()
        self.protocol: Any = protocol
        self.connected = True
        self.disconnecting = False
        self.disconnected = False
        self.interest = READ_EVENTS
        """What the epoll set has of it: the hub puts it there."""
        self._socket = sock
        self._peer = peer
        self._epoll = epoll
        self._end_later = end_later
        self._recv: Callable[[int], bytes] = sock.recv
        self._send: Callable[[bytes], int] = sock.send
        self._is_reading = True
        self._is_broken = False
        self._has_input_ended = False
        self._has_output_ended = False
        self._ends_output = False
        self._acts_when_sent = False  # something is to be done when all is sent, also if nothing was kept
        self._is_over = False  # it will be ended soon: nothing moves any more
        self._awaits_writable = False
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._sent_of_first = 0
        self._producer: Any = None
        self._is_streaming = False
        self._is_producer_paused = False

    # What the hub calls.

    def read(self) -> Exception | None:
        """Read once, if the protocol wants to, and hand it over. Why the connection is over, or None."""
        data = self.receive()
        return None if data is None else self.received(data)

    def receive(self) -> bytes | None:
        """What has come, if the protocol wants to have it: empty at the end, which a connection that broke has too."""
        if not self._is_reading:
            return None
        try:
            return self._recv(MAX_READ_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            self._is_broken = True
            return b""
        except BaseException:  # what was read of others in the same turn is still to be handed over
            log.failure("A connection could not be read from")
            self._is_broken = True
            return b""

    def received(self, data: bytes) -> Exception | None:
        """Hand over what `receive` brought, unless the connection ended since. Why it is over, or None.

        Bytes also to a protocol that was paused meanwhile: nobody else has them any more.
        """
        if self._is_over or self.disconnecting:
            return None
        if data:
            self.protocol.dataReceived(data)
            return None
        if not (self._is_reading or self._is_broken):
            return None  # paused meanwhile: the end can be read again
        self._is_reading = False
        if self._is_broken:
            return ConnectionLost()
        half_closeable = half_closeable_protocol(self.protocol, None)
        if half_closeable is None:
            return ConnectionDone()
        self._has_input_ended = True
        self._watch()
        half_closeable.readConnectionLost()
        return None

    def flush(self) -> Exception | None:
        """There is room: send what there is. Why the connection is over, or None."""
        if self._is_over:
            return None
        if self._unsent:
            try:
                sent = self._socket.sendmsg(self._next_pieces())
            except BlockingIOError:
                return None
            except OSError as error:
                return None if error.errno == ENOBUFS else ConnectionLost()
            self._is_sent(sent)
            if self._unsent:
                return None
        self._awaits_writable = False
        why = self._all_sent()
        if why is None:
            self._watch()
        return why

    def peer_gone(self) -> Exception | None:
        """The connection is broken, or ended on both sides. Why it is over; None if there may be something to read."""
        if self._is_reading:
            return None
        return ConnectionDone() if self._has_input_ended and self._has_output_ended else ConnectionLost()

    def end(self, reason: Failure) -> None:
        """Close the socket, which is in no epoll set any more, and tell producer and protocol."""
        self.connected = self._is_reading = self._awaits_writable = False
        self.disconnected = self._is_over = True
        self._unsent.clear()
        self._unsent_bytes = 0
        protocol, self.protocol = self.protocol, None
        producer, self._producer = self._producer, None
        if producer is not None:
            try:
                producer.stopProducing()
            except BaseException:
                log.failure("A producer failed when its connection was lost")
        self._close(is_orderly=reason.check(ConnectionAborted) is None)
        try:
            protocol.connectionLost(reason)
        except BaseException:
            log.failure("A protocol failed when its connection was lost")

    def _close(self, is_orderly: bool) -> None:
        with suppress(OSError):  # the other side may have been faster
            if is_orderly:
                self._socket.shutdown(socket.SHUT_RDWR)
            else:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_RESET)
        self._socket.close()

    # What is unsent.

    def _next_pieces(self) -> list[bytes | memoryview]:
        """What the next send is given: no byte of a large piece is copied, however little each send takes of it."""
        begin = self._sent_of_first
        first = memoryview(self._unsent[0])[begin : begin + MAX_SEND_BYTES]
        pieces: list[bytes | memoryview] = [first]
        size = len(first)
        for piece in islice(self._unsent, 1, MAX_SEND_PIECES):
            size += len(piece)
            if size > MAX_SEND_BYTES:
                break
            pieces.append(piece)
        return pieces

    def _is_sent(self, sent: int) -> None:
        unsent = self._unsent
        self._unsent_bytes -= sent
        sent += self._sent_of_first
        while unsent and sent >= len(unsent[0]):
            sent -= len(unsent.popleft())
        self._sent_of_first = sent

    def _all_sent(self) -> Exception | None:
        producer = self._producer
        if producer is not None and (self._is_producer_paused or not self._is_streaming):
            self._is_producer_paused = False
            producer.resumeProducing()
        elif self.disconnecting:
            return ConnectionDone()
        elif self._ends_output and not self._has_output_ended:
            self._has_output_ended = True  # before the protocol is told, which may lose the connection then
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)
            half_closeable = half_closeable_protocol(self.protocol, None)
            if half_closeable is not None:
                half_closeable.writeConnectionLost()
        return None

    def _await_writable(self) -> None:
        """Be told by `flush` when there is room, which may be at once."""
        self._awaits_writable = True
        self._watch()

    def _watch(self) -> None:
        """Have the epoll set say what is wanted now. What is paused or half-closed stays in it, for a hang-up."""
        interest = READ_EVENTS if self._is_reading else 0
        if self._awaits_writable:
            interest |= WRITABLE
        if interest != self.interest and self.connected:
            self.interest = interest
            self._epoll.modify(self.descriptor, interest)

    def _request_end(self, error: Exception) -> None:
        """Nothing is read or sent any more; the hub ends the connection when the caller has returned."""
        if self._is_over or not self.connected:
            return
        self._is_over = True
        self._is_reading = self._awaits_writable = False
        self._watch()
        self._end_later(self, Failure(error))

    # ITransport.

    def write(self, data: bytes) -> None:
        """Send that; what the system does not take now, as soon as it does."""
        if not isinstance(data, bytes):
            raise TypeError("Data must be bytes")
        if self._unsent:
            if data and not self._is_over:
                self._keep(data)
            return
        if self._is_over or self._has_output_ended or not data:
            return
        try:
            sent = self._send(data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            if error.errno != ENOBUFS:
                self._request_end(ConnectionLost())
                return
            sent = 0
        if sent < len(data):
            self._sent_of_first = sent
            self._unsent_bytes = -sent  # of what is kept now
            self._keep(data)
        elif self._acts_when_sent:
            self._await_writable()  # not now: a pull producer would be asked for more within its write

    def _keep(self, data: bytes) -> None:
        self._unsent.append(data)
        self._unsent_bytes += len(data)
        if not self._awaits_writable:
            self._await_writable()
        if self._unsent_bytes > PAUSE_PRODUCER_BYTES and self._is_streaming and not self._is_producer_paused:
            self._is_producer_paused = True
            self._producer.pauseProducing()

    def writeSequence(self, iovec: Iterable[bytes]) -> None:
        """Send all of these, one after the other."""
        self.write(b"".join(iovec))

    def loseConnection(self) -> None:
        """Hang up when all is sent and a producer that was paused has had its turn. Nothing more is read."""
        if self.disconnecting or self._is_over:
            return
        self.disconnecting = self._acts_when_sent = True
        self._is_reading = False
        if self._has_output_ended:
            self._request_end(ConnectionDone())
        else:
            self._await_writable()

    def loseWriteConnection(self) -> None:
        """Say when all is sent that nothing more will come, and go on reading."""
        if not self._is_over:
            self._ends_output = self._acts_when_sent = True
            self._await_writable()

    def abortConnection(self) -> None:
        """Hang up at once: what is unsent is dropped, and the other side told so."""
        self._request_end(ConnectionAborted())

    def getPeer(self) -> IPv4Address | IPv6Address:
        """The client's address."""
        return _address(self._peer)

    def getHost(self) -> IPv4Address | IPv6Address:
        """The address that the client has connected to."""
        name = self._socket.getsockname()
        if len(name) == 4:  # with the name of the interface where the address needs one
            host, _ = socket.getnameinfo(name, socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)
            name = (host, *name[1:])
        return _address(name)

    def getHandle(self) -> socket.socket:
        """The socket."""
        return self._socket

    def getTcpNoDelay(self) -> bool:
        """Whether small writes are sent at once."""
        return bool(self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    def setTcpNoDelay(self, enabled: bool) -> None:
        """Send small writes at once, or not. It helps where it can, so a system that cannot is no error."""
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, enabled)
        except OSError:
            log.failure("TCP_NODELAY could not be set")

    def getTcpKeepAlive(self) -> bool:
        """Whether the system looks from time to time whether the other side is there."""
        return bool(self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))

    def setTcpKeepAlive(self, enabled: bool) -> None:
        """Have the system look from time to time whether the other side is there, or not."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, enabled)

    # IConsumer.

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        """From now on that writes. A streaming one is paused while much is unsent, another asked when nothing is."""
        if self._producer is not None:
            raise RuntimeError(f"cannot register {producer}: {self._producer} is registered")
        if self.disconnected:
            producer.stopProducing()
            return
        self._producer = producer
        self._is_streaming = bool(streaming)
        self._is_producer_paused = False
        if not streaming:
            self._acts_when_sent = True
            producer.resumeProducing()

    def unregisterProducer(self) -> None:
        """The producer has written all it wants to."""
        self._producer = None
        self._is_streaming = False
        self._acts_when_sent = self.disconnecting or (self._ends_output and not self._has_output_ended)
        if self._acts_when_sent and not self._is_over:
            self._await_writable()

    # IPushProducer.

    def pauseProducing(self) -> None:
        """Read nothing until `resumeProducing`."""
        if self._is_reading:
            self._is_reading = False
            self._watch()

    def resumeProducing(self) -> None:
        """Read again, if there can be anything to read."""
        if not (self._is_reading or self.disconnecting or self._is_over or self._has_input_ended):
            self._is_reading = True
            self._watch()

    def stopProducing(self) -> None:
        """The same as `loseConnection`."""
        self.loseConnection()


# A class with a decorator is not compiled to a native class, so there is no @implementer above it.
classImplements(HubTransport, ITCPTransport, IConsumer, IPushProducer, ISystemHandle)


def _address(name: tuple[Any, ...]) -> IPv4Address | IPv6Address:
    return IPv4Address("TCP", *name) if len(name) == 2 else IPv6Address("TCP", *name)
