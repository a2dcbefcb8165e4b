"""Kestrel's queues inside a Twisted program, without a server process. Their journals have the server's file format.

    from kestrel.config.model import QueueSettings      # QueueSettings(max_items=1000, sync_journal_ms=0)
    from kestrel.library import PersistentQueue, QueueFolder

    queue = PersistentQueue(b"work", "/var/spool/my-program", reactor)
    await queue.setup()                        # locks the folder and replays its journals

    queue.add(b"hello")                        # True, or False if a limit refuses it
    await queue.safe()                         # the item is now as durable as syncJournal promises

    item = await queue.wait_remove(deadline_s=5, opened=True)
    if item is not None:
        work_on(item.data)
        queue.confirm_remove(item.xid)         # done; or queue.unremove(item.xid): back to the head
                                               # or queue.continue_(item.xid, b"next step"): done, and more to do
    await queue.close()

Several queues can share a folder. One program owns the whole folder:

    folder = QueueFolder("/var/spool/my-program", reactor, settings_for=my_settings)
    await folder.open()
    work, mail = folder.queue(b"work"), folder.queue(b"mail")
    ...
    await folder.close()

Call everything on the reactor's thread. A call that changes a queue changes memory at once. The change is written at
the end of the tick, and is as durable as the queue's `syncJournal` promises when `safe` fires. A program that does not
call `safe` learns of a loss only from the log. Operations that wait return a Deferred. Cancelling it stops the wait:
the consumer leaves the line, and no item is lost.

Limits, expiry, open transaction timeouts, moves to other queues and fanout work as on the server, and are set with
`kestrel.config.model.QueueSettings`. With fanout, a queue ``work+mail`` of the same folder gets each item that is added
to ``work``. Expired items are removed when the queue is used, and also periodically if `expire_every_s` is set.

Items that expire (`expire_to_queue`) or fail too often (`max_redeliveries`, `error_queue`) move to queues of the same
folder. With `lookup`, they move to the queue that it returns for a name, in any folder. If there is no such queue, or
it is closed, the item stays an open read of its old queue. The failure is logged, and the move is tried again every
second. An item is confirmed in the old queue when it is safe in the new one.

Errors are those of `kestrel.errors`. `StorageError`: the folder is not open or cannot be opened (`FolderInUse`: another
program uses it), the disk failed (`QueueFailed`) or is full (`StorageRefused`: adds are refused, the rest works).
`ClientError`: an invalid queue name (`BadQueueName`), or a read that is not open (`TooFewOpenReads`).

A program must close its queues before it ends, also when a signal ends it:

    reactor.addSystemEventTrigger("before", "shutdown", queue.close)

A program that ends without `close` loses the changes of its last tick. Its open reads return to the head of the queue.

The package also has the queues of libkestrel, with libkestrel's semantics and file format. docs/library.md says which
to choose:

    from kestrel.library import JournaledQueue, JournaledQueueConfig

    queue = JournaledQueue(JournaledQueueConfig(name=b"events"), "/var/spool/my-events", reactor)
    await queue.setup()
    reader = queue.reader(b"mail")             # each reader has its own head, limits and open reads
    safe = queue.put(b"hello")                 # None if it is refused, else a Deferred that fires when it is safe
    item = await reader.get(deadline_s=5)
    if item is not None:
        reader.commit(item.id)                 # or reader.unget(item.id): back to the head
    await queue.close()

`ScrollFolder` holds several of them in one folder. `to_blocking_queue` and `to_transactional_blocking_queue` wrap one
as a queue of objects. `ConcurrentBlockingQueue` holds any objects, in memory only.
"""

from __future__ import annotations

from kestrel.library.concurrent_blocking_queue import ConcurrentBlockingQueue, FullPolicy
from kestrel.library.folder import FolderPath
from kestrel.library.journaled_config import JournaledQueueConfig, JournaledQueueReaderConfig, QueueItem
from kestrel.library.journaled_queue import (
    FolderJournaledQueue,
    ItemCodec,
    JournaledBlockingQueue,
    JournaledQueue,
    ScrollFolder,
    Transaction,
    TransactionalJournaledBlockingQueue,
)
from kestrel.library.persistent_queue import XIDS, FolderQueue, Lookup, PersistentQueue, QueueFolder
from kestrel.library.reader import Reader, ReaderCounts

__all__ = [
    "XIDS",
    "ConcurrentBlockingQueue",
    "FolderJournaledQueue",
    "FolderPath",
    "FolderQueue",
    "FullPolicy",
    "ItemCodec",
    "JournaledBlockingQueue",
    "JournaledQueue",
    "JournaledQueueConfig",
    "JournaledQueueReaderConfig",
    "Lookup",
    "PersistentQueue",
    "QueueFolder",
    "QueueItem",
    "Reader",
    "ReaderCounts",
    "ScrollFolder",
    "Transaction",
    "TransactionalJournaledBlockingQueue",
]
