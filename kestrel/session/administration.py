"""The commands about whole queues and about the server."""

from __future__ import annotations

from typing import Final

from kestrel import commands, errors
from kestrel.queues.stats import queue_stats, server_stats
from kestrel.session.session import Handlers, Session
from kestrel.storage.barrier import all_of


def delete(session: Session, command: commands.Delete) -> None:
    """Forget a queue."""
    session.outbox.reply(session.codec.done(command), session.manager.delete(command.queue))


def flush(session: Session, command: commands.Flush) -> None:
    """Drop a queue's items."""
    session.outbox.reply(session.codec.done(command), session.manager.flush(command.queue))


def flush_all(session: Session, command: commands.FlushAll) -> None:
    """Drop the items of every queue."""
    session.outbox.reply(session.codec.done(command), all_of(session.manager.flush_all()))


def flush_expired(session: Session, command: commands.FlushExpired) -> None:
    """Drop a queue's expired items."""
    count, batch = session.manager.flush_expired(command.queue)
    session.outbox.reply(session.codec.number(count), batch)


def flush_all_expired(session: Session, command: commands.FlushAllExpired) -> None:
    """Drop the expired items of every queue."""
    count, batches = session.manager.flush_all_expired()
    session.outbox.reply(session.codec.number(count), all_of(batches))


def version(session: Session, command: commands.Version) -> None:
    """Which release this is."""
    session.outbox.reply(session.codec.version(session.control.version))


def stats(session: Session, command: commands.Stats) -> None:
    """All figures."""
    figures = server_stats(session.manager, session.control.version, session.control.uptime_s())
    session.outbox.reply(session.codec.stats(figures))


def dump_stats(session: Session, command: commands.DumpStats) -> None:
    """The figures of some queues, or of all."""
    manager = session.manager
    names = command.queues or [queue.name for queue in manager.all_queues()]
    queues = [(name, manager.known(name)) for name in names]
    blocks = [(name, [] if queue is None else queue_stats(queue)) for name, queue in queues]
    session.outbox.reply(session.codec.dump_stats(blocks))


def reload(session: Session, command: commands.Reload) -> None:
    """Read the configuration again."""
    session.control.reload()
    session.outbox.reply(session.codec.done(command))


def status(session: Session, command: commands.Status) -> None:
    """The server's status, which is always up in this release."""
    if command.new_status is None:
        session.outbox.reply(session.codec.status("Up"))
    elif command.new_status.lower() == b"up":
        session.outbox.reply(session.codec.done(command))
    else:
        session.refuse(errors.ClientError("the status is always up in this release"), closes=True)


def quit_(session: Session, command: commands.Quit) -> None:
    """Hang up."""
    session.close()


def shutdown(session: Session, command: commands.Shutdown) -> None:
    """Stop the server."""
    session.close()
    session.control.shutdown()


def malformed(session: Session, command: commands.Malformed) -> None:
    """Say what was wrong with what the client sent."""
    session.refuse(errors.ClientError(command.reason), closes=command.closes)


ADMINISTRATION: Final[Handlers] = {
    commands.Delete: delete,
    commands.Flush: flush,
    commands.FlushAll: flush_all,
    commands.FlushExpired: flush_expired,
    commands.FlushAllExpired: flush_all_expired,
    commands.Version: version,
    commands.Stats: stats,
    commands.DumpStats: dump_stats,
    commands.Reload: reload,
    commands.Status: status,
    commands.Quit: quit_,
    commands.Shutdown: shutdown,
    commands.Malformed: malformed,
}
