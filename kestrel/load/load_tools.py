"""The load tools, one function each, and what they share: puts, takes, and the state of the run's queues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from twisted.internet.defer import Deferred

from kestrel.client.call import Call
from kestrel.client.errors import OpenReadsError
from kestrel.client.thrift import OpenRead
from kestrel.load.load_dialects import QueueState
from kestrel.load.load_run import WAIT_MS, LoadConnection, LoadRun, Pump
from kestrel.load.report import RequestStats
from kestrel.names import children_among
from kestrel.tools.formatting import show_text
from kestrel.tools.tool_runner import ToolFailed

_MAX_REMAINING: Final = 10_000
"""Maximum number of unexpected remaining items that are taken and counted."""

_MB: Final = 1_000_000


async def flood(run: LoadRun) -> None:
    """Put `--prefill` items, then run `--clients` producers and as many consumers. The ledger counts what came."""
    [queue] = run.options.queue_names
    producers = await run.connections(run.options.clients)
    if run.options.prefill:
        await _put_all(run, producers, queue, run.stats.request_stats("prefill"), run.options.prefill)
    consumers = await run.connections(run.options.clients)  # not earlier: a server may close idle connections
    puts, takes = run.stats.request_stats("put"), run.stats.request_stats("take")
    taking = LoadConsumer(run, queue, takes, run.options.total)

    async def put() -> None:
        await _put_all(run, producers, queue, puts, run.options.total)
        taking.all_put()

    await run.all([put(), *map(taking.run, consumers)])
    await _drain_remaining(run, queue)


async def many_clients(run: LoadRun) -> None:
    """Open `--clients` connections. Each rests, puts, rests and takes in a loop, until all items have been put.

    Then take the remaining items over one more connection.
    """
    [queue] = run.options.queue_names
    random = Random(run.options.seed)
    ledger = run.ledger
    connects = run.stats.request_stats("connect")
    connections = await run.connections(run.options.clients, connects)
    puts, takes = run.stats.request_stats("put"), run.stats.request_stats("take")

    async def rest() -> None:
        await run.sleep(random.uniform(0, 2 * run.options.pause_s))

    async def put(connection: LoadConnection, number: int) -> None:
        data = ledger.items.item(number)
        began_s = run.seconds()
        is_stored = await connection.ask(connection.dialect.put(queue, data))
        ledger.add_put(number, is_stored)
        if is_stored:
            puts.add(len(data), began_s, run.seconds())

    async def take(connection: LoadConnection) -> bool:
        began_s = run.seconds()
        data = await connection.ask(connection.dialect.take(queue, WAIT_MS))
        if data is None:
            return False
        ledger.came(data)
        takes.add(len(data), began_s, run.seconds())
        await connection.finish(queue)
        return True

    async def client(connection: LoadConnection) -> None:
        await rest()
        while not run.is_stopping and (number := ledger.next_number()) is not None:
            await put(connection, number)
            await rest()
            await take(connection)
            await rest()

    await run.all(list(map(client, connections)))
    # Items remain if a client found no item, or took one of another client.
    connection = await run.connection()
    while not run.is_stopping and ledger.seen < ledger.expected and await take(connection):
        pass
    await _drain_remaining(run, queue)


async def put_many(run: LoadRun) -> None:
    """Put items to one queue, or to several in turn. Then count stored items that the queues do not hold as missing."""
    names = run.options.queue_names
    before = await _count_items(run, names)
    connections = await run.connections(run.options.clients)
    puts = run.stats.request_stats("put")
    await run.all(
        [
            _put(run, connection, lambda number: names[number % len(names)], puts, run.options.total)
            for connection in connections
        ]
    )
    if not run.is_stopping:
        run.stats.counts["missing"] = max(0, before + run.ledger.stored - await _count_items(run, names))


async def packing(run: LoadRun) -> None:
    """Put `--items` items and take all of them, `--cycles` times. Record the journal's size after each half.

    End early if items are missing after a cycle.
    """
    [queue] = run.options.queue_names
    connections = await run.connections(run.options.clients)
    largest = last = 0
    for cycle in range(1, run.options.cycles + 1):
        if run.is_stopping:
            break
        end = cycle * run.options.items
        puts, takes = run.stats.request_stats(f"put {cycle}"), run.stats.request_stats(f"take {cycle}")
        await _put_all(run, connections, queue, puts, end)
        puts.journal_bytes = (await _look(run, [queue]))[0].journal_bytes
        taking = LoadConsumer(run, queue, takes, end)
        taking.all_put()
        await run.all(list(map(taking.run, connections)))
        takes.journal_bytes = last = (await _look(run, [queue]))[0].journal_bytes
        largest = max(largest, puts.journal_bytes, last)
        if run.ledger.seen + run.ledger.refused < end:
            break
    await _drain_remaining(run, queue)
    run.stats.remarks.append(
        f"the journal had {largest / _MB:.2f} MB at most after a half, and {last / _MB:.2f} MB at the end"
    )


async def leaky_reader(run: LoadRun) -> None:
    """Run one producer and `--clients` readers until each item was confirmed once, or items stop arriving."""
    [queue] = run.options.queue_names
    producers = await run.connections(1)
    puts = run.stats.request_stats("put")
    readers = _LeakyReaders(run, queue)
    connections = await run.connections(run.options.clients)

    async def put() -> None:
        await _put_all(run, producers, queue, puts, run.options.total)
        readers.all_put = True

    await run.all([put(), *(readers.run(connection, number) for number, connection in enumerate(connections))])
    await _drain_remaining(run, queue)
    run.stats.counts |= {"leaked": readers.leaked, "came_again": readers.again}
    run.stats.remarks.append(f"{readers.leaked:,} were put back, and {readers.again:,} came again")


def _put(
    run: LoadRun, connection: LoadConnection, queue_of: Callable[[int], bytes], stats: RequestStats, end: int
) -> Deferred[None]:
    """Put items over one connection until all numbers below `end` are used. All connections use the same numbers."""

    def make() -> tuple[tuple[int, int], Call[bool]] | None:
        number = None if run.is_stopping else run.ledger.next_number(end)
        if number is None:
            return None
        data = run.ledger.items.item(number)
        return (number, len(data)), connection.dialect.put(queue_of(number), data)

    def came(token: tuple[int, int], is_stored: bool, began_s: float, ended_s: float) -> None:
        number, size = token
        run.ledger.add_put(number, is_stored)
        if is_stored:
            stats.add(size, began_s, ended_s)

    return Pump(connection.pipeline, run.options.pipeline, make, came, run.seconds).run()


async def _put_all(
    run: LoadRun, connections: Sequence[LoadConnection], queue: bytes, stats: RequestStats, end: int
) -> None:
    await run.all([_put(run, connection, lambda _: queue, stats, end) for connection in connections])


class LoadConsumer:
    """A consumer with several connections that take from one queue until all items below number `end` have come.

    Refused items are not expected. There are never more outstanding gets than items to come, so that no get is left
    waiting at the end.
    """

    def __init__(self, run: LoadRun, queue: bytes, stats: RequestStats, end: int) -> None:
        self._run = run
        self._queue = queue
        self._stats = stats
        self._end = end
        self._outstanding = 0
        self._all_put_s = float("inf")
        self._is_given_up = False
        self._pumps: list[tuple[Pump[LoadConnection, bytes | None], LoadConnection]] = []

    def all_put(self) -> None:
        """Record that all puts are done. A get that begins later and finds no item then ends the consumer."""
        self._all_put_s = self._run.seconds()

    async def run(self, connection: LoadConnection) -> None:
        """Take items over a connection until all expected items have come, or the run stops.

        Also end if a get that began after `all_put` finds no item.
        """
        width = self._run.options.pipeline
        pump = Pump(connection.pipeline, width, lambda: self._make(connection), self._came, self._run.seconds)
        self._pumps.append((pump, connection))
        await pump.run()
        if connection.pipeline.is_usable:
            await connection.finish(self._queue)

    def _make(self, connection: LoadConnection) -> tuple[LoadConnection, Call[bytes | None]] | None:
        ledger = self._run.ledger
        is_enough = ledger.seen + self._outstanding >= ledger.expected_below(self._end)
        if self._run.is_stopping or self._is_given_up or is_enough:
            return None
        self._outstanding += 1
        return connection, connection.dialect.take(self._queue, WAIT_MS)

    def _came(self, connection: LoadConnection, data: bytes | None, began_s: float, ended_s: float) -> None:
        self._outstanding -= 1
        if data is not None:
            self._run.ledger.came(data)
            self._stats.add(len(data), began_s, ended_s)
        elif began_s >= self._all_put_s:
            # No more items will come, and outstanding gets would only time out.
            self._is_given_up = True
            for pump, each in self._pumps:
                pump.stop()
                each.pipeline.drop()


async def _drain_remaining(run: LoadRun, queue: bytes) -> None:
    """Take up to `_MAX_REMAINING` items and count them in the ledger. Do nothing with ``--anyway`` or after a stop."""
    if run.options.anyway or run.is_stopping:
        return
    connection = await run.connection()
    for _ in range(_MAX_REMAINING):
        data = await connection.ask(connection.dialect.take(queue, 0))
        if data is None:
            return
        run.ledger.came(data)


async def _count_items(run: LoadRun, names: Sequence[bytes]) -> int:
    """Return the total number of items that the server reports for the queues."""
    return sum(each.items for each in await _look(run, names))


async def _look(run: LoadRun, names: Sequence[bytes]) -> list[QueueState]:
    """Return the state of each queue. A new connection is used, since the server may have closed an idle one."""
    connection = await run.connection()
    found = [await connection.ask(connection.dialect.look(name)) for name in names]
    connection.pipeline.drop()
    return found


async def prepare(run: LoadRun, connection: LoadConnection) -> set[bytes]:
    """Check the queues before the run. With ``--flush`` drop their items first. Return those that the run creates.

    Raise `ToolFailed` if a queue has items or children. ``--anyway`` allows both, but not items that remain after a
    flush.
    """
    options, dialect = run.options, connection.dialect
    made: set[bytes] = set()
    for name in options.queue_names:
        look = await connection.ask(dialect.look(name))
        if look.exists is False or (look.exists is None and options.is_default_queue and not look.items):
            made.add(name)
        if look.items and options.flush:
            await connection.ask(dialect.flush(name))
            look = await connection.ask(dialect.look(name))
            if look.items:
                raise ToolFailed(f"{_shown(name)} is not empty: other clients have {look.items:,} open")
        elif look.items and not options.anyway:
            raise ToolFailed(
                f"{_shown(name)} is not empty, but has {look.items:,} already: name another queue with --queue, or use"
                " --flush to drop them, or --anyway to have them taken along with the run's own"
            )
    if not options.anyway and (listing := dialect.names()) is not None:
        there = await connection.ask(listing)
        for name in options.queue_names:
            # Children would get each item too, and have readers of their own.
            if children := children_among(there, name):
                raise ToolFailed(
                    f"{_shown(name)} has a child, {_shown(children[0])}, which would get the run's items as well: name"
                    " another queue with --queue, or use --anyway to have them stay there"
                )
    return made


async def restore(run: LoadRun, connection: LoadConnection, made: set[bytes]) -> None:
    """Delete the queues that the run has created, as in `made`, or that have default names, and flush the others.

    With ``--anyway`` only delete those that the run has created.
    """
    options, dialect = run.options, connection.dialect
    for name in options.queue_names:
        if name in made or (options.is_default_queue and not options.anyway):
            await connection.ask(dialect.delete(name))
        elif not options.anyway:
            await connection.ask(dialect.flush(name))


def _shown(name: bytes) -> str:
    return "the queue " + show_text(name.decode("utf-8", "surrogateescape"))


_READER_WAIT_MS: Final = 250
"""Wait of one open of a leaky reader. It is short, since items may come back at any time."""
_LONG_HOLD_MS: Final = 60_000
"""Timeout of open reads that will be confirmed, in protocols that let the client set one."""
_PATIENCE_S: Final = 3.0
"""Time without an item, in addition to `--hold`, after which the run ends."""


class _LeakyReaders:
    """The readers of a run, and the items that they have leaked."""

    def __init__(self, run: LoadRun, queue: bytes) -> None:
        self._run = run
        self._queue = queue
        self._ledger = run.ledger
        self._stats = run.stats.request_stats("open, confirm")
        self._leaks = bytearray(run.options.total)
        self._last_s = run.seconds()
        self.all_put = False
        self.leaked = 0
        """Number of open reads that were deliberately not confirmed, or confirmed too late."""
        self.again = 0
        """Number of times that an item came again after a leak."""

    async def run(self, connection: LoadConnection, number: int) -> None:
        """Run one reader, which may use several connections in succession."""
        random = Random(f"{self._run.options.seed}.{number}")
        while not self._is_over():
            connection = await self._one(connection, random)

    def _is_over(self) -> bool:
        if self._run.is_stopping or self._ledger.seen >= self._ledger.expected:
            return True
        if not self.all_put:
            self._last_s = self._run.seconds()
        return self._run.seconds() - self._last_s > _PATIENCE_S + self._run.options.hold_s

    async def _one(self, connection: LoadConnection, random: Random) -> LoadConnection:
        """Read at most one item, and return the connection for the next one."""
        dialect, hold_s = connection.dialect, self._run.options.hold_s
        is_leaked = random.random() < self._run.options.leak
        ways = {
            "abort": dialect.may_abort,
            "hang up": dialect.reads_are_of_connection,
            "time out": dialect.reads_time_out,
        }
        way = random.choice([way for way, is_there in ways.items() if is_there]) if is_leaked else "confirm"
        hold_ms = round(hold_s * 1000) if way == "time out" else _LONG_HOLD_MS
        began_s = self._run.seconds()
        read = await connection.ask(dialect.open(self._queue, _READER_WAIT_MS, hold_ms))
        if read is None:
            return connection
        self._last_s = self._run.seconds()
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
            await connection.ask(dialect.abort(self._queue, read))
        elif way == "hang up":
            connection.pipeline.drop()
            return await self._run.connection()
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
            return await self._run.connection()
        if number is not None:
            self._ledger.done(number)
            self._stats.add(len(read.data), began_s, self._run.seconds())
        return connection
