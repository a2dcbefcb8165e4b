"""A request and the reading of its reply, without I/O.

Whoever has a connection sends `Call.request`, puts what comes into a `ReceiveBuffer`, and asks `Call.read` after each
piece. Calls may be pipelined: the replies stand in the buffer in the order of the requests.

    call = MemcacheCalls().get(b"work")
    transport.write(call.request)
    ...
    buffer.receive(data)
    value = call.read(buffer)       # NOT_YET, or the item, or an error is raised

How a reply is read is written as a generator, a `Reply`: it yields what it wants next (`LINE`, or a number of bytes),
is sent exactly that, and returns the value. So a reply may arrive in any pieces, and costs linear work in all of them.
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
"""What a `Reply` yields for a line; it is sent without its line end."""

Reply: TypeAlias = Generator[int | None, bytes, T]

MAX_LINE_BYTES: Final = 1024 * 1024
"""The longest line of a reply that is taken. In `stats` a line has the names of all children of a queue."""


class Progress(Enum):
    """What is said in place of a value."""

    NOT_YET = auto()


NOT_YET: Final = Progress.NOT_YET
"""The reply is not all there."""

NotYet: TypeAlias = Literal[Progress.NOT_YET]


class Call(Generic[T]):
    """One request, and its reply as it comes in.

    `wait_ms` is how long the server has been asked to wait, in milliseconds: a reply may take that much longer. What
    waits in the buffer for a reply to be complete is bounded by `max_line_bytes`, or by what the `Reply` asks for.
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
        """The value, once its reply is complete; until then `NOT_YET`. Takes its own reply from the buffer, no more.

        Raises `Refused` for an answer that is no, after which the buffer is in step; and `BadReply`, after which it is
        not and the connection is to be dropped. A call that has returned a value or has raised is done with.
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
        if (len(buffer) if line is None else len(line)) > self._max_line_bytes:
            raise BadReply(f"a line is longer than {self._max_line_bytes} bytes")
        if line is None:
            return None
        if not line.endswith(b"\r"):
            raise BadReply("a line does not end as lines of a reply do")
        return line[:-1]

    def connection_ended(self) -> T:
        """What it means that the server hung up before the reply was complete: a `ConnectionFailed` is raised."""
        raise ConnectionFailed("the server hung up before it had answered")

    def then(self, convert: Callable[[T], U]) -> Call[U]:
        """The same call with another value, made of this one's. To be used in place of it."""
        return _MappedCall(self, convert)


class _MappedCall(Call[U], Generic[T, U]):
    """A call whose value is made of that of another."""

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
    """A request that the server answers by hanging up."""

    def connection_ended(self) -> None:
        """That is the answer."""


class Stream(Generic[T]):
    """One request that is answered with values, one after the other, until the server ends it.

    `wait_ms` is how long the server has been asked to go on, in milliseconds.
    """

    def __init__(self, request: bytes, next_item: Callable[[], Call[T | None]], *, wait_ms: int) -> None:
        self.request = request
        self.wait_ms = wait_ms
        self._next_item = next_item
        self._item: Call[T | None] | None = next_item()

    def read(self, buffer: ReceiveBuffer) -> T | NotYet | None:
        """The next value; None, from then on always, when there will be no more; `NOT_YET` until either is there.

        Raises as `Call.read` does, and then is done with.
        """
        if self._item is None:
            return None
        value = self._item.read(buffer)
        if value is not NOT_YET:
            self._item = None if value is None else self._next_item()
        return value

    def connection_ended(self) -> None:
        """What it means that the server hung up before the end of the stream: a `ConnectionFailed` is raised."""
        if self._item is not None:
            self._item.connection_ended()
