"""A Twisted program whose workers wait for jobs in memory. One job is put back and done again.

    .venv/bin/python examples/blocking_queue.py [WORKERS]

No call blocks. A worker that finds no job gets a Deferred, and waiting workers are served in order.
"""

from __future__ import annotations

import sys
from typing import Any

from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.task import deferLater, react

from kestrel.library import ConcurrentBlockingQueue, FullPolicy

Jobs = ConcurrentBlockingQueue[tuple[str, int]]
"""A queue of jobs: a name, and the number of earlier attempts. Any object except None can be an item."""


async def work(reactor: Any, name: str, jobs: Jobs) -> int:
    """Do jobs until none arrives for 0.2 seconds. Return the number of jobs done."""
    done = 0
    while (job := await jobs.get(deadline_s=0.2)) is not None:
        what, tries = job
        await deferLater(reactor, 0.01)
        if what == "wash" and not tries:
            print(f"{name}: {what} must be done again")
            # put_head also works on a full queue.
            jobs.put_head((what, tries + 1))
        else:
            print(f"{name}: {what} is done")
            done += 1
    return done


async def main(reactor: Any, workers: int) -> None:
    """Start workers, then give them jobs. Then show a queue that drops its oldest item."""
    jobs: Jobs = ConcurrentBlockingQueue(reactor, max_items=2)
    at_work = [Deferred.fromCoroutine(work(reactor, f"worker {number}", jobs)) for number in range(1, workers + 1)]
    print(f"waiting workers: {jobs.waiter_count}")
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
