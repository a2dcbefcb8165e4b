"""The flood tool: producers and consumers at full speed, with an optional backlog between them."""

from __future__ import annotations

from kestrel.load.consumer import LoadConsumer, drain_remaining
from kestrel.load.ledger import Ledger
from kestrel.load.load_queues import LoadQueues
from kestrel.load.load_run import LoadRun
from kestrel.load.producer import put_all
from kestrel.load.run_stats import RequestStats


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
