"""Takes the items of a run for good, and sees whether all of them come."""

from __future__ import annotations

from typing import Final

from kestrel.client.call import Call
from kestrel.load.figures import Lane
from kestrel.load.ledger import Ledger
from kestrel.load.pump import Pump
from kestrel.load.work import WAIT_MS, Link, Work

_MOST_LEFT: Final = 10_000
"""So many items that should not be there are looked at, and no more."""


class Taking:
    """Several connections that take from one queue until `end` items have come.

    No more gets are under way than there are items to come: so at the end none is left waiting for one.
    """

    def __init__(self, work: Work, queue: bytes, ledger: Ledger, lane: Lane, end: int | None = None) -> None:
        self._work = work
        self._queue = queue
        self._ledger = ledger
        self._lane = lane
        self._end = ledger.total if end is None else end
        self._under_way = 0
        self._all_put_s = float("inf")
        self._is_given_up = False
        self._pumps: list[tuple[Pump[Link, bytes | None], Link]] = []

    def all_is_put(self) -> None:
        """Told by whoever puts. A get that begins after that and finds nothing means that nothing more will come."""
        self._all_put_s = self._work.seconds()

    async def run(self, link: Link) -> None:
        """Take over that connection, to the end."""
        width = self._work.options.pipeline
        pump = Pump(link.pipeline, width, lambda: self._make(link), self._came, self._work.seconds)
        self._pumps.append((pump, link))
        await pump.run()
        if link.pipeline.is_usable and (finish := link.wire.finish(self._queue)) is not None:
            await link.ask(finish)

    def _make(self, link: Link) -> tuple[Link, Call[bytes | None]] | None:
        expected = self._ledger.expected_below(self._end)
        if self._work.is_stopping or self._is_given_up or self._ledger.seen + self._under_way >= expected:
            return None
        self._under_way += 1
        return link, link.wire.take(self._queue, WAIT_MS)

    def _came(self, link: Link, data: bytes | None, began_s: float, ended_s: float) -> None:
        self._under_way -= 1
        if data is not None:
            self._ledger.came(data)
            self._lane.add(len(data), began_s, ended_s)
        elif began_s >= self._all_put_s:
            self._give_up()

    def _give_up(self) -> None:
        """Nothing more will come; what is still asked for would only wait, one get after the other."""
        self._is_given_up = True
        for pump, link in self._pumps:
            pump.stop()
            link.pipeline.drop()


async def take_the_rest(work: Work, queue: bytes, ledger: Ledger) -> None:
    """Take what should not be there any more, so that it is counted. Not where others' items are in the queue."""
    if work.options.anyway or work.is_stopping:
        return
    link = await work.link()
    for _ in range(_MOST_LEFT):
        data = await link.ask(link.wire.take(queue, 0))
        if data is None:
            return
        ledger.came(data)
