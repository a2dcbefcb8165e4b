"""A TCP connection of the hub: a faster replacement for Twisted's own transport.

It sends at once when it is written to, and waits for room only if the system did not accept all bytes. It can change
its interest in the hub's epoll set, and ask the hub to end the connection. Only the hub ends it.
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

from kestrel.net.socket_io import receive, send

log = Logger(__name__)

# The numbers of select.EPOLLIN and others, as literals that a compiler can fold.
READABLE: Final = 0x001
WRITABLE: Final = 0x004
BROKEN: Final = 0x008 | 0x010
"""An error, or the end of both directions. epoll reports it for every socket in the set, even without interest."""
PEER_ENDED: Final = 0x2000

READ_EVENTS: Final = READABLE | PEER_ENDED

FIRST_READ_BYTES: Final = 448
"""Limit of one read until a client fills it. Python allocates so few bytes from its own pools, which is faster."""

MAX_READ_BYTES: Final = 64 * 1024
"""Limit of one read after that, as in Twisted. Large inputs come in few pieces, and others wait for one at most."""

MAX_SEND_BYTES: Final = 1024 * 1024
"""Limit of bytes in one send. Copying them takes about 0.3 ms."""

MAX_SEND_PIECES: Final = 512
"""Limit of pieces in one send. The system accepts 1024."""

PAUSE_PRODUCER_BYTES: Final = 64 * 1024
"""Unsent bytes above which a producer is paused, as in Twisted."""

half_closeable_protocol: Any = IHalfCloseableProtocol
"""The interface as an adapter, which type checkers do not know without their plugin."""

LINGER_RESET: Final = struct.pack("ii", 1, 0)


class HubTransport:
    """The transport of an accepted connection.

    `peer` is the address from `accept`. The hub calls `read`, or `receive` and then `deliver`, `flush`, `peer_gone` and
    `end`. Protocols call the other methods. `end_later` makes the hub end the connection after the caller has
    returned.
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
        """The events in the epoll set. The hub adds the socket to the set."""
        self._socket = sock
        self._peer = peer
        self._epoll = epoll
        self._end_later = end_later
        # The system's own calls take their arguments faster than those of a socket object.
        self._read: Callable[[int, int], bytes] = receive
        self._write: Callable[[int, bytes], int] = send
        self._read_bytes = FIRST_READ_BYTES
        """Limit of the next read."""
        self._data = b""
        """Bytes that are read, and not passed to the protocol yet."""
        self._is_reading = True
        self._is_broken = False
        self._has_input_ended = False
        self._has_output_ended = False
        self._ends_output = False
        self._acts_when_sent = False  # an action is due when all is sent, even if nothing was buffered
        self._is_over = False  # it will be ended soon, and reads and sends nothing more
        self._awaits_writable = False
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._sent_of_first = 0
        self._producer: Any = None
        self._is_streaming = False
        self._is_producer_paused = False

    # Methods that the hub calls.

    def read(self) -> Exception | None:
        """Read once and pass the bytes to the protocol, unless it is paused. Return the reason if the connection is
        over, or None.
        """
        return self.deliver() if self.receive() else None

    def receive(self) -> bool:
        """Read once. Return True if `deliver` must be called: for bytes, the end of the input, or a broken connection.

        Return False if there is nothing to read, or the protocol is paused.
        """
        if not self._is_reading:
            return False
        try:
            data = self._data = self._read(self.descriptor, self._read_bytes)
        except BlockingIOError:
            return False
        except OSError:
            self._is_broken = True
            return True
        except BaseException:  # bytes read from other connections in this tick are still to be processed
            log.failure("A connection could not be read from")
            self._is_broken = True
            return True
        if len(data) == self._read_bytes:
            self._read_bytes = MAX_READ_BYTES
        return True

    def deliver(self) -> Exception | None:
        """Pass what `receive` has read to the protocol, unless the connection has ended. Return the reason if it is
        over.

        Bytes are also passed to a protocol that was paused meanwhile, since they cannot be read again.
        """
        data, self._data = self._data, b""
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
        """Send buffered bytes, because there is room. Return the reason if the connection is over."""
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
        """Return the reason for the end of a broken connection, or None if there may be bytes to read."""
        if self._is_reading:
            return None
        return ConnectionDone() if self._has_input_ended and self._has_output_ended else ConnectionLost()

    def end(self, reason: Failure) -> None:
        """Close the socket, which is in no epoll set any longer, and notify the producer and the protocol."""
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
        with suppress(OSError):  # the peer may have closed it already
            if is_orderly:
                self._socket.shutdown(socket.SHUT_RDWR)
            else:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_RESET)
        self._socket.close()

    # Unsent bytes.

    def _next_pieces(self) -> list[bytes | memoryview]:
        """Return the pieces of the next send. No bytes of a large piece are copied, however little each send takes."""
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
            self._has_output_ended = True  # set before the protocol is notified, which may close the connection
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)
            half_closeable = half_closeable_protocol(self.protocol, None)
            if half_closeable is not None:
                half_closeable.writeConnectionLost()
        return None

    def _await_writable(self) -> None:
        """Have `flush` called when there is room, which may be soon."""
        self._awaits_writable = True
        self._watch()

    def _watch(self) -> None:
        """Update the interest in the epoll set. Paused connections stay in it, to detect a disconnect."""
        interest = READ_EVENTS if self._is_reading else 0
        if self._awaits_writable:
            interest |= WRITABLE
        if interest != self.interest and self.connected:
            self.interest = interest
            self._epoll.modify(self.descriptor, interest)

    def _request_end(self, error: Exception) -> None:
        """Stop reading and sending. The hub ends the connection when the caller has returned."""
        if self._is_over or not self.connected:
            return
        self._is_over = True
        self._is_reading = self._awaits_writable = False
        self._watch()
        self._end_later(self, Failure(error))

    # ITransport.

    def write(self, data: bytes) -> None:
        """Send bytes, and buffer those that the system does not accept now. Bytes after a disconnect are dropped."""
        if not isinstance(data, bytes):
            raise TypeError("Data must be bytes")
        size = len(data)
        if not size or self._is_over:
            return
        if self._unsent_bytes:
            self._keep(data)
            return
        if self._has_output_ended:
            return
        try:
            sent = self._write(self.descriptor, data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            if error.errno != ENOBUFS:
                self._request_end(ConnectionLost())
                return
            sent = 0
        if sent < size:
            self._sent_of_first = sent
            self._unsent_bytes = -sent  # the sent part of the data that is buffered now
            self._keep(data)
        elif self._acts_when_sent:
            self._await_writable()  # not now: a pull producer would be called within its own write

    def _keep(self, data: bytes) -> None:
        self._unsent.append(data)
        self._unsent_bytes += len(data)
        if not self._awaits_writable:
            self._await_writable()
        if self._unsent_bytes > PAUSE_PRODUCER_BYTES and self._is_streaming and not self._is_producer_paused:
            self._is_producer_paused = True
            self._producer.pauseProducing()

    def writeSequence(self, iovec: Iterable[bytes]) -> None:
        self.write(b"".join(iovec))

    def loseConnection(self) -> None:
        """Close the connection when all bytes are sent and a paused producer has finished. Nothing more is read."""
        if self.disconnecting or self._is_over:
            return
        self.disconnecting = self._acts_when_sent = True
        self._is_reading = False
        if self._has_output_ended:
            self._request_end(ConnectionDone())
        else:
            self._await_writable()

    def loseWriteConnection(self) -> None:
        """Half-close the connection when all bytes are sent, and continue to read."""
        if not self._is_over:
            self._ends_output = self._acts_when_sent = True
            self._await_writable()

    def abortConnection(self) -> None:
        """Close the connection at once with a reset. Unsent bytes are dropped."""
        self._request_end(ConnectionAborted())

    def getPeer(self) -> IPv4Address | IPv6Address:
        return _address(self._peer)

    def getHost(self) -> IPv4Address | IPv6Address:
        name = self._socket.getsockname()
        if len(name) == 4:  # with the interface name, if the address needs one
            host, _ = socket.getnameinfo(name, socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)
            name = (host, *name[1:])
        return _address(name)

    def getHandle(self) -> socket.socket:
        """Return the socket. Only the hub may close it, because the transport uses its descriptor."""
        return self._socket

    def getTcpNoDelay(self) -> bool:
        return bool(self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    def setTcpNoDelay(self, enabled: bool) -> None:
        """Send small writes at once, or not. A failure is only logged."""
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, enabled)
        except OSError:
            log.failure("TCP_NODELAY could not be set")

    def getTcpKeepAlive(self) -> bool:
        return bool(self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))

    def setTcpKeepAlive(self, enabled: bool) -> None:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, enabled)

    # IConsumer.

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        """Register a producer. A streaming one is paused while much is unsent. A pull producer is called when nothing
        is. Raises RuntimeError if there is a producer already.
        """
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
        self._producer = None
        self._is_streaming = False
        self._acts_when_sent = self.disconnecting or (self._ends_output and not self._has_output_ended)
        if self._acts_when_sent and not self._is_over:
            self._await_writable()

    # IPushProducer.

    def pauseProducing(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._watch()

    def resumeProducing(self) -> None:
        if not (self._is_reading or self.disconnecting or self._is_over or self._has_input_ended):
            self._is_reading = True
            self._watch()

    def stopProducing(self) -> None:
        self.loseConnection()


# @implementer is not used, because mypyc does not compile a decorated class to a native class.
classImplements(HubTransport, ITCPTransport, IConsumer, IPushProducer, ISystemHandle)


def _address(name: tuple[Any, ...]) -> IPv4Address | IPv6Address:
    return IPv4Address("TCP", *name) if len(name) == 2 else IPv6Address("TCP", *name)
