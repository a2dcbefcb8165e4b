"""A Twisted program that writes down events once, and has two readers that each go their own way.

    .venv/bin/python examples/journaled_queue.py [FOLDER]

keeps its journal in that folder, or in a temporary one. The mailer is done with an event when its mail is out, and a
mail that fails three times is dropped; the counter comes later and counts what is new. Start it again over the same
folder: both go on where they were.
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
    """A codec: text in UTF-8."""

    def encode(self, item: str) -> bytes:
        """The bytes that stand for it."""
        return item.encode()

    def decode(self, data: bytes) -> str:
        """The text that these bytes stand for."""
        return data.decode()


def has_failed(item: QueueItem) -> bool:
    """Take care of an item that was given back: True if it is to be gone."""
    if item.errors < 3:
        return False
    print(f"mail: {item.data.decode()} has failed {item.errors} times and is dropped")
    return True


CONFIG = JournaledQueueConfig(
    name=b"events",
    sync_journal_ms=0,  # a put fires when the event is on the disk itself
    reader_configs={
        b"mail": JournaledQueueReaderConfig(error_handler=has_failed),
        b"count": JournaledQueueReaderConfig(max_age_ms=24 * 60 * 60 * 1000),
    },
)


async def send_mails(mail: Reader) -> None:
    """Send all that wait; one address is always wrong."""
    while (item := await mail.get(deadline_s=0)) is not None:
        if item.data == b"bob signs up":
            mail.unget(item.id)  # it goes to the next consumer, with one more error
        else:
            print(f"mail: {item.data.decode()}")
            mail.commit(item.id)


async def main(reactor: Any, folder: str) -> None:
    """Write events, and let each reader read what it has not read."""
    queue = JournaledQueue(CONFIG, folder, reactor)
    try:
        await queue.setup()
    except StorageError as error:
        sys.exit(f"the folder cannot be had: {error}")
    reactor.addSystemEventTrigger("before", "shutdown", queue.close)

    mail = queue.reader(b"mail")  # the first reader has all that was put before there was one
    print(f"mail: {mail.items} events are left from the last time")
    for event in (b"ann signs up", b"bob signs up"):
        safe = queue.put(event)
        assert safe is not None, "a reader refuses it"
        await safe
    await send_mails(mail)

    count = queue.reader(b"count")  # one that comes later begins behind the last item
    queue.put(b"cleo signs up")
    print(f"count: {count.items} events are new")
    while (item := await count.get(deadline_s=0)) is not None:
        count.commit(item.id)
    await queue.checkpoint()

    # A queue with one reader may be a queue of objects. Without a folder it is in memory.
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
