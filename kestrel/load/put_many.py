"""The put-many tool: many clients put items, and none takes them."""

from __future__ import annotations

from collections.abc import Sequence

from kestrel.load.ledger import Ledger
from kestrel.load.load_queues import LoadQueues, look
from kestrel.load.load_run import LoadRun
from kestrel.load.producer import put_all


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
