"""A Twisted program that puts pages into a queue of a server and fetches them with three workers.

    make run                                              in one shell
    .venv/bin/python examples/client.py [HOST[:PORT] ...] in another

It puts ten pages and works on them until none has arrived for a second. The first attempt at the third page fails. The
page goes back to the head of its queue, and a worker takes it again. Stop the program with Ctrl-C or kill -9, and start
it again: no page is lost. The exit status is 1 if the servers fail, and 130 after Ctrl-C.
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
    """A worker that fetches one page at a time."""

    failures = 0

    def __init__(self, reactor: Any, client: Client, name: str) -> None:
        self._reactor = reactor
        self._client = client
        self._name = name

    async def run(self) -> None:
        """Fetch pages until none has arrived for a second."""
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
    """Put ten pages, and let three workers fetch them."""
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
    """Run `main` for the shell: print one line and exit after Ctrl-C or a failure of the servers."""
    working = Deferred.fromCoroutine(main(reactor, sys.argv[1:] or ["localhost"]))
    # Cancelling puts the pages of the workers back.
    signal.signal(signal.SIGINT, lambda *_: reactor.callFromThread(working.cancel))
    try:
        await working
    except ClientFailure as error:
        sys.exit(str(error))
    except CancelledError:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    react(lambda reactor: Deferred.fromCoroutine(program(reactor)))
