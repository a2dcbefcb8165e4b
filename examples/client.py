"""A Twisted program that has its work from a queue server: pages are put by one, fetched by three.

    make run                                              in one shell
    .venv/bin/python examples/client.py [HOST[:PORT] ...] in another

puts ten pages and works on them, until there have been none for a second. The third page fails when it is tried for
the first time: it goes back to the head of its queue, and one of the three takes it again. Kill it half-way, with
Ctrl-C or kill -9, and start it again: no page is lost. The status at the end is 1 where the servers fail, and 130 after
Ctrl-C.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, FirstError, gatherResults
from twisted.internet.task import deferLater, react

from kestrel.client.client import Client
from kestrel.client.errors import ClientFailure

QUEUE = "pages"


class Worker:
    """Takes a page at a time."""

    failures = 0

    def __init__(self, reactor: Any, client: Client, name: str) -> None:
        self._reactor = reactor
        self._client = client
        self._name = name

    async def run(self) -> None:
        """Work until there has been nothing to do for a second."""
        while await self._one():
            pass

    async def _one(self) -> bool:
        try:
            async with self._client.reliable_get(QUEUE, timeout=1) as page:
                if page is None:
                    return False
                await self._fetch(page.decode())
        except LookupError as error:
            print(f"{self._name}: {error}, so it goes back")
        return True

    async def _fetch(self, page: str) -> None:
        await deferLater(self._reactor, 0.1)
        if page == "page 3" and not Worker.failures:
            Worker.failures += 1
            raise LookupError(f"{page} is not there")
        print(f"{self._name}: {page} is done")


async def main(reactor: Any, servers: Sequence[str]) -> None:
    """Put some pages, and have three workers fetch them."""
    async with Client(reactor, servers) as client:
        print(f"servers: {await client.version()}")
        stored = await client.put_many(QUEUE, [b"page %d" % number for number in range(1, 11)])
        print(f"{stored} pages are put")
        workers = [Worker(reactor, client, name) for name in ("Ann", "Ben", "Cleo")]
        try:
            await gatherResults([Deferred.fromCoroutine(worker.run()) for worker in workers], consumeErrors=True)
        except FirstError as error:
            error.subFailure.raiseException()
    print("nothing is left")


async def program(reactor: Any) -> None:
    """The same from the shell: Ctrl-C and servers that fail end it with a line."""
    working = Deferred.fromCoroutine(main(reactor, sys.argv[1:] or ["localhost"]))
    signal.signal(signal.SIGINT, lambda *_: reactor.callFromThread(working.cancel))  # pages in work go back
    try:
        await working
    except ClientFailure as error:
        sys.exit(str(error))
    except CancelledError:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    react(lambda reactor: Deferred.fromCoroutine(program(reactor)))
