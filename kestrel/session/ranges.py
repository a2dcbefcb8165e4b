"""Handlers of the commands that read items by their ids, without taking or opening them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from twisted.python.failure import Failure

from kestrel import commands
from kestrel.errors import KestrelError, QueueFailed, RangeRefused
from kestrel.item import Item
from kestrel.protocols.codec import ITEM_OVERHEAD_BYTES
from kestrel.queues import ranges
from kestrel.queues.queue import Queue
from kestrel.session.session import Handlers, Session

MAX_RANGE_BYTES_WHEN_MEMORY_IS_FULL: Final = 64 * 1024
"""Limit of a reply in bytes while the server's memory is full. A reply has one item in any case."""


def open_range(session: Session, command: commands.OpenRange) -> None:
    """Open a range or continue it, and reply with its first unreleased id and the end of its next batch."""
    ranges.check_reader_name(command.reader)
    begins = command.first_id <= 0
    queue = _queue_of(session, command, session.manager.queue_to_read if begins else session.manager.existing)
    state, batch = ranges.open_range(queue, command.reader, command.first_id, command.max_items)
    session.outbox.reply(session.codec.range_state(command, state), batch)


def read_range(session: Session, command: commands.ReadRange) -> None:
    """Reply with items of an open range. A client may read them again."""
    session.counters.cmd_get += 1
    codec = session.codec
    room = codec.max_reply_bytes
    max_bytes = min(command.max_bytes, room) if command.max_bytes > 0 else room
    if session.manager.memory_limit.is_reached:
        max_bytes = min(max_bytes, MAX_RANGE_BYTES_WHEN_MEMORY_IS_FULL)
    queue = _queue_of(session, command)
    reading = ranges.read_range(queue, command.reader, command.first_id, command.end_id, max_bytes)

    is_awaited = True

    def stop() -> None:
        nonlocal is_awaited
        is_awaited = False

    def arrived(pairs: list[tuple[int, Item]]) -> None:
        if not is_awaited:
            return
        fitting = _fit_into_reply(pairs, codec.max_reply_items, room)
        session.counters.get_hits += len(fitting)
        session.outbox.reply(codec.range_items(command, fitting))
        session.finish_command()

    def failed(failure: Failure) -> None:
        if is_awaited:
            error = failure.value
            session.refuse(error if isinstance(error, KestrelError) else QueueFailed("the items cannot be read"))
            session.finish_command()

    session.wait_for_server(stop)
    reading.addCallbacks(arrived, failed)


def _fit_into_reply(pairs: list[tuple[int, Item]], most_items: int, room: int) -> list[tuple[int, Item]]:
    """Return the first items, as many as fit into a reply with `room` bytes, but at least one if there are any."""
    fitting: list[tuple[int, Item]] = []
    for pair in pairs[:most_items]:
        room -= len(pair[1].data) + 2 * ITEM_OVERHEAD_BYTES
        if fitting and room < 0:
            break
        fitting.append(pair)
    return fitting


def release_range(session: Session, command: commands.ReleaseRange) -> None:
    """Remove the items of a range before an id, for all clients, and reply with the state of the range."""
    state, batch = ranges.release_range(_queue_of(session, command), command.reader, command.end_id)
    session.outbox.reply(session.codec.range_state(command, state), batch)


def close_range(session: Session, command: commands.CloseRange) -> None:
    """Close a range: the queue no longer keeps items for the reader."""
    batch = ranges.close_range(_queue_of(session, command), command.reader)
    session.outbox.reply(session.codec.done(command), batch)


def _queue_of(
    session: Session, command: commands.RangeCommand, find: Callable[[bytes], Queue | None] | None = None
) -> Queue:
    """Return the queue of the command, which `find` looks up. The default finds only existing queues.

    Raises `RangeRefused` if the name is an alias, or with the reason that no range is open if there is no such queue.
    Raises the errors of `Access.check_get`.
    """
    session.access.check_get(command.queue)
    queue = (find or session.manager.existing)(command.queue)
    if queue is not None:
        return queue
    if command.queue in session.manager.aliases:
        raise RangeRefused("an alias has no items: read the queues that it stands for")
    raise ranges.range_not_open_error(command.queue)


RANGES: Final[Handlers] = {
    commands.OpenRange: open_range,
    commands.ReadRange: read_range,
    commands.ReleaseRange: release_range,
    commands.CloseRange: close_range,
}
