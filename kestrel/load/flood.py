"""Items through a queue as fast as it goes: producers and consumers, and a backlog between them if that is wished."""

from __future__ import annotations

from kestrel.load.ledger import Ledger
from kestrel.load.putting import put_all
from kestrel.load.queues import LoadQueues
from kestrel.load.taking import Taking, take_the_rest
from kestrel.load.work import Link, Work


async def flood(work: Work, queues: LoadQueues, control: Link, ledger: Ledger) -> None:
    """`--clients` pairs of a producer and a consumer. Each item must come once."""
    [queue] = queues.names
    producers = await work.links(work.options.clients)
    consumers = await work.links(work.options.clients)

    async def put(name: str, end: int | None) -> None:
        lane = work.figures.lane(name)
        await work.all([put_all(work, link, lambda _: queue, ledger, lane, end) for link in producers])

    if work.options.prefill:
        await put("prefill", work.options.prefill)

    async def put_the_others() -> None:
        await put("put", None)
        taking.all_is_put()

    putting = put_the_others()
    taking = Taking(work, queue, ledger, work.figures.lane("take"))
    await work.all([putting, *(taking.run(link) for link in consumers)])
    await take_the_rest(work, control, queue, ledger)
