"""A request and the parser of its reply, without I/O.

Send `Call.request`, append received bytes to a `ReceiveBuffer`, and call `Call.read` each time. Calls may be pipelined:
replies arrive in the order of the requests.

    call = MemcacheCalls().get(b"work")
    transport.write(call.request)
    ...
    buffer.receive(data)
    value = call.read(buffer)       # NOT_YET, or the item, or an error is raised

The parser of a reply is a generator, a `Reply`. It yields what it needs next (`LINE`, or a number of bytes), is sent
exactly that, and returns the value. So a reply may arrive in pieces of any size, and parsing takes linear time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from enum import Enum, auto
from typing import Final, Generic, Literal, TypeAlias, TypeVar

from kestrel.client.errors import BadReply, ConnectionFailed
from kestrel.protocols.buffer import ReceiveBuffer

T = TypeVar("T")
U = TypeVar("U")

LINE: Final = None
"""Yielded by a `Reply` to read a line, which it receives without the line end."""

Reply: TypeAlias = Generator[int | None, bytes, T]

MAX_LINE_BYTES: Final = 1024 * 1024
"""Maximum length of a reply line. In `stats`, a line contains the names of all children of a queue."""


class Progress(Enum):
    """Markers returned in place of a value."""

    NOT_YET = auto()


NOT_YET: Final = Progress.NOT_YET
"""The reply is not complete."""

NotYet: TypeAlias = Literal[Progress.NOT_YET]


class Call(Generic[T]):
    """A request and the parser of its reply.

    `wait_ms` is how long the request lets the server wait, in milliseconds: the reply may take that much longer. An
    incomplete reply buffers at most `max_line_bytes`, or the number of bytes that the `Reply` needs next.
    """

    def __init__(
        self, request: bytes, reply: Reply[T], *, wait_ms: int = 0, max_line_bytes: int = MAX_LINE_BYTES
    ) -> None:
        self.request = request
        self.wait_ms = wait_ms
        self._reply = reply
        self._wanted = next(reply)
        self._max_line_bytes = max_line_bytes

    def read(self, buffer: ReceiveBuffer) -> T | NotYet:
        """Parse the reply in `buffer`. Return its value, or `NOT_YET` if the reply is not complete.

        Removes only this call's reply from the buffer. Raises `Refused` if the server refused; later replies can still
        be read. Raises `BadReply` for a malformed reply; the connection must then be dropped. Do not use a call again
        after it has returned a value or raised.
        """
        while True:
            piece = self._line(buffer) if self._wanted is LINE else buffer.take(self._wanted)
            if piece is None:
                return NOT_YET
            try:
                self._wanted = self._reply.send(piece)
            except StopIteration as end:
                value: T = end.value
                return value

    def _line(self, buffer: ReceiveBuffer) -> bytes | None:
        line = buffer.take_line()
        if (buffer.size if line is None else len(line)) > self._max_line_bytes:
            raise BadReply(f"a line is longer than {self._max_line_bytes} bytes")
        if line is None:
            return None
        if not line.endswith(b"\r"):
            raise BadReply("a line does not end with CRLF")
        return line[:-1]

    def connection_ended(self) -> T:
        """Handle a connection that the server closed before the reply was complete: raise `ConnectionFailed`."""
        raise ConnectionFailed("the server closed the connection before it answered")

    def then(self, convert: Callable[[T], U]) -> Call[U]:
        """Return this call with its value converted by `convert`. Use the returned call in place of this one."""
        return _MappedCall(self, convert)


class _MappedCall(Call[U], Generic[T, U]):
    """A call that converts the value of another call."""

    def __init__(self, call: Call[T], convert: Callable[[T], U]) -> None:
        self.request = call.request
        self.wait_ms = call.wait_ms
        self._call = call
        self._convert = convert

    def read(self, buffer: ReceiveBuffer) -> U | NotYet:
        value = self._call.read(buffer)
        return NOT_YET if value is NOT_YET else self._convert(value)

    def connection_ended(self) -> U:
        return self._convert(self._call.connection_ended())


class HangUp(Call[None]):
    """A request that the server answers by closing the connection."""

    def connection_ended(self) -> None:
        """Return None: the closed connection is the expected reply."""


class Stream(Generic[T]):
    """A request that is answered with a sequence of values, until the server ends it.

    `wait_ms` is how long the stream may last, in milliseconds.
    """

    def __init__(self, request: bytes, next_item: Callable[[], Call[T | None]], *, wait_ms: int) -> None:
        self.request = request
        self.wait_ms = wait_ms
        self._next_item = next_item
        self._item: Call[T | None] | None = next_item()

    def read(self, buffer: ReceiveBuffer) -> T | NotYet | None:
        """Return the next value, None at the end of the stream and after it, or `NOT_YET` if neither has arrived.

        Raises the errors of `Call.read`. Do not use a stream again after an error.
        """
        if self._item is None:
            return None
        value = self._item.read(buffer)
        if value is not NOT_YET:
            self._item = None if value is None else self._next_item()
        return value

    def connection_ended(self) -> None:
        """Handle a connection that the server closed: raise `ConnectionFailed` unless the stream has ended."""
        if self._item is not None:
            self._item.connection_ended()
