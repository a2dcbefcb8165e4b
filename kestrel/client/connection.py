"""A blocking connection that sends calls and waits for their replies."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Self, TypeVar
from weakref import WeakSet

from kestrel.address import Address
from kestrel.client.arguments import LONGEST_TIMEOUT_S
from kestrel.client.call import NOT_YET, Call, Stream
from kestrel.client.errors import CannotConnect, ConnectionFailed, Refused, ServerError
from kestrel.protocols.buffer import ReceiveBuffer
from kestrel.tls import TlsOptions

T = TypeVar("T")

_READ_BYTES: Final = 256 * 1024

_SEND_BYTES: Final = 16 * 1024
"""Bytes that must be sent within one timeout: a TLS record, which is sent as a whole."""


class BlockingConnection:
    """A connection to one server.

    The server may be silent for `timeout_s` while it has data to read or owes an answer, plus the time for which a
    request lets it wait. After that, `ConnectionFailed` is raised.

    Any exception closes the connection. After a refusal the server may be about to close it, and a request sent at that
    moment may or may not be processed. An exception from outside (Ctrl-C, a signal handler) may leave half a request
    sent, which would corrupt the next one.
    """

    def __init__(self, socket_: socket.socket, timeout_s: float) -> None:
        self._socket = socket_
        self._timeout_s = timeout_s
        self._buffer = ReceiveBuffer()
        self._process = os.getpid()
        self._is_asking = False
        self._is_closed = False
        self._has_hung_up = False
        self._has_received = False

    @property
    def is_usable(self) -> bool:
        """Whether a request can be sent: the connection is open, owes no answer, and was not inherited by a fork."""
        return not (self._is_closed or self._is_asking) and self._process == os.getpid()

    @classmethod
    def to(
        cls, address: Address, timeout_s: float, tls: ssl.SSLContext | None = None, server_name: str | None = None
    ) -> Self:
        """Connect to `address`. Raises `CannotConnect`. With `tls` the server's certificate must be for `server_name`
        or the host.
        """
        try:
            plain = socket.create_connection(address, timeout_s)
        except (OSError, ValueError) as error:  # ValueError: an invalid host name
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
        """Send a request and return the value of its reply, or raise the error of the call.

        Raises `CannotConnect` if the server cannot have received the whole request.
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
        """Send all requests at once, then yield the value or refusal of each reply.

        Raises `CannotConnect` if the server closed the connection with the last refusal and so has not processed the
        rest. That is known only after an orderly close; after a timeout or an abort it raises `ConnectionFailed`.

        The replies must be few enough to fit in the network buffers between client and server.
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
                    if isinstance(answer, ServerError) and self._has_hung_up and not self._buffer.size:
                        raise CannotConnect("the server closed the connection because of an earlier request") from error
                    raise
                yield answer
            if is_refused:
                self.close()

    def stream(self, stream: Stream[T]) -> Generator[T, None, None]:
        """Send a request, and yield values until the server ends the stream.

        The generator must be closed. Leaving it early closes the connection, since the server cannot be told to stop.
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
        """Mark the connection as busy in a `with` block. Close it if the block raises."""
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
        """Return True if the connection is still open and no unexpected data has arrived. Close it otherwise."""
        if self.is_usable:
            try:
                self._socket.settimeout(0)
                self._socket.recv(1)
            except (BlockingIOError, ssl.SSLWantReadError):
                if not self._buffer.size:
                    return True
            except OSError:
                pass  # close it below, as if the server had closed it
        self.close()
        return False

    def close(self) -> None:
        """Close the connection. Over memcache, the server returns open reads to their queues."""
        self._is_closed = True
        self._socket.close()

    def _send(self, data: bytes) -> OSError | None:
        """Send all of `data`. Return an error instead of raising it: the server may have replied before it closed."""
        rest = memoryview(data)
        try:
            self._set_timeout(0)
            while rest:
                rest = rest[self._socket.send(rest[:_SEND_BYTES]) :]
        except OSError as error:
            if isinstance(error, TimeoutError):
                self.close()  # the server neither reads nor closes: no reply can be expected
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
        """Wait for more bytes. Return False if the server has closed the connection."""
        try:
            data = self._socket.recv(_READ_BYTES)
        except OSError as error:
            # With TLS 1.3 the server refuses a client's certificate only after the client has sent its first request.
            is_alert = isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or "")
            failed = CannotConnect if is_alert and not self._has_received else ConnectionFailed
            raise failed(f"no answer: {error}") from error
        if not data:
            self._has_hung_up = True
            return False
        self._has_received = True
        self._buffer.receive(data)
        return True


class ConnectionPool:
    """A pool that keeps as many connections to each server as were in use at the same time.

    Only connections to servers passed to `keep` are kept. Raises OSError for an unusable file of `tls`.

    A forked process does not use the connections of its parent: both would read each other's replies.
    """

    def __init__(self, timeout_s: float, tls: TlsOptions | None) -> None:
        self._idle: dict[Address, list[BlockingConnection]] = {}
        self._all: WeakSet[BlockingConnection] = WeakSet()
        self._timeout_s = timeout_s
        self._context = None if tls is None else tls.context()
        self._server_name = None if tls is None else tls.server_name

    def keep(self, address: Address) -> Address:
        """Keep connections to this server from now on, and return its address."""
        self._idle.setdefault(address, [])
        return address

    def forget(self, address: Address) -> None:
        """Close the connections to a server that is no longer used, those in use after their request."""
        for connection in self._idle.pop(address, ()):
            connection.close()

    def take(self, address: Address) -> BlockingConnection:
        """Return a connection for exclusive use; pass it to `give_back` afterwards. Raises `CannotConnect`.

        An idle connection is checked first, because servers close idle connections, and all when they restart.
        """
        idle = self._idle.get(address)
        while idle:
            connection = idle.pop()
            if connection.is_at_rest():
                return connection
        connection = BlockingConnection.to(address, self._timeout_s, self._context, self._server_name)
        self._all.add(connection)
        return connection

    def give_back(self, address: Address, connection: BlockingConnection) -> None:
        """Keep a connection for the next request if it is still usable, otherwise close it."""
        idle = self._idle.get(address)
        if connection.is_usable and idle is not None:
            idle.append(connection)
        else:
            connection.close()

    @contextmanager
    def using(self, address: Address) -> Iterator[BlockingConnection]:
        """Provide a connection for exclusive use in a `with` block. Raises `CannotConnect`."""
        connection = self.take(address)
        try:
            yield connection
        finally:
            self.give_back(address, connection)

    def close(self) -> None:
        """Close all connections, including those in use."""
        for connection in list(self._all):
            connection.close()
        for idle in self._idle.values():
            idle.clear()
