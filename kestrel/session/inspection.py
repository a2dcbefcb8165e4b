"""Handler of the command that inspects a queue without taking an item."""

from __future__ import annotations

from typing import Final

from kestrel import commands
from kestrel.item import Item
from kestrel.protocols.codec import QueueInfo
from kestrel.queues.queue import Queue
from kestrel.queues.waiters import Waiter
from kestrel.session.session import Handlers, Session


def inspect(session: Session, command: commands.Inspect) -> None:
    """Reply with the head of a queue and some of its figures."""
    session.access.check_get(command.queue)
    session.counters.cmd_peek += 1
    queue = session.manager.queue_to_read(command.queue)
    if queue is None:
        session.outbox.reply(session.codec.queue_info(command, QueueInfo()))
        return

    def tell(head: Item | None) -> None:
        info = _info(queue, head, session.manager.now_ms())
        session.outbox.reply(session.codec.queue_info(command, info), queue.unsettled_batch)

    def head_is_known(head: Item | None, error: Exception | None) -> None:
        if error is None:
            tell(head)
        else:
            session.refuse(error)
        session.finish_command()

    head = queue.peek_now()
    if head is not None:
        tell(head)
        return
    waiter = Waiter(head_is_known, opens=False, peeks=True, is_blocking=False)

    def stop() -> None:
        queue.waiters.leave(waiter)

    session.wait_for_server(stop)
    queue.join(waiter)


def _info(queue: Queue, head: Item | None, now_ms: int) -> QueueInfo:
    store = queue.store
    return QueueInfo(
        head=None if head is None else head.data,
        items=store.items,
        bytes=store.bytes,
        journal_bytes=store.stats.get("journal_bytes", 0),
        age_ms=0 if head is None else max(0, now_ms - head.add_ms),
        waiters=len(queue.waiters),
        open_reads=store.open_reads,
    )


INSPECTION: Final[Handlers] = {commands.Inspect: inspect}
