"""Puts and takes of a run, and the preparation and restoring of its queues."""

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
from kestrel.load.numbered_items import Ledger
from kestrel.load.report import RequestStats
from kestrel.names import children_among
from kestrel.tools.formatting import show_text
from kestrel.tools.tool_runner import EX_FOUND, ToolFailed


def put_all(
    load_run: LoadRun,
    connection: LoadConnection,
    queue_of: Callable[[int], bytes],
    ledger: Ledger,
    request_stats: RequestStats,
    end: int | None = None,
) -> Deferred[None]:
    """Put items over one connection until all numbers below `end` are used. `end` is the ledger's total by default.

    Several connections can share a ledger: each number is put once.
    """

    def make() -> tuple[tuple[int, int], Call[bool]] | None:
        number = None if load_run.is_stopping else ledger.next_number(end)
        if number is None:
            return None
        data = ledger.items.item(number)
        return (number, len(data)), connection.dialect.put(queue_of(number), data)

    def came(token: tuple[int, int], is_stored: bool, began_s: float, ended_s: float) -> None:
        number, size = token
        ledger.add_put(number, is_stored)
        if is_stored:
            request_stats.add(size, began_s, ended_s)

    return Pump(connection.pipeline, load_run.options.pipeline, make, came, load_run.seconds).run()


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


class LoadQueues:
    """The queues of a run. `is_default` is True if ``--queue`` was not given, so the names are the tool's own."""

    def __init__(self, names: Sequence[bytes], *, is_default: bool) -> None:
        self.names = names
        self._are_ours = is_default
        self._made: set[bytes] = set()

    async def prepare(self, load_run: LoadRun, connection: LoadConnection) -> None:
        """Check the queues before the run. With ``--flush`` drop their items first.

        Raise `ToolFailed` if a queue has items or children. ``--anyway`` allows both, but not items that remain after
        a flush.
        """
        for name in self.names:
            look = await connection.ask(connection.dialect.look(name))
            if look.exists is False or (look.exists is None and self._are_ours and not look.items):
                self._made.add(name)
            if look.items and load_run.options.flush:
                await connection.ask(connection.dialect.flush(name))
                look = await connection.ask(connection.dialect.look(name))
                if look.items:
                    raise ToolFailed(f"{_shown(name)} is not empty: other clients have {look.items:,} open", EX_FOUND)
            elif look.items and not load_run.options.anyway:
                raise ToolFailed(
                    f"{_shown(name)} is not empty, but has {look.items:,} already: name another queue with --queue,"
                    " or use --flush to drop them, or --anyway to have them taken along with the run's own",
                    EX_FOUND,
                )

        if not load_run.options.anyway and (listing := connection.dialect.names()) is not None:
            self._check_no_children(await connection.ask(listing))

    def _check_no_children(self, there: list[bytes]) -> None:
        """Raise `ToolFailed` if a queue has children: they would get each item too, and have readers of their own."""
        for name in self.names:
            children = children_among(there, name)
            if children:
                raise ToolFailed(
                    f"{_shown(name)} has a child, {_shown(children[0])}, which would get the run's items as well: name"
                    " another queue with --queue, or use --anyway to have them stay there",
                    EX_FOUND,
                )

    async def restore(self, load_run: LoadRun, connection: LoadConnection) -> None:
        """Delete the queues that the run has created or that have default names, and flush the others.

        With ``--anyway`` only delete those that the run has created.
        """
        for name in self.names:
            if name in self._made or (self._are_ours and not load_run.options.anyway):
                await connection.ask(connection.dialect.delete(name))
            elif not load_run.options.anyway:
                await connection.ask(connection.dialect.flush(name))


async def look(load_run: LoadRun, names: Sequence[bytes]) -> list[QueueState]:
    """Return the state of each queue. A new connection is used, since the server may have closed an idle one."""
    connection = await load_run.connection()
    found = [await connection.ask(connection.dialect.look(name)) for name in names]
    connection.pipeline.drop()
    return found


def _shown(name: bytes) -> str:
    return "the queue " + show_text(name.decode("utf-8", "surrogateescape"))


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
