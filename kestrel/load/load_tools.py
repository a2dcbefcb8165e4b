"""The load tools, one function each."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from kestrel.client.errors import OpenReadsError
from kestrel.client.thrift import OpenRead
from kestrel.load.flows import LoadConsumer, LoadQueues, drain_remaining, look, put_all
from kestrel.load.load_run import WAIT_MS, LoadConnection, LoadRun
from kestrel.load.numbered_items import Ledger
from kestrel.load.report import RequestStats


async def flood(load_run: LoadRun, queues: LoadQueues, ledger: Ledger) -> None:
    """Put `--prefill` items, then run `--clients` producers and as many consumers. The ledger counts what came."""
    [queue] = queues.names
    producers = await load_run.connections(load_run.options.clients)

    async def put(request_stats: RequestStats, end: int | None) -> None:
        await load_run.all(
            [put_all(load_run, connection, lambda _: queue, ledger, request_stats, end) for connection in producers]
        )

    if load_run.options.prefill:
        await put(load_run.run_stats.request_stats("prefill"), load_run.options.prefill)
    consumers = await load_run.connections(load_run.options.clients)  # not earlier: a server may close idle connections
    puts, takes = load_run.run_stats.request_stats("put"), load_run.run_stats.request_stats("take")
    taking = LoadConsumer(load_run, queue, ledger, takes)

    async def put_the_others() -> None:
        await put(puts, None)
        taking.all_put()

    await load_run.all([put_the_others(), *(taking.run(connection) for connection in consumers)])
    await drain_remaining(load_run, queue, ledger)


async def many_clients(load_run: LoadRun, queues: LoadQueues, ledger: Ledger) -> None:
    """Open `--clients` connections. Each rests, puts, rests and takes in a loop, until all items have been put.

    Then take the remaining items over one more connection.
    """
    [queue] = queues.names
    random = Random(load_run.options.seed)
    connects = load_run.run_stats.request_stats("connect")
    connections = await load_run.connections(
        load_run.options.clients, lambda began_s, ended_s: connects.add(0, began_s, ended_s)
    )
    puts, takes = load_run.run_stats.request_stats("put"), load_run.run_stats.request_stats("take")

    async def rest() -> None:
        await load_run.sleep(random.uniform(0, 2 * load_run.options.pause_s))

    async def put(connection: LoadConnection, number: int) -> None:
        data = ledger.items.item(number)
        began_s = load_run.seconds()
        is_stored = await connection.ask(connection.dialect.put(queue, data))
        ledger.add_put(number, is_stored)
        if is_stored:
            puts.add(len(data), began_s, load_run.seconds())

    async def take(connection: LoadConnection) -> bool:
        began_s = load_run.seconds()
        data = await connection.ask(connection.dialect.take(queue, WAIT_MS))
        if data is None:
            return False
        ledger.came(data)
        takes.add(len(data), began_s, load_run.seconds())
        finish = connection.dialect.finish(queue)
        if finish is not None:
            await connection.ask(finish)
        return True

    async def client(connection: LoadConnection) -> None:
        await rest()
        while not load_run.is_stopping and (number := ledger.next_number()) is not None:
            await put(connection, number)
            await rest()
            await take(connection)
            await rest()

    async def take_the_tail() -> None:
        """Take the run's remaining items. Some remain if a client found no item, or took one of another client."""
        connection = await load_run.connection()
        while not load_run.is_stopping and ledger.seen < ledger.expected and await take(connection):
            pass

    await load_run.all([client(connection) for connection in connections])
    await take_the_tail()
    await drain_remaining(load_run, queue, ledger)


async def put_many(load_run: LoadRun, queues: LoadQueues, ledger: Ledger) -> None:
    """Put items to one queue, or to several in turn. Then count stored items that the queues do not hold as missing."""
    names = queues.names
    before = await _count_items(load_run, names)
    connections = await load_run.connections(load_run.options.clients)
    request_stats = load_run.run_stats.request_stats("put")
    await load_run.all(
        [
            put_all(load_run, connection, lambda number: names[number % len(names)], ledger, request_stats)
            for connection in connections
        ]
    )
    if not load_run.is_stopping:
        load_run.run_stats.counts["missing"] = max(0, before + ledger.stored - await _count_items(load_run, names))


async def _count_items(load_run: LoadRun, names: Sequence[bytes]) -> int:
    """Return the total number of items that the server reports for the queues."""
    return sum(each.items for each in await look(load_run, names))


_MB = 1_000_000


async def packing(load_run: LoadRun, queues: LoadQueues, ledger: Ledger) -> None:
    """Put `--items` items and take all of them, `--cycles` times. Record the journal's size after each half.

    End early if items are missing after a cycle.
    """
    [queue] = queues.names
    connections = await load_run.connections(load_run.options.clients)
    largest = last = 0
    for cycle in range(1, load_run.options.cycles + 1):
        if load_run.is_stopping:
            break
        end = cycle * load_run.options.items
        putting, taken = (
            load_run.run_stats.request_stats(f"put {cycle}"),
            load_run.run_stats.request_stats(f"take {cycle}"),
        )
        await load_run.all(
            [put_all(load_run, connection, lambda _: queue, ledger, putting, end) for connection in connections]
        )
        putting.journal_bytes = (await look(load_run, [queue]))[0].journal_bytes
        taking = LoadConsumer(load_run, queue, ledger, taken, end)
        taking.all_put()
        await load_run.all([taking.run(connection) for connection in connections])
        taken.journal_bytes = last = (await look(load_run, [queue]))[0].journal_bytes
        largest = max(largest, putting.journal_bytes, last)
        if ledger.seen + ledger.refused < end:
            break
    await drain_remaining(load_run, queue, ledger)
    load_run.run_stats.remarks.append(
        f"the journal had {largest / _MB:.2f} MB at most after a half, and {last / _MB:.2f} MB at the end"
    )


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
