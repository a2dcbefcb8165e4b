"""Puts the items of a run."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import Deferred

from kestrel.client.call import Call
from kestrel.load.figures import Lane
from kestrel.load.ledger import Ledger
from kestrel.load.pump import Pump
from kestrel.load.work import Link, Work


def put_all(
    work: Work, link: Link, queue_of: Callable[[int], bytes], ledger: Ledger, lane: Lane, end: int | None = None
) -> Deferred[None]:
    """Put, over one connection, what nobody else puts, until all below the number `end` have been, or all there are."""

    def make() -> tuple[tuple[int, int], Call[bool]] | None:
        number = None if work.is_stopping else ledger.next_number(end)
        if number is None:
            return None
        data = ledger.items.item(number)
        return (number, len(data)), link.wire.put(queue_of(number), data)

    def came(token: tuple[int, int], is_stored: bool, began_s: float, ended_s: float) -> None:
        number, size = token
        ledger.was_put(number, is_stored)
        if is_stored:
            lane.add(size, began_s, ended_s)

    return Pump(link.pipeline, work.options.pipeline, make, came, work.seconds).run()
