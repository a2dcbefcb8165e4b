"""Many clients put, and nobody takes."""

from __future__ import annotations

from collections.abc import Sequence

from kestrel.load.ledger import Ledger
from kestrel.load.putting import put_all
from kestrel.load.queues import LoadQueues, look
from kestrel.load.work import Work


async def put_many(work: Work, queues: LoadQueues, ledger: Ledger) -> None:
    """Items to one queue or to several in turn; then the queues must hold all that was stored."""
    names = queues.names
    before = await _held(work, names)
    links = await work.links(work.options.clients)
    lane = work.figures.lane("put")
    await work.all([put_all(work, link, lambda number: names[number % len(names)], ledger, lane) for link in links])
    if not work.is_stopping:
        work.figures.counts["missing"] = max(0, before + ledger.stored - await _held(work, names))


async def _held(work: Work, names: Sequence[bytes]) -> int:
    """How many items the queues say that they have."""
    return sum(each.items for each in await look(work, names))
