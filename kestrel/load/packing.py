"""Fills a queue and empties it, again and again, so that its journal is rotated, rewritten and packed."""

from __future__ import annotations

from kestrel.load.ledger import Ledger
from kestrel.load.putting import put_all
from kestrel.load.queues import LoadQueues, look
from kestrel.load.taking import Taking, take_the_rest
from kestrel.load.work import Work

_MB = 1_000_000


async def packing(work: Work, queues: LoadQueues, ledger: Ledger) -> None:
    """`--cycles` times: `--items` are put, then all are taken. After each half the journal is looked at."""
    [queue] = queues.names
    links = await work.links(work.options.clients)
    largest = last = 0
    for cycle in range(1, work.options.cycles + 1):
        if work.is_stopping:
            break
        end = cycle * work.options.items
        putting, taken = work.figures.lane(f"put {cycle}"), work.figures.lane(f"take {cycle}")
        await work.all([put_all(work, link, lambda _: queue, ledger, putting, end) for link in links])
        putting.journal_bytes = (await look(work, [queue]))[0].journal_bytes
        taking = Taking(work, queue, ledger, taken, end)
        taking.all_is_put()
        await work.all([taking.run(link) for link in links])
        taken.journal_bytes = last = (await look(work, [queue]))[0].journal_bytes
        largest = max(largest, putting.journal_bytes, last)
        if ledger.seen + ledger.refused < end:
            break
    await take_the_rest(work, queue, ledger)
    work.figures.remarks.append(
        f"the journal had {largest / _MB:.2f} MB at most after a half, and {last / _MB:.2f} MB at the end"
    )
