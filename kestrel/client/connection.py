"""One blocking connection: sends calls, and waits for their replies."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Self, TypeVar

from kestrel.address import Address
from kestrel.client.arguments import LONGEST_TIMEOUT_S
from kestrel.client.call import NOT_YET, Call, Stream
from kestrel.client.errors import CannotConnect, ConnectionFailed, Refused, ServerError
from kestrel.protocols.buffer import ReceiveBuffer

T = TypeVar("T")

_READ_BYTES: Final = 256 * 1024

_SEND_BYTES: Final = 16 * 1024
"""So much must go out within the timeout: a record of TLS, which goes as a whole."""


class BlockingConnection:
    """A connection to one server. It may be silent for `timeout_s` while it has something to read or owes an answer,
    and for as much longer as it has been asked to wait; beyond that it is a `ConnectionFailed`.

    Any exception closes it, a refusal included: the server may be about to hang up, and a request that is sent into
    that is one of which nobody knows whether it was carried out. One that comes from outside (Ctrl-C, a signal handler)
    may leave half a request behind, which the next one would be taken for a part of.
    """

    def __init__(self, socket_: socket.socket, timeout_s: float) -> None:
        self._socket = socket_
        self._timeout_s = timeout_s
        self._buffer = ReceiveBuffer()
        self._process = os.getpid()
        self._is_asking = False
        self._is_closed = False
        self._has_hung_up = False

    @property
    def is_usable(self) -> bool:
        """Whether it takes a request: it is open, owes no answer, and was made by this process, not by its parent."""
        return not (self._is_closed or self._is_asking) and self._process == os.getpid()

    @classmethod
    def to(
        cls, address: Address, timeout_s: float, tls: ssl.SSLContext | None = None, server_name: str | None = None
    ) -> Self:
        """A new connection; raises `CannotConnect`. With `tls` the server must prove that it is `server_name`."""
        try:
            plain = socket.create_connection(address, timeout_s)
        except (OSError, ValueError) as error:  # ValueError: what cannot be the name of a host
            raise CannotConnect(f"{address}: {error}") from error
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return cls(
                plain if tls is None else tls.wrap_socket(plain, server_hostname=server_name or address.host), timeout_s
            )
        except (OSError, ValueError) as error:
            plain.close()
            raise CannotConnect(f"{address}: {error}") from error

    def ask(self, call: Call[T]) -> T:
        """Send the request and return the value of its reply, or raise what the call raises.

        `CannotConnect` if the server cannot have had the whole request.
        """
        with self._asking():
            failure = self._send(call.request)
            try:
                return self._reply(call)
            except ConnectionFailed as error:
                if failure is None:
                    raise
                raise CannotConnect(f"the connection ended while the request was being sent: {failure}") from error

    def ask_all(self, calls: Sequence[Call[T]]) -> Iterator[T | Refused]:
        """Send all requests at once; then the values of the replies, one by one, or how the server refused.

        `CannotConnect` if the server hung up with the last refusal: it has begun with nothing that came behind. That is
        known only where it says so by hanging up in order; if it is silent or breaks off, nobody knows.

        There must be few enough for their replies not to fill the buffers between here and the server.
        """
        with self._asking():
            self._send(b"".join([call.request for call in calls]))
            answer: T | Refused | None = None
            is_refused = False
            for call in calls:
                try:
                    answer = self._reply(call)
                except Refused as refusal:
                    answer = refusal
                    is_refused = True
                except ConnectionFailed as error:
                    if isinstance(answer, ServerError) and self._has_hung_up and not len(self._buffer):
                        raise CannotConnect("the server hung up on a request before this one") from error
                    raise
                yield answer
            if is_refused:
                self.close()

    def stream(self, stream: Stream[T]) -> Generator[T, None, None]:
        """Send the request, and wait for one value after the other until the server ends the stream.

        To be closed: leaving early closes the connection, since what it would still bring cannot be stopped.
        """
        with self._asking():
            self._send(stream.request)
            while not self._is_closed:
                self._set_timeout(stream.wait_ms)
                value = stream.read(self._buffer)
                if value is None:
                    return
                if value is not NOT_YET:
                    yield value
                elif not self._receive():
                    stream.connection_ended()
            raise ConnectionFailed("the connection was closed")

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """The time until a request is answered."""
        if not self.is_usable:
            raise CannotConnect("the connection was closed")
        self._is_asking = True
        try:
            yield
        except BaseException:
            self.close()
            raise
        self._is_asking = False

    def is_at_rest(self) -> bool:
        """Whether it is still there, and nothing has come that nobody asked for. Closes it if not."""
        if self.is_usable:
            try:
                self._socket.settimeout(0)
                self._socket.recv(1)
            except (BlockingIOError, ssl.SSLWantReadError):
                if not len(self._buffer):
                    return True
            except OSError:
                pass  # it failed: the same as if it had ended
        self.close()
        return False

    def close(self) -> None:
        """Hang up. Open reads of the memcache protocol go back to their queues."""
        self._is_closed = True
        self._socket.close()

    def _send(self, data: bytes) -> OSError | None:
        """Send all of it. An error is returned: what the server said before it hung up is still to be read."""
        rest = memoryview(data)
        try:
            self._set_timeout(0)
            while rest:
                rest = rest[self._socket.send(rest[:_SEND_BYTES]) :]
        except OSError as error:
            if isinstance(error, TimeoutError):
                self.close()  # the server neither reads nor hangs up: nothing to wait for
            return error
        return None

    def _reply(self, call: Call[T]) -> T:
        self._set_timeout(call.wait_ms)
        while (value := call.read(self._buffer)) is NOT_YET:
            if not self._receive():
                return call.connection_ended()
        return value

    def _set_timeout(self, wait_ms: int) -> None:
        if not self._is_closed:
            self._socket.settimeout(min(LONGEST_TIMEOUT_S, self._timeout_s + wait_ms / 1000))

    def _receive(self) -> bool:
        """Wait for more bytes; whether there are any, or the server has hung up."""
        try:
            data = self._socket.recv(_READ_BYTES)
        except OSError as error:
            raise ConnectionFailed(f"no answer: {error}") from error
        if not data:
            self._has_hung_up = True
            return False
        self._buffer.receive(data)
        return True
