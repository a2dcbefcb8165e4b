"""Kestrel's queues inside a Twisted program: no port, no other process, the same journals as the server's.

    from kestrel.config.model import QueueSettings      # QueueSettings(max_items=1000, sync_journal_ms=0)
    from kestrel.library import PersistentQueue, QueueFolder

    queue = PersistentQueue(b"work", "/var/spool/my-program", reactor)
    await queue.setup()                        # owns the folder and replays its journals

    queue.add(b"hello")                        # True, or False where a limit refuses it
    await queue.safe()                         # it is as safe now as syncJournal promises

    item = await queue.wait_remove(deadline_s=5, opened=True)
    if item is not None:
        work_on(item.data)
        queue.confirm_remove(item.xid)         # done; or queue.unremove(item.xid): back to the head
                                               # or queue.continue_(item.xid, b"next step"): done, and more to do
    await queue.close()

Several queues share a folder, and the program owns that folder as a whole:

    folder = QueueFolder("/var/spool/my-program", reactor, settings_for=my_settings)
    await folder.open()
    work, mail = folder.queue(b"work"), folder.queue(b"mail")
    ...
    await folder.close()

All is done on the reactor's thread. What changes a queue is done in memory when the call returns, is written at the end
of the reactor's turn, and is as safe as the queue's `syncJournal` promises when `safe` fires; who does not ask finds a
loss in the log alone. What has to be waited for is a Deferred: await it, or give it callbacks. To cancel one is to wait
no longer: it leaves the line, and no item is lost with it.

Limits, expiry, timeouts of open reads, moves to other queues and fanout (a queue ``work+mail`` of the same folder gets
what is added to ``work``) are those of the server, by `kestrel.config.model.QueueSettings`. What has expired leaves
when the queue is used, and with `expire_every_s` also by itself.

Items that expire (`expire_to_queue`) or fail too often (`max_redeliveries`, `error_queue`) move to queues of the same
folder; or to those that `lookup` finds, which is given a name and returns a queue of whatever folder, or None. Where
there is no such queue, or it is closed, the item stays an open read of its old one, so that nothing is lost; the log
says so, and it is tried again every second. An item is confirmed when it is safe in its new queue.

Errors are those of `kestrel.errors`. `StorageError`: the folder cannot be had (`FolderInUse`: somebody else has it), is
not open, or its disk fails (`QueueFailed`) or is full (`StorageRefused`: adds are refused, the rest goes on).
`ClientError`: a name that no queue can have (`BadQueueName`), a read that is not open (`TooFewOpenReads`).

Before a program ends it closes its queues, also at a signal:

    reactor.addSystemEventTrigger("before", "shutdown", queue.close)

One that ends without loses what it did in the reactor's last turn, and open reads are back at the head of the queue.

Beside these are the queues of libkestrel, by its own rules and in its own files (docs/library.md says which to choose):

    from kestrel.library import JournaledQueue, JournaledQueueConfig

    queue = JournaledQueue(JournaledQueueConfig(name=b"events"), "/var/spool/my-events", reactor)
    await queue.setup()
    reader = queue.reader(b"mail")             # each reader has its own head, limits and open reads
    safe = queue.put(b"hello")                 # None when it is refused, else a Deferred: fires when it is safe
    item = await reader.get(deadline_s=5)
    if item is not None:
        reader.commit(item.id)                 # or reader.unget(item.id): back to the head
    await queue.close()

`ScrollFolder` has several of them in one folder; `to_blocking_queue` and `to_transactional_blocking_queue` make one a
queue of objects. `ConcurrentBlockingQueue` holds any objects, in memory alone.
"""

from __future__ import annotations

from kestrel.library.arguments import FolderPath
from kestrel.library.blocking_queues import (
    ItemCodec,
    JournaledBlockingQueue,
    Transaction,
    TransactionalJournaledBlockingQueue,
)
from kestrel.library.concurrent_blocking_queue import ConcurrentBlockingQueue
from kestrel.library.folder_journaled_queue import FolderJournaledQueue
from kestrel.library.folder_queue import XIDS, FolderQueue
from kestrel.library.full_policy import FullPolicy
from kestrel.library.journaled_config import JournaledQueueConfig, JournaledQueueReaderConfig, QueueItem
from kestrel.library.journaled_queue import JournaledQueue
from kestrel.library.persistent_queue import PersistentQueue
from kestrel.library.queue_folder import Lookup, QueueFolder
from kestrel.library.reader import Reader
from kestrel.library.reader_counts import ReaderCounts
from kestrel.library.scroll_folder import ScrollFolder

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
