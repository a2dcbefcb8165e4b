"""The servers that a command is for: how they are asked, and what is said when one of them fails."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Literal, TypeVar

from kestrel.address import Address
from kestrel.client.blocking_servers import BlockingServers
from kestrel.client.call import Call
from kestrel.client.connection import BlockingConnection
from kestrel.client.dialect import Dialect, MemcacheDialect, ThriftDialect
from kestrel.client.errors import (
    BadReply,
    CannotConnect,
    ClientFailure,
    ConnectionFailed,
    NoServer,
    OpenReadsError,
    ServerError,
)
from kestrel.client.memcache import MemcacheCalls
from kestrel.client.plan import of_server
from kestrel.client.thrift import ThriftCalls
from kestrel.tls import TlsOptions
from kestrel.tools.running import EX_FOUND, EX_SERVER, EX_USAGE, ToolFailed, say
from kestrel.tools.shown import show_text

T = TypeVar("T")

TOOL: Final = "kestrel-cli"


class Servers:
    """One server or several that share the work, or the members of a server set.

    Raises ValueError for what is no address, OSError for TLS files that cannot be used, and `NoKazoo`. `seconds` is a
    clock that never goes back.
    """

    def __init__(
        self,
        servers: Sequence[str],
        protocol: Literal["memcache", "thrift"],
        tls: TlsOptions | None,
        timeout_s: float,
        seconds: Callable[[], float],
    ) -> None:
        self.asked = BlockingServers(servers, protocol, tls, timeout_s, seconds)
        self.members = self.asked.members
        self.pool = self.asked.pool
        self._memcache = MemcacheCalls() if protocol == "memcache" else None
        self._thrift = ThriftCalls()
        self.dialect: Dialect = ThriftDialect(self._thrift)
        if self._memcache is not None:
            self.dialect = MemcacheDialect(self._memcache)
        self._speaks = f"does it speak {protocol} there, {'without' if tls is None else 'with'} TLS?"

    @property
    def has_memcache(self) -> bool:
        """Whether that is the protocol."""
        return self._memcache is not None

    @property
    def memcache(self) -> MemcacheCalls:
        """The calls that memcache alone has. Raises `ToolFailed`."""
        if self._memcache is None:
            raise ToolFailed("the thrift protocol has no such request: leave out --protocol thrift", EX_USAGE)
        return self._memcache

    @property
    def thrift(self) -> ThriftCalls:
        """The calls that thrift alone has. Raises `ToolFailed`."""
        if self._memcache is not None:
            raise ToolFailed("memcache has no such request: say --protocol thrift, and name its port", EX_USAGE)
        return self._thrift

    def ask(self, address: Address, call: Call[T]) -> T:
        """The answer of that server. Raises `ClientFailure`."""
        with of_server(address), self.pool.using(address) as connection:
            return connection.ask(call)

    def everybody(self) -> tuple[Address, ...]:
        """All servers, as they are now. Raises `ToolFailed`."""
        try:
            return self.asked.everybody()
        except ClientFailure as failure:
            raise self.failed(failure) from None

    def each(self, ask: Callable[[BlockingConnection], T]) -> Iterator[tuple[Address, T]]:
        """What each server answers. All are asked, also when some fail; then a `ToolFailed` is raised."""
        failed: list[ToolFailed] = []
        for address in self.everybody():
            try:
                with self.pool.using(address) as connection:
                    answer = ask(connection)
            except ClientFailure as failure:
                failed.append(self.failed(failure, address))
            else:
                yield address, answer
        for each in failed[:-1]:
            say(TOOL, str(each))
        if failed:
            raise failed[-1]

    def failed(self, failure: ClientFailure, address: Address | None = None) -> ToolFailed:
        """What is said of a failure, at that server or at some server."""
        if address is None and len(self.asked.addresses) == 1:
            address = self.asked.addresses[0]
        where = "a server" if address is None else show_text(str(address))
        reason = show_text(str(failure).removeprefix(f"{address}: "))
        match failure:
            case NoServer(__cause__=None):
                return ToolFailed(f"{reason}; is one running that joins it? name a server with --server", EX_SERVER)
            case NoServer():
                way_out = "is ZooKeeper running? give it more time with --timeout, or name a server with --server"
                return ToolFailed(f"it is not known who the servers are: {reason}; {way_out}", EX_SERVER)
            case CannotConnect(__cause__=OSError() | ValueError() as cause):
                # The text is the address, and the system's words with a number that nobody needs.
                which = show_text(str(failure).removesuffix(str(cause)).removesuffix(": "))
                said = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(cause)
                return ToolFailed(f"cannot connect to {which}: {show_text(said)}; {self._way_out(cause)}", EX_SERVER)
            case BadReply():
                return ToolFailed(f"{where}: {reason}; {self._speaks} name another port with --server", EX_SERVER)
            case ConnectionFailed(__cause__=TimeoutError()):
                return ToolFailed(f"{where}: {reason}; give it more time with --timeout; {self._speaks}", EX_SERVER)
            case ConnectionFailed():
                return ToolFailed(f"{where}: {reason}; is the server still running? {self._speaks}", EX_SERVER)
            case OpenReadsError():
                return ToolFailed(f"{where}: {reason}; were items held for longer than it allows?", EX_SERVER)
            case ServerError():
                return ToolFailed(f"{where} will not or cannot: {reason}", EX_SERVER)
            case _:
                return ToolFailed(f"{where}: {reason}", EX_FOUND)

    def close(self) -> None:
        """Hang up."""
        self.asked.close()

    def _way_out(self, cause: OSError | ValueError) -> str:
        match cause:
            case ssl.SSLCertVerificationError():
                return "say with --ca who signs its certificate, and with --server-name whom it is for"
            case ssl.SSLError() | ConnectionResetError():
                return self._speaks
            case socket.gaierror() | ValueError():
                return "name another with --server"
            case TimeoutError():
                return f"name another with --server, or give it more time with --timeout; {self._speaks}"
            case _:
                return "is the server running? name another with --server"
