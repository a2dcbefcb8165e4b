"""Taking and confirming the items of a run, and checking that all of them come."""

from __future__ import annotations

from typing import Final

from kestrel.client.call import Call
from kestrel.load.ledger import Ledger
from kestrel.load.load_run import WAIT_MS, LoadConnection, LoadRun
from kestrel.load.pump import Pump
from kestrel.load.run_stats import RequestStats

_MAX_REMAINING: Final = 10_000
"""Maximum number of unexpected remaining items that are taken and counted."""


class LoadConsumer:
    """A consumer with several connections that take from one queue until all items below number `end` have come.

    Refused items are not expected. `end` is the ledger's total by default.

    There are never more outstanding gets than items to come, so that no get is left waiting at the end.
    """

    def __init__(
        self, load_run: LoadRun, queue: bytes, ledger: Ledger, request_stats: RequestStats, end: int | None = None
    ) -> None:
        self._load_run = load_run
        self._queue = queue
        self._ledger = ledger
        self._lane = request_stats
        self._end = ledger.total if end is None else end
        self._outstanding = 0
        self._all_put_s = float("inf")
        self._is_given_up = False
        self._pumps: list[tuple[Pump[LoadConnection, bytes | None], LoadConnection]] = []

    def all_put(self) -> None:
        """Record that all puts are done. A get that begins later and finds no item then ends the consumer."""
        self._all_put_s = self._load_run.seconds()

    async def run(self, connection: LoadConnection) -> None:
        """Take items over a connection until all expected items have come, or the run stops.

        Also end if a get that began after `all_put` finds no item.
        """
        width = self._load_run.options.pipeline
        pump = Pump(connection.pipeline, width, lambda: self._make(connection), self._came, self._load_run.seconds)
        self._pumps.append((pump, connection))
        await pump.run()
        if connection.pipeline.is_usable and (finish := connection.dialect.finish(self._queue)) is not None:
            await connection.ask(finish)

    def _make(self, connection: LoadConnection) -> tuple[LoadConnection, Call[bytes | None]] | None:
        expected = self._ledger.expected_below(self._end)
        if self._load_run.is_stopping or self._is_given_up or self._ledger.seen + self._outstanding >= expected:
            return None
        self._outstanding += 1
        return connection, connection.dialect.take(self._queue, WAIT_MS)

    def _came(self, connection: LoadConnection, data: bytes | None, began_s: float, ended_s: float) -> None:
        self._outstanding -= 1
        if data is not None:
            self._ledger.came(data)
            self._lane.add(len(data), began_s, ended_s)
        elif began_s >= self._all_put_s:
            self._give_up()

    def _give_up(self) -> None:
        """Stop all pumps: no more items will come, and outstanding gets would only time out."""
        self._is_given_up = True
        for pump, connection in self._pumps:
            pump.stop()
            connection.pipeline.drop()


async def drain_remaining(load_run: LoadRun, queue: bytes, ledger: Ledger) -> None:
    """Take up to 10,000 remaining items of the queue and count them in the ledger.

    Do nothing with ``--anyway`` or after a stop.
    """
    if load_run.options.anyway or load_run.is_stopping:
        return
    connection = await load_run.connection()
    for _ in range(_MAX_REMAINING):
        data = await connection.ask(connection.dialect.take(queue, 0))
        if data is None:
            return
        ledger.came(data)
