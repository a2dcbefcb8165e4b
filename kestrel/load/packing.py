"""The packing tool: fill and empty a queue repeatedly, so that its journal is rotated, rewritten and packed."""

from __future__ import annotations

from kestrel.load.consumer import LoadConsumer, drain_remaining
from kestrel.load.ledger import Ledger
from kestrel.load.load_queues import LoadQueues, look
from kestrel.load.load_run import LoadRun
from kestrel.load.producer import put_all

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
