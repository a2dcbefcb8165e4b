"""A transport in memory that behaves like Twisted's TCP transports."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from twisted.internet.error import ConnectionAborted, ConnectionDone
from twisted.internet.interfaces import IProtocol, IPushProducer
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

READ_BYTES: Final = 64 * 1024
"""The maximum size of a read, and the buffered bytes above which a producer is paused. Both are Twisted's values."""

WRITE_BYTES: Final = 128 * 1024
"""The maximum size of a write: Twisted's value."""


class MemoryPeer(Protocol):
    """The client's end: the bytes that it has received, and whether it reads."""

    received: bytearray
    reads: bool


class MemoryTransport(StringTransport):
    """One end of a connection, usually the server's. It treats its protocol as Twisted's TCP transports do.

    Bytes move in pieces: one read and one write a tick, and none in a direction that is paused. A producer is paused
    when more than `READ_BYTES` wait to be written.
    """

    def __init__(self, client: MemoryPeer, soon: Callable[[Callable[[], None]], None]) -> None:
        super().__init__(lenient=True)  # type: ignore[no-untyped-call]
        self._client = client
        self._soon = soon
        # Any: protocols that support half-close have methods that others lack.
        self._protocol: Any = None
        self._push_producer: IPushProducer | None = None
        self._is_producer_paused = False
        self._is_listening = True
        self._input_ended = False
        self._input_end_told = False
        self.unread = bytearray()
        """Bytes that the client has sent and the server has not read."""
        self.unsent = bytearray()
        """Bytes that the server has written and the client has not read."""

    def connect(self, protocol: IProtocol) -> None:
        self._protocol = protocol
        protocol.makeConnection(self)

    # The reactor's side.

    @property
    def has_work(self) -> bool:
        """True if the next tick would move bytes or end the connection."""
        return self._can_read() or self._can_write()

    def work(self) -> None:
        if self._can_read():
            self._read()
        if self._can_write():
            self._write()

    @property
    def is_listening(self) -> bool:
        """True if the protocol is not paused."""
        return self._is_listening

    def _can_read(self) -> bool:
        if not self.connected or self.disconnecting or not self._is_listening:
            return False
        return bool(self.unread) or (self._input_ended and not self._input_end_told)

    def _read(self) -> None:
        if self.unread:
            data = bytes(self.unread[:READ_BYTES])
            del self.unread[:READ_BYTES]
            self._protocol.dataReceived(data)
        else:
            self._input_end_told = True
            self._protocol.readConnectionLost()

    def _can_write(self) -> bool:
        return self.connected and self._client.reads and bool(self.unsent or self.disconnecting)

    def _write(self) -> None:
        self._client.received += self.unsent[:WRITE_BYTES]
        del self.unsent[:WRITE_BYTES]
        if self.unsent:
            return
        if self._push_producer is not None and self._is_producer_paused:
            self._is_producer_paused = False
            self._push_producer.resumeProducing()
        elif self.disconnecting:
            self.lost(ConnectionDone())

    # The client's side.

    def arrive(self, data: bytes) -> None:
        """Add bytes from the client. They are read at once if no others wait."""
        is_next = not self.unread
        self.unread += data
        if is_next and self._can_read():
            self._read()

    def end_input(self) -> None:
        """Record that the client's input has ended."""
        self._input_ended = True
        if not self.unread and self._can_read():
            self._read()

    def lost(self, reason: Exception) -> None:
        """End the connection, and tell the protocol."""
        if not self.connected:
            return
        self.connected = False
        producer, self._push_producer = self._push_producer, None
        if producer is not None:
            producer.stopProducing()
        self._protocol.connectionLost(Failure(reason))

    # ITransport, IConsumer and IPushProducer, called by the protocol.

    def write(self, data: bytes) -> None:
        if not isinstance(data, bytes):
            raise TypeError(f"only bytes can be written, not {type(data).__name__}")
        if not self.connected:
            return
        self.unsent += data
        if self._push_producer is not None and len(self.unsent) > READ_BYTES:
            self._is_producer_paused = True
            self._push_producer.pauseProducing()

    def writeSequence(self, data: Iterable[bytes]) -> None:
        self.write(b"".join(data))

    def loseConnection(self) -> None:
        """Close the connection when the client has read all buffered bytes."""
        self.disconnecting = True

    def abortConnection(self) -> None:
        """Drop the buffered bytes, and close the connection in the next tick."""
        self.disconnecting = True
        self.unsent.clear()
        self._soon(lambda: self.lost(ConnectionAborted()))

    def registerProducer(self, producer: IPushProducer, streaming: bool) -> None:
        """Register a push producer, which is paused while too many bytes wait. Pull producers are not supported."""
        if self._push_producer is not None or not streaming:
            raise RuntimeError("cannot register a producer: there is one already, or it is not a streaming producer")
        self._push_producer = producer

    def unregisterProducer(self) -> None:
        self._push_producer = None

    def pauseProducing(self) -> None:
        self._is_listening = False

    def resumeProducing(self) -> None:
        """Read again. If the input has ended, the protocol is told so once more, as a reactor does."""
        self._is_listening = True
        self._input_end_told = False
