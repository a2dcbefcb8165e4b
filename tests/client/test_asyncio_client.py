"""The asyncio client: the tests of the blocking client, and what only concurrent requests show."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import pytest

from kestrel.address import Address
from kestrel.client.asyncio_client import AsyncClient, AsyncioServer
from kestrel.client.errors import AllInUse, CannotConnect, ConnectionFailed
from tests.client import test_blocking, test_tls
from tests.client.scripted import reset, scripted, talk, talk_and_stay
from tests.server.running import PATIENCE_S, Server

T = TypeVar("T")

NOT_SHARED = re.compile(
    "forked_process|closed_client_can_be_used_again|kept_connection_that_has_ended|does_not_read|interrupted_read"
)
"""Tests that use the parts of the blocking client, or forks, use after `close`, and KeyboardInterrupt in a request."""

FIXTURE = type(test_blocking.servers)
SHARED = {
    name: value
    for name, value in {**vars(test_blocking), **vars(test_tls)}.items()
    if isinstance(value, FIXTURE) or (name.startswith("test_") and not NOT_SHARED.search(name))
}
globals().update(SHARED)


class BlockingAdapter:
    """An AsyncClient with the methods of a BlockingClient. After `close` it uses a new AsyncClient."""

    def __init__(self, *servers: Any, **options: Any) -> None:
        self._make = partial(AsyncClient, *servers, **options)
        self._client = self._make()
        self._runner = asyncio.Runner()

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(coroutine)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)
        return lambda *arguments, **options: self._run(method(*arguments, **options))

    def __enter__(self) -> BlockingAdapter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._runner.close()

    def close(self) -> None:
        """Close the client and make a new one."""
        self._run(self._client.close())
        self._client = self._make()

    @contextmanager
    def reliable_get(self, *arguments: Any, **options: Any) -> Iterator[bytes | None]:
        """Take an item for the duration of a `with` block."""
        taking = self._client.reliable_get(*arguments, **options)
        item = self._run(taking.__aenter__())
        try:
            yield item
        except BaseException as error:
            if not self._run(taking.__aexit__(type(error), error, error.__traceback__)):
                raise
        else:
            self._run(taking.__aexit__(None, None, None))

    def monitor(self, *arguments: Any) -> Iterator[bytes]:
        """Yield items as they arrive."""
        items = self._client.monitor(*arguments)

        async def next_item() -> bytes | None:
            return await anext(items, None)

        async def leave() -> None:
            await items.aclose()

        try:
            while (item := self._run(next_item())) is not None:
                yield item
        finally:
            self._run(leave())


@pytest.fixture(autouse=True)
def asyncio_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the tests of the blocking client use an AsyncClient."""
    for module in (test_blocking, test_tls):
        monkeypatch.setattr(module, "BlockingClient", BlockingAdapter)


def test_most_tests_are_shared() -> None:
    tests = [name for name in {**vars(test_blocking), **vars(test_tls)} if name.startswith("test_")]
    assert len(tests) - 5 == len([name for name in SHARED if name.startswith("test_")])


def test_requests_run_concurrently(addresses: list[str]) -> None:
    async def main() -> list[object]:
        async with AsyncClient(addresses[0], timeout_s=PATIENCE_S) as client:
            await client.delete("work")
            waiting = [asyncio.create_task(client.get("work", timeout=PATIENCE_S)) for _ in range(3)]
            assert await client.put_many("work", [b"a", b"b", b"c"]) == 3
            return sorted(await asyncio.gather(*waiting))

    assert asyncio.run(main()) == [b"a", b"b", b"c"]


def test_a_cancelled_reliable_get_returns_its_item(servers: list[Server]) -> None:
    async def main(protocol: Any) -> list[bytes | None]:
        async with AsyncClient(f"127.0.0.1:{servers[0].port_of(protocol)}", protocol) as client:
            await client.delete("work")
            await client.put("work", b"a")
            is_taken = asyncio.Event()

            async def work() -> None:
                async with client.reliable_get("work", hold=PATIENCE_S * 10):
                    is_taken.set()
                    await asyncio.Event().wait()

            working = asyncio.create_task(work())
            await is_taken.wait()
            working.cancel()
            await asyncio.wait([working])
            assert working.cancelled()
            return [await client.get("work", timeout=PATIENCE_S), await client.get("work")]

    for protocol in ("memcache", "thrift"):
        assert asyncio.run(main(protocol)) == [b"a", None]


def test_a_cancelled_request_ends_its_connection() -> None:
    async def main(address: str) -> bytes | None:
        async with AsyncClient(address, timeout_s=PATIENCE_S) as client:
            waiting = asyncio.create_task(client.get("work", timeout=1))
            while not is_asked:
                await asyncio.sleep(0)
            waiting.cancel()
            return await client.get("work")

    is_asked: list[bool] = []

    def ask_and_wait(connection: Any) -> None:
        talk((b"get work/t=1000\r\n", b""))(connection)
        is_asked.append(True)
        assert connection.recv(1) == b""

    with scripted(ask_and_wait, talk((b"get work\r\n", test_blocking.ITEM))) as server:
        assert asyncio.run(main(server.address)) == b"a"


def test_an_unused_connection_that_has_ended_is_replaced() -> None:
    async def main(address: str) -> list[bool]:
        async with AsyncClient(address, timeout_s=PATIENCE_S) as client:
            stored = [await client.put("work", b"a")]
            [server] = client._roster.servers
            [connection] = server._idle
            while connection.is_at_rest():
                await asyncio.sleep(0)
            return [*stored, await client.put("work", b"a")]

    put = talk((test_blocking.PUT, test_blocking.STORED))
    with scripted(put, put) as server:
        assert asyncio.run(main(server.address)) == [True, True]


def test_incompletely_sent_request_is_certainly_not_executed() -> None:
    async def main(address: str) -> None:
        async with AsyncClient(address, timeout_s=PATIENCE_S) as client:
            with pytest.raises(CannotConnect, match="while the request was being sent"):
                await client.put("work", b"x" * (15 << 20))

    with scripted(reset((b"set work", b""))) as server:
        asyncio.run(main(server.address))


def test_requests_beyond_the_connections_of_a_server_wait_for_one() -> None:
    async def main(address: str) -> list[object]:
        async with AsyncClient(address, timeout_s=PATIENCE_S, max_connections=1) as client:
            return await asyncio.gather(client.get("work"), client.get("work"))

    exchanges = [(test_blocking.GET, test_blocking.ITEM)] * 2
    with scripted(talk_and_stay(*exchanges)) as server:
        assert asyncio.run(main(server.address)) == [b"a", b"a"]


def test_a_wait_for_a_connection_has_a_limit() -> None:
    async def main() -> None:
        server = AsyncioServer(Address("localhost", 1), 0.001, None, None, max_connections=1)
        await server._free.acquire()
        with pytest.raises(AllInUse, match="localhost:1: all connections to this server are in use"):
            await server.take()

    asyncio.run(main())


def test_close_ends_requests_for_good(addresses: list[str]) -> None:
    async def main() -> None:
        client = AsyncClient(addresses[0], timeout_s=PATIENCE_S)
        await client.delete("work")
        waiting = asyncio.create_task(client.get("work", timeout=PATIENCE_S))
        await client.status()
        await client.close()
        with pytest.raises(ConnectionFailed):
            await waiting
        with pytest.raises(CannotConnect, match="the client is closed"):
            await client.get("work")

    asyncio.run(main())
