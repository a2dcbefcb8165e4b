"""Items through a queue as fast as it goes: producers and consumers, and a backlog between them if that is wished."""

from __future__ import annotations

from kestrel.load.figures import Lane
from kestrel.load.ledger import Ledger
from kestrel.load.putting import put_all
from kestrel.load.queues import LoadQueues
from kestrel.load.taking import Taking, take_the_rest
from kestrel.load.work import Work


async def flood(work: Work, queues: LoadQueues, ledger: Ledger) -> None:
    """`--clients` pairs of a producer and a consumer. Each item must come once."""
    [queue] = queues.names
    producers = await work.links(work.options.clients)

    async def put(lane: Lane, end: int | None) -> None:
        await work.all([put_all(work, link, lambda _: queue, ledger, lane, end) for link in producers])

    if work.options.prefill:
        await put(work.figures.lane("prefill"), work.options.prefill)
    consumers = await work.links(work.options.clients)  # not before: a server may hang up on who is idle
    puts, takes = work.figures.lane("put"), work.figures.lane("take")
    taking = Taking(work, queue, ledger, takes)

    async def put_the_others() -> None:
        await put(puts, None)
        taking.all_is_put()

    await work.all([put_the_others(), *(taking.run(link) for link in consumers)])
    await take_the_rest(work, queue, ledger)
