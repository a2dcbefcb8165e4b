"""The leaky-reader tool: readers that confirm most open reads, and have the others put back in various ways."""

from __future__ import annotations

from random import Random
from typing import Final

from kestrel.client.errors import OpenReadsError
from kestrel.client.thrift import OpenRead
from kestrel.load.consumer import drain_remaining
from kestrel.load.ledger import Ledger
from kestrel.load.load_queues import LoadQueues
from kestrel.load.load_run import LoadConnection, LoadRun
from kestrel.load.producer import put_all

_WAIT_MS: Final = 250
_LONG_HOLD_MS: Final = 60_000
"""Timeout of open reads that will be confirmed, in protocols that let the client set one."""
_PATIENCE_S: Final = 3.0
"""Time without an item, in addition to `--hold`, after which no more items are expected."""


async def leaky_reader(load_run: LoadRun, queues: LoadQueues, ledger: Ledger) -> None:
    """Run one producer and `--clients` readers until each item was confirmed once, or no more items come."""
    [queue] = queues.names
    [producer] = await load_run.connections(1)
    puts = load_run.run_stats.request_stats("put")
    readers = _LeakyReaders(load_run, queue, ledger)
    connections = await load_run.connections(load_run.options.clients)

    async def put() -> None:
        await put_all(load_run, producer, lambda _: queue, ledger, puts)
        readers.all_put = True

    await load_run.all([put(), *(readers.run(connection, number) for number, connection in enumerate(connections))])
    await drain_remaining(load_run, queue, ledger)
    counts = load_run.run_stats.counts
    counts |= {"leaked": readers.leaked, "came_again": readers.again}
    load_run.run_stats.remarks.append(f"{readers.leaked:,} were put back, and {readers.again:,} came again")


class _LeakyReaders:
    """The readers of a run, and the items that they have leaked."""

    def __init__(self, load_run: LoadRun, queue: bytes, ledger: Ledger) -> None:
        self._load_run = load_run
        self._queue = queue
        self._ledger = ledger
        self._lane = load_run.run_stats.request_stats("open, confirm")
        self._leaks = bytearray(ledger.total)
        self._last_s = load_run.seconds()
        self.all_put = False
        self.leaked = 0
        """Number of open reads that were deliberately not confirmed, or confirmed too late."""
        self.again = 0
        """Number of times that an item came again after a leak."""

    async def run(self, connection: LoadConnection, number: int) -> None:
        """Run one reader, which may use several connections in succession."""
        random = Random(f"{self._load_run.options.seed}.{number}")
        while not self._is_over():
            connection = await self._one(connection, random)

    def _is_over(self) -> bool:
        if self._load_run.is_stopping or self._ledger.seen >= self._ledger.expected:
            return True
        if not self.all_put:
            self._last_s = self._load_run.seconds()
        return self._load_run.seconds() - self._last_s > _PATIENCE_S + self._load_run.options.hold_s

    async def _one(self, connection: LoadConnection, random: Random) -> LoadConnection:
        """Read at most one item, and return the connection for the next one."""
        is_leaked = random.random() < self._load_run.options.leak
        ways = self._ways(connection)
        way = random.choice(ways) if is_leaked else "confirm"
        hold_ms = round(self._load_run.options.hold_s * 1000) if way == "time out" else _LONG_HOLD_MS
        began_s = self._load_run.seconds()
        read = await connection.ask(connection.dialect.open(self._queue, _WAIT_MS, hold_ms))
        if read is None:
            return connection
        self._last_s = self._load_run.seconds()
        number = self._ledger.identify(read.data)
        if number is None:  # not an item of this run: do not put it back
            way = "confirm"
        elif self._leaks[number]:
            self._leaks[number] = 0
            self.again += 1
        if way == "confirm":
            return await self._confirm(connection, read, number, began_s)
        assert number is not None
        self._leaks[number] = 1
        self.leaked += 1
        if way == "abort":
            await connection.ask(connection.dialect.abort(self._queue, read))
        elif way == "hang up":
            connection.pipeline.drop()
            return await self._load_run.connection()
        return connection

    async def _confirm(
        self, connection: LoadConnection, read: OpenRead, number: int | None, began_s: float
    ) -> LoadConnection:
        try:
            await connection.ask(connection.dialect.confirm(self._queue, read))
        except OpenReadsError:  # the server's own open transaction timeout has passed
            self.leaked += 1
            if number is not None:
                self._leaks[number] = 1
            connection.pipeline.drop()
            return await self._load_run.connection()
        if number is not None:
            self._ledger.done(number)
            self._lane.add(len(read.data), began_s, self._load_run.seconds())
        return connection

    def _ways(self, connection: LoadConnection) -> list[str]:
        """Return the ways in which an open read can be put back in this protocol."""
        dialect = connection.dialect
        ways = {
            "abort": dialect.may_abort,
            "hang up": dialect.reads_are_of_connection,
            "time out": dialect.reads_time_out,
        }
        return [way for way, is_there in ways.items() if is_there]
