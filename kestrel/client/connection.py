"""One blocking connection: sends calls, and waits for their replies."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Generator, Iterator, Sequence
from typing import Final, Self, TypeVar

from kestrel.client.address import Address
from kestrel.client.call import NOT_YET, Call, Stream
from kestrel.client.errors import CannotConnect, ConnectionFailed, Refused
from kestrel.protocols.buffer import ReceiveBuffer

T = TypeVar("T")

_READ_BYTES: Final = 256 * 1024


class BlockingConnection:
    """A connection to one server. No operation of its socket takes longer than `timeout_s` and what the server has been
    asked to wait; beyond that it is a `ConnectionFailed`.

    After any error, a refusal included, it is closed and not `is_usable`: the server may be about to hang up, and a
    request that is sent into that is one of which nobody knows whether it was carried out.
    """

    def __init__(self, socket_: socket.socket, timeout_s: float) -> None:
        self._socket = socket_
        self._timeout_s = timeout_s
        self._buffer = ReceiveBuffer()
        self.is_usable = True

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
        failure = self._send(call.request)
        try:
            return self._reply(call)
        except BaseException as error:
            self.close()
            if failure is None or not isinstance(error, ConnectionFailed):
                raise
            raise CannotConnect(f"the connection ended while the request was being sent: {failure}") from error

    def ask_all(self, calls: Sequence[Call[T]]) -> Iterator[T | Refused]:
        """Send all requests at once; then the values of the replies, one by one, or how the server refused.

        There must be few enough for their replies not to fill the buffers between here and the server.
        """
        is_in_order = False
        try:
            self._send(b"".join([call.request for call in calls]))
            answers_are_values = True
            for call in calls:
                answer: T | Refused
                try:
                    answer = self._reply(call)
                except Refused as refused:
                    answer = refused
                    answers_are_values = False
                yield answer
            is_in_order = answers_are_values
        finally:
            if not is_in_order:
                self.close()

    def stream(self, stream: Stream[T]) -> Generator[T, None, None]:
        """Send the request, and wait for one value after the other until the server ends the stream.

        To be closed: leaving early closes the connection, since what it would still bring cannot be stopped.
        """
        is_over = False
        try:
            self._send(stream.request)
            while True:
                self._set_timeout(stream.wait_ms)
                value = stream.read(self._buffer)
                if value is None:
                    is_over = True
                    return
                if value is not NOT_YET:
                    yield value
                elif not self._receive():
                    stream.connection_ended()
        finally:
            if not is_over:
                self.close()

    def is_at_rest(self) -> bool:
        """Whether it is still there, and nothing has come that nobody asked for. Closes it if not."""
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
        self.is_usable = False
        self._socket.close()

    def _send(self, data: bytes) -> OSError | None:
        """Send all of it. An error is returned: what the server said before it hung up is still to be read."""
        try:
            self._set_timeout(0)
            self._socket.sendall(data)
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
        if self.is_usable:
            self._socket.settimeout(self._timeout_s + wait_ms / 1000)

    def _receive(self) -> bool:
        """Wait for more bytes; whether there are any, or the server has hung up."""
        try:
            data = self._socket.recv(_READ_BYTES)
        except OSError as error:
            raise ConnectionFailed(f"no answer: {error}") from error
        if not data:
            self.is_usable = False
            return False
        self._buffer.receive(data)
        return True
