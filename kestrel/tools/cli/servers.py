"""The servers of a command: requests to them, and error messages if one of them fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Literal, TypeVar

from kestrel.address import Address
from kestrel.client.blocking import BlockingServers
from kestrel.client.call import Call
from kestrel.client.choice import naming_server
from kestrel.client.connection import BlockingConnection
from kestrel.client.dialect import Dialect, MemcacheDialect, ThriftDialect
from kestrel.client.errors import ClientFailure
from kestrel.client.memcache import MemcacheCalls
from kestrel.client.thrift import ThriftCalls
from kestrel.tls import TlsOptions
from kestrel.tools.tool_runner import BadUsage, ConnectionContext, ToolFailed, print_error

T = TypeVar("T")

TOOL: Final = "kestrel-cli"


class CommandServers(BlockingServers):
    """The servers of a command, which fail with error messages for its user."""

    def __init__(
        self,
        servers: Sequence[str],
        protocol: Literal["memcache", "thrift"],
        tls: TlsOptions | None,
        timeout_s: float,
        seconds: Callable[[], float],
    ) -> None:
        super().__init__(servers, protocol, tls, timeout_s, seconds)
        self.has_memcache = protocol == "memcache"
        self._memcache, self._thrift = MemcacheCalls(), ThriftCalls()
        self.dialect: Dialect = MemcacheDialect(self._memcache) if self.has_memcache else ThriftDialect(self._thrift)
        self._connection_context = ConnectionContext("--server", protocol, tls is not None)

    @property
    def memcache(self) -> MemcacheCalls:
        """Calls that only memcache has. Raises `ToolFailed` if the protocol is thrift."""
        if not self.has_memcache:
            raise BadUsage("the thrift protocol has no such request: leave out --protocol thrift")
        return self._memcache

    @property
    def thrift(self) -> ThriftCalls:
        """Calls that only thrift has. Raises `ToolFailed` if the protocol is memcache."""
        if self.has_memcache:
            raise BadUsage("memcache has no such request: use --protocol thrift, and name its port")
        return self._thrift

    def ask(self, address: Address, call: Call[T]) -> T:
        """Send a request to a server and return the answer. Raise `ClientFailure` if it fails."""
        with naming_server(address), self.pool.using(address) as connection:
            return connection.ask(call)

    def all_servers(self) -> tuple[Address, ...]:
        """Return the addresses of all servers known now. Raise `ToolFailed` if none are known."""
        try:
            return super().all_servers()
        except ClientFailure as failure:
            raise self.failed(failure) from None

    def each(self, ask: Callable[[BlockingConnection], T]) -> Iterator[tuple[Address, T]]:
        """Yield the address and answer of each server. If some fail, raise `ToolFailed` after asking all."""
        failed: list[ToolFailed] = []
        for address in self.all_servers():
            try:
                with self.pool.using(address) as connection:
                    answer = ask(connection)
            except ClientFailure as failure:
                failed.append(self.failed(failure, address))
            else:
                yield address, answer
        for each in failed[:-1]:
            print_error(TOOL, str(each))
        if failed:
            raise failed[-1]

    def failed(self, failure: ClientFailure, address: Address | None = None) -> ToolFailed:
        """Return the error to report for a failure of a server; `address` is None if the server is unknown."""
        if address is None and len(self.servers) == 1:
            address = self.servers[0]
        return self._connection_context.failed(failure, "a server" if address is None else str(address))
