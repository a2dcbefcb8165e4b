"""A Twisted program with its own durable queue, in which orders are packed and then shipped.

    .venv/bin/python examples/library.py [FOLDER [SECONDS]]

It keeps its queue in FOLDER, or in a temporary folder. Each step takes SECONDS (default: 0). With SECONDS of 1, stop it
with Ctrl-C or kill -9, and start it again with the same folder: no order is lost.
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
    # `safe` waits for a sync.
    sync_journal_ms=0,
    # An order that is not finished within half a minute goes to another consumer.
    open_transaction_timeout_ms=30_000,
    max_redeliveries=3,
    error_queue=b"orders_that_fail",
)


async def main(reactor: Any, folder: str, step_s: float) -> None:
    """Add three orders, and work on them and on those left from the last run, until none is left."""
    queue = PersistentQueue(b"orders", folder, reactor, settings=SETTINGS)
    try:
        await queue.setup()
    except StorageError as error:
        sys.exit(f"the folder cannot be used: {error}")
    reactor.addSystemEventTrigger("before", "shutdown", queue.close)
    print(f"{queue.items} orders are left from the last run")

    for number in range(1, 4):
        queue.add(b"pack order %d" % number)
    await queue.safe()
    print("3 new orders are safe")

    while (item := await queue.wait_remove(deadline_s=0.2, opened=True)) is not None:
        print(item.data.decode())
        await deferLater(reactor, step_s)
        what, _, order = item.data.partition(b" ")
        if what == b"pack":
            # Confirm the packing and add the shipping atomically.
            queue.continue_(item.xid, b"ship " + order)
        else:
            queue.confirm_remove(item.xid)
    await queue.safe()
    print("all orders are done")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        path = sys.argv[1] if len(sys.argv) > 1 else temporary
        seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
        react(lambda reactor: Deferred.fromCoroutine(main(reactor, path, seconds)))
