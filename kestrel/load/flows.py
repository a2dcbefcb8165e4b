"""Puts and takes of a run, and the preparation and restoring of its queues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from twisted.internet.defer import Deferred

from kestrel.client.call import Call
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
