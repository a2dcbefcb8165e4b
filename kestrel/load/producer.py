"""Putting the items of a run."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import Deferred

from kestrel.client.call import Call
from kestrel.load.ledger import Ledger
from kestrel.load.load_run import LoadConnection, LoadRun
from kestrel.load.pump import Pump
from kestrel.load.run_stats import RequestStats


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
