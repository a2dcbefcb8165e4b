"""Workers of a Twisted program that wait in line for jobs, in memory, and one job that comes back.

    .venv/bin/python examples/blocking_queue.py [WORKERS]

Nobody is ever blocked: a worker that finds no job gets a Deferred, and is served in the order of coming.
"""

from __future__ import annotations

import sys
from typing import Any

from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.task import deferLater, react

from kestrel.library import ConcurrentBlockingQueue, FullPolicy

Jobs = ConcurrentBlockingQueue[tuple[str, int]]
"""Jobs have a name and a number: how often they were tried. Any object but None is an item."""


async def work(reactor: Any, name: str, jobs: Jobs) -> int:
    """Do jobs until none has come for a while; returns how many."""
    done = 0
    while (job := await jobs.get(deadline_s=0.2)) is not None:
        what, tries = job
        await deferLater(reactor, 0.01)
        if what == "wash" and not tries:
            print(f"{name}: {what} must be done again")
            jobs.put_head((what, tries + 1))  # in front of all others, however full the queue is
        else:
            print(f"{name}: {what} is done")
            done += 1
    return done


async def main(reactor: Any, workers: int) -> None:
    """Let workers wait, then give them jobs."""
    jobs: Jobs = ConcurrentBlockingQueue(reactor, max_items=2)
    at_work = [Deferred.fromCoroutine(work(reactor, f"worker {number}", jobs)) for number in range(1, workers + 1)]
    print(f"{jobs.waiter_count} wait")
    for what in ("wash", "dry", "iron", "fold"):
        if not jobs.put((what, 0)):
            print(f"{what} is refused: {jobs.size} jobs wait already")
    print(f"{sum(await gatherResults(at_work))} jobs are done")

    latest: ConcurrentBlockingQueue[str] = ConcurrentBlockingQueue(
        reactor, max_items=1, full_policy=FullPolicy.DROP_OLDEST
    )
    for price in ("10", "11", "12"):
        latest.put(price)
    print(f"the latest price is {await latest.get()}, {latest.dropped_count} were dropped")


if __name__ == "__main__":
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    react(lambda reactor: Deferred.fromCoroutine(main(reactor, number)))
