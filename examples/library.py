"""A Twisted program with a durable queue in itself: orders are packed, then shipped.

    .venv/bin/python examples/library.py [FOLDER [SECONDS]]

keeps its queue in that folder, or in a temporary one. Each step takes so many seconds, none unless they are given. Give
it one, stop it half-way, with Ctrl-C or kill -9, and start it again over the same folder: no order is lost.
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater, react

from kestrel.config.model import QueueSettings
from kestrel.errors import StorageError
from kestrel.library import PersistentQueue

SETTINGS = QueueSettings(
    sync_journal_ms=0,  # `safe` waits for the disk itself
    open_transaction_timeout_ms=30_000,  # an order that nobody finishes in half a minute is another's
    max_redeliveries=3,
    error_queue=b"orders_that_fail",
)


async def main(reactor: Any, folder: str, step_s: float) -> None:
    """Take up what is left from the last time, take some new orders, and work until there are none."""
    queue = PersistentQueue(b"orders", folder, reactor, settings=SETTINGS)
    try:
        await queue.setup()
    except StorageError as error:
        sys.exit(f"the folder cannot be had: {error}")
    reactor.addSystemEventTrigger("before", "shutdown", queue.close)
    print(f"{queue.items} orders are left from the last time")

    for number in range(1, 4):
        queue.add(b"pack order %d" % number)
    await queue.safe()
    print("3 new orders are safe")

    while (item := await queue.wait_remove(deadline_s=0.2, opened=True)) is not None:
        print(item.data.decode())
        await deferLater(reactor, step_s)
        what, _, order = item.data.partition(b" ")
        if what == b"pack":
            queue.continue_(item.xid, b"ship " + order)  # packed, and to be shipped: both or neither
        else:
            queue.confirm_remove(item.xid)
    await queue.safe()
    print("all is done")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        path = sys.argv[1] if len(sys.argv) > 1 else temporary
        seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
        react(lambda reactor: Deferred.fromCoroutine(main(reactor, path, seconds)))
