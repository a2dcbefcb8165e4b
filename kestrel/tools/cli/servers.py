"""The servers that a command is for: how they are asked, and what is said when one of them fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Literal, TypeVar

from kestrel.address import Address
from kestrel.client.blocking_servers import BlockingServers
from kestrel.client.call import Call
from kestrel.client.connection import BlockingConnection
from kestrel.client.dialect import Dialect, MemcacheDialect, ThriftDialect
from kestrel.client.errors import ClientFailure
from kestrel.client.memcache import MemcacheCalls
from kestrel.client.plan import naming_server
from kestrel.client.thrift import ThriftCalls
from kestrel.tls import TlsOptions
from kestrel.tools.connection_errors import ConnectionContext
from kestrel.tools.tool_runner import EX_USAGE, ToolFailed, print_error

T = TypeVar("T")

TOOL: Final = "kestrel-cli"


class CommandServers:
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
        self._connection_context = ConnectionContext("--server", protocol, tls is not None)

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
        with naming_server(address), self.pool.using(address) as connection:
            return connection.ask(call)

    def all_servers(self) -> tuple[Address, ...]:
        """All servers, as they are now. Raises `ToolFailed`."""
        try:
            return self.asked.all_servers()
        except ClientFailure as failure:
            raise self.failed(failure) from None

    def each(self, ask: Callable[[BlockingConnection], T]) -> Iterator[tuple[Address, T]]:
        """What each server answers. All are asked, also when some fail; then a `ToolFailed` is raised."""
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
        """What is said of a failure, at that server or at some server."""
        if address is None and len(self.asked.addresses) == 1:
            address = self.asked.addresses[0]
        return self._connection_context.failed(failure, "a server" if address is None else str(address))

    def close(self) -> None:
        """Hang up."""
        self.asked.close()
