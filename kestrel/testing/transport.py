"""A transport in memory that treats its protocol as Twisted's TCP transports do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from twisted.internet.error import ConnectionAborted, ConnectionDone
from twisted.internet.interfaces import IProtocol, IPushProducer
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

READ_BYTES: Final = 64 * 1024
"""What one read brings at most, and what a transport holds before it pauses its producer: Twisted's own number."""

WRITE_BYTES: Final = 128 * 1024
"""What one write takes at most: Twisted's own number."""


class MemoryPeer(Protocol):
    """The client's end: what it has read, and whether it reads at all."""

    received: bytearray
    reads: bool


class MemoryTransport(StringTransport):
    """One end of a connection, as a rule the server's. It treats its protocol as Twisted's TCP transports do.

    Bytes move in pieces, one read and one write a tick, and none in a direction that one side has paused. A
    producer is paused while more than `READ_BYTES` wait to be written.
    """

    def __init__(self, client: MemoryPeer, soon: Callable[[Callable[[], None]], None]) -> None:
        super().__init__(lenient=True)  # type: ignore[no-untyped-call]
        self._client = client
        self._soon = soon
        self._protocol: Any = None  # Any: who can be half-closed has methods that others have not
        self._push_producer: IPushProducer | None = None
        self._is_producer_paused = False
        self._is_listening = True
        self._input_ended = False
        self._input_end_told = False
        self.unread = bytearray()
        """What the client sent and the server has not read."""
        self.unsent = bytearray()
        """What the server wrote and the client has not read."""

    def connect(self, protocol: IProtocol) -> None:
        """Begin."""
        self._protocol = protocol
        protocol.makeConnection(self)

    # What a reactor does.

    @property
    def has_work(self) -> bool:
        """Whether the next tick would move something."""
        return self._can_read() or self._can_write()

    def work(self) -> None:
        """One read and one write, as far as there is something to read or write."""
        if self._can_read():
            self._read()
        if self._can_write():
            self._write()

    @property
    def is_listening(self) -> bool:
        """Whether the protocol wants to read."""
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

    # What the client's end does.

    def arrive(self, data: bytes) -> None:
        """Bytes from the client; read at once if nothing is before them."""
        is_next = not self.unread
        self.unread += data
        if is_next and self._can_read():
            self._read()

    def end_input(self) -> None:
        """The client's last byte has been sent."""
        self._input_ended = True
        if not self.unread and self._can_read():
            self._read()

    def lost(self, reason: Exception) -> None:
        """There is no connection any more."""
        if not self.connected:
            return
        self.connected = False
        producer, self._push_producer = self._push_producer, None
        if producer is not None:
            producer.stopProducing()
        self._protocol.connectionLost(Failure(reason))

    # ITransport, IConsumer, IPushProducer: what the protocol calls.

    def write(self, data: bytes) -> None:
        """Take bytes for the client."""
        if not isinstance(data, bytes):
            raise TypeError(f"only bytes can be written, not {type(data).__name__}")
        if not self.connected:
            return
        self.unsent += data
        if self._push_producer is not None and len(self.unsent) > READ_BYTES:
            self._is_producer_paused = True
            self._push_producer.pauseProducing()

    def writeSequence(self, data: Iterable[bytes]) -> None:
        """Take bytes in pieces."""
        self.write(b"".join(data))

    def loseConnection(self) -> None:
        """Hang up when everything written has been read."""
        self.disconnecting = True

    def abortConnection(self) -> None:
        """Hang up at once."""
        self.disconnecting = True
        self.unsent.clear()
        self._soon(lambda: self.lost(ConnectionAborted()))

    def registerProducer(self, producer: IPushProducer, streaming: bool) -> None:
        """Who is told when too much waits to be written. Only push producers are known here."""
        if self._push_producer is not None or not streaming:
            raise RuntimeError("one producer, and a streaming one")
        self._push_producer = producer

    def unregisterProducer(self) -> None:
        """Tell nobody any more."""
        self._push_producer = None

    def pauseProducing(self) -> None:
        """Read nothing for a while."""
        self._is_listening = False

    def resumeProducing(self) -> None:
        """Read again. The end of the input is found again too, as a reactor finds it."""
        self._is_listening = True
        self._input_end_told = False
