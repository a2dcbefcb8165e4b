"""A Twisted program that stores each event once for two independent readers.

    .venv/bin/python examples/journaled_queue.py [FOLDER]

It keeps its journal in FOLDER, or in a temporary folder. The mail reader confirms an event when its mail is sent, and
drops a mail that fails three times. The count reader is created later and counts new events. Start the program again
with the same folder: both readers continue at their positions.
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import react

from kestrel.errors import StorageError
from kestrel.library import JournaledQueue, JournaledQueueConfig, JournaledQueueReaderConfig, QueueItem, Reader


class Words:
    """A codec between text and UTF-8."""

    def encode(self, item: str) -> bytes:
        """Return the text as UTF-8."""
        return item.encode()

    def decode(self, data: bytes) -> str:
        """Return the text of UTF-8 bytes."""
        return data.decode()


def has_failed(item: QueueItem) -> bool:
    """Return True if an item that was put back shall be dropped, because it has failed three times."""
    if item.errors < 3:
        return False
    print(f"mail: {item.data.decode()} has failed {item.errors} times and is dropped")
    return True


CONFIG = JournaledQueueConfig(
    name=b"events",
    # The Deferred of a put fires after a sync.
    sync_journal_ms=0,
    reader_configs={
        b"mail": JournaledQueueReaderConfig(error_handler=has_failed),
        b"count": JournaledQueueReaderConfig(max_age_ms=24 * 60 * 60 * 1000),
    },
)


async def send_mails(mail: Reader) -> None:
    """Send a mail for each event. The address of bob always fails."""
    while (item := await mail.get(deadline_s=0)) is not None:
        if item.data == b"bob signs up":
            # The next consumer gets the item, with one more error.
            mail.unget(item.id)
        else:
            print(f"mail: {item.data.decode()}")
            mail.commit(item.id)


async def main(reactor: Any, folder: str) -> None:
    """Write events, and let each reader read its new ones. Then show a queue of objects in memory."""
    queue = JournaledQueue(CONFIG, folder, reactor)
    try:
        await queue.setup()
    except StorageError as error:
        sys.exit(f"the folder cannot be used: {error}")
    reactor.addSystemEventTrigger("before", "shutdown", queue.close)

    # The first reader gets the items that were put before it existed.
    mail = queue.reader(b"mail")
    print(f"mail: {mail.items} events are left from the last run")
    for event in (b"ann signs up", b"bob signs up"):
        safe = queue.put(event)
        assert safe is not None, "a reader refuses it"
        await safe
    await send_mails(mail)

    # A later reader starts behind the last item.
    count = queue.reader(b"count")
    queue.put(b"cleo signs up")
    print(f"count: {count.items} events are new")
    while (item := await count.get(deadline_s=0)) is not None:
        count.commit(item.id)
    await queue.checkpoint()

    # A queue with one reader can hold objects. Without a folder it is in memory.
    memory = JournaledQueue(JournaledQueueConfig(name=b"steps"), None, reactor)
    await memory.setup()
    steps = memory.to_transactional_blocking_queue(Words())
    await steps.put("knead the dough")
    step = await steps.get()
    assert step is not None
    print(f"a step: {step.item}")
    step.rollback()
    again = await steps.poll()
    assert again is not None
    again.commit()
    print(f"{steps.size} steps are left")
    await steps.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        path = sys.argv[1] if len(sys.argv) > 1 else temporary
        react(lambda reactor: Deferred.fromCoroutine(main(reactor, path)))
