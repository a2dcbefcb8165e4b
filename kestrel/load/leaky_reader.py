"""Readers that open items and confirm most of them, and give the others back in one of the ways that there are."""

from __future__ import annotations

from random import Random
from typing import Final

from kestrel.client.errors import OpenReadsError
from kestrel.client.thrift import OpenRead
from kestrel.load.ledger import Ledger
from kestrel.load.putting import put_all
from kestrel.load.queues import LoadQueues
from kestrel.load.taking import take_the_rest
from kestrel.load.work import Link, Work

_WAIT_MS: Final = 250
_LONG_HOLD_MS: Final = 60_000
"""Of reads that are to be confirmed, where the client says how long they may be open."""
_PATIENCE_S: Final = 3.0
"""When nothing has come for so long, and for as long as a read may be held, nothing will."""


async def leaky_reader(work: Work, queues: LoadQueues, ledger: Ledger) -> None:
    """One producer, and `--clients` readers, until each item was confirmed once."""
    [queue] = queues.names
    [producer] = await work.links(1)
    puts = work.figures.lane("put")
    readers = _Readers(work, queue, ledger)
    links = await work.links(work.options.clients)

    async def put() -> None:
        await put_all(work, producer, lambda _: queue, ledger, puts)
        readers.all_is_put = True

    await work.all([put(), *(readers.run(link, number) for number, link in enumerate(links))])
    await take_the_rest(work, queue, ledger)
    counts = work.figures.counts
    counts |= {"leaked": readers.leaked, "came_again": readers.again}
    work.figures.remarks.append(f"{readers.leaked:,} were given back, and {readers.again:,} came again")


class _Readers:
    """All of them, and what became of the items between them."""

    def __init__(self, work: Work, queue: bytes, ledger: Ledger) -> None:
        self._work = work
        self._queue = queue
        self._ledger = ledger
        self._lane = work.figures.lane("open, confirm")
        self._leaks = bytearray(ledger.total)
        self._last_s = work.seconds()
        self.all_is_put = False
        self.leaked = 0
        """How often an item was not confirmed."""
        self.again = 0
        """How often an item came that had been leaked before."""

    async def run(self, link: Link, number: int) -> None:
        """One reader, which may have several connections one after the other."""
        random = Random(f"{self._work.options.seed}.{number}")
        while not self._is_over():
            link = await self._one(link, random)

    def _is_over(self) -> bool:
        if self._work.is_stopping or self._ledger.seen >= self._ledger.expected:
            return True
        if not self.all_is_put:
            self._last_s = self._work.seconds()
        return self._work.seconds() - self._last_s > _PATIENCE_S + self._work.options.hold_s

    async def _one(self, link: Link, random: Random) -> Link:
        """One item, or none; and the connection for the next."""
        is_leaked = random.random() < self._work.options.leak
        ways = self._ways(link)
        way = random.choice(ways) if is_leaked else "confirm"
        hold_ms = round(self._work.options.hold_s * 1000) if way == "time out" else _LONG_HOLD_MS
        began_s = self._work.seconds()
        read = await link.ask(link.wire.open(self._queue, _WAIT_MS, hold_ms))
        if read is None:
            return link
        self._last_s = self._work.seconds()
        number = self._ledger.recognised(read.data)
        if number is None:  # it is not ours to give back
            way = "confirm"
        elif self._leaks[number]:
            self._leaks[number] = 0
            self.again += 1
        if way == "confirm":
            return await self._confirm(link, read, number, began_s)
        assert number is not None
        self._leaks[number] = 1
        self.leaked += 1
        if way == "abort":
            await link.ask(link.wire.abort(self._queue, read))
        elif way == "hang up":
            link.pipeline.drop()
            return await self._work.link()
        return link

    async def _confirm(self, link: Link, read: OpenRead, number: int | None, began_s: float) -> Link:
        try:
            await link.ask(link.wire.confirm(self._queue, read))
        except OpenReadsError:  # the server has a timeout of its own, and it has passed
            self.leaked += 1
            if number is not None:
                self._leaks[number] = 1
            link.pipeline.drop()
            return await self._work.link()
        if number is not None:
            self._ledger.done(number)
            self._lane.add(len(read.data), began_s, self._work.seconds())
        return link

    def _ways(self, link: Link) -> list[str]:
        """How an item can be given back."""
        wire = link.wire
        ways = {
            "abort": wire.may_abort,
            "hang up": wire.reads_are_of_connection,
            "time out": wire.reads_time_out,
        }
        return [way for way, is_there in ways.items() if is_there]
