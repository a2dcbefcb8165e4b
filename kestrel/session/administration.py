"""Handlers of the commands about whole queues and about the server, and their long replies."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from twisted.internet.defer import Deferred

from kestrel import commands, errors
from kestrel.escaping import show_name
from kestrel.protocols.codec import Codec
from kestrel.queues.flush_expired import ExpiredFlushResult
from kestrel.queues.stat_definitions import ServerSnapshot, Stat, iter_encoded_stats, server_stats
from kestrel.session.session import Handlers, Session

MAX_HELD_BYTES: Final = 32 * 1024
"""Bytes held in the outbox above which no further piece is made."""


class LongReply:
    """A long reply in progress. Its session runs no other command until the last piece is made.

    Pieces should be small: each connection may hold `MAX_HELD_BYTES` and one piece. An empty piece is a step without
    output.
    """

    def __init__(self, session: Session, pieces: Iterator[bytes]) -> None:
        self._session = session
        self._pieces = pieces
        self._is_slice_due = False
        self._is_over = False

    def start(self) -> None:
        """Make the first piece now, and the others in the background. The command ends after the last one."""
        self._session.wait_for_server(self._stop, self._continue_later)
        self._add_next_piece()

    def _add_next_piece(self) -> None:
        self._is_slice_due = False
        session = self._session
        if self._is_over or session.outbox.is_paused or session.outbox.held_bytes >= MAX_HELD_BYTES:
            return  # the outbox calls `_continue_later` when replies are sent
        piece = next(self._pieces, None)
        if piece is None:
            session.finish_command()
            return
        if piece:
            session.outbox.reply(piece)
        self._continue_later()

    def _continue_later(self) -> None:
        if not self._is_slice_due and not self._is_over:
            self._is_slice_due = True
            self._session.continue_in_background(self._add_next_piece)

    def _stop(self) -> None:
        self._is_over = True


def delete(session: Session, command: commands.Delete) -> None:
    """Delete a queue."""
    session.access.check_administration("delete a queue")
    session.access.check_change()
    session.outbox.reply(session.codec.done(command), session.manager.delete(command.queue))


def flush(session: Session, command: commands.Flush) -> None:
    """Drop a queue's items, except open reads."""
    session.access.check_administration("flush a queue")
    session.access.check_change()
    session.outbox.reply(session.codec.done(command), session.manager.flush(command.queue))


def flush_all(session: Session, command: commands.FlushAll) -> None:
    """Drop the items of every queue, except open reads."""
    session.access.check_administration("flush all queues")
    session.access.check_change()
    done = session.codec.done(command)
    session.reply_when_done(session.manager.flush_all(), lambda batch: session.outbox.reply(done, batch))


def flush_expired(session: Session, command: commands.FlushExpired) -> None:
    """Drop the expired items at the head of a queue, and reply with their number."""
    session.access.check_change()
    _reply_with_expired_count(session, session.manager.flush_expired(command.queue))


def flush_all_expired(session: Session, command: commands.FlushAllExpired) -> None:
    """Drop the expired items at the heads of all queues, whatever the status. Reply with their number."""
    _reply_with_expired_count(session, session.manager.flush_all_expired())


def _reply_with_expired_count(session: Session, sweep: Deferred[ExpiredFlushResult]) -> None:
    def tell(swept: ExpiredFlushResult) -> None:
        session.outbox.reply(session.codec.number(session.outbox.current_command, swept.items), swept.batch)

    session.reply_when_done(sweep, tell)


def version(session: Session, command: commands.Version) -> None:
    """Reply with the server's version."""
    session.outbox.reply(session.codec.version(command, session.control.version))


def stats(session: Session, command: commands.Stats) -> None:
    """Reply with the server's figures, then those of each queue and alias."""
    LongReply(session, _stats_pieces(session, command)).start()


def _stats_pieces(session: Session, command: commands.Stats) -> Iterator[bytes]:
    codec, manager = session.codec, session.manager
    snapshot = ServerSnapshot(manager, session.control.version, session.control.uptime_s())
    for _ in snapshot.gather():
        yield b""
    yield codec.stats(command, server_stats(snapshot))
    for name in manager.names_in_order():
        yield from iter_encoded_stats(manager, name, partial(_encode_queue_stats, codec, command, name))
    yield codec.end_of_list(command)


def _encode_queue_stats(codec: Codec, command: commands.Stats, name: bytes, figures: list[Stat]) -> bytes:
    prefix = f"queue_{show_name(name)}_"
    return codec.stats(command, [(prefix + figure, value) for figure, value in figures])


def dump_stats(session: Session, command: commands.DumpStats) -> None:
    """Reply with the figures of the named queues and aliases, or of all of them."""
    LongReply(session, _dump_stats_pieces(session, command)).start()


def _dump_stats_pieces(session: Session, command: commands.DumpStats) -> Iterator[bytes]:
    codec, manager = session.codec, session.manager
    named = dict.fromkeys(command.queues)
    for name in named or manager.names_in_order():
        # otherwise it was deleted meanwhile
        if name in named or name in manager.aliases or manager.known(name) is not None:
            yield from iter_encoded_stats(manager, name, partial(codec.dump_stats, command, name))
    yield codec.end_of_list(command)


def dump_config(session: Session, command: commands.DumpConfig) -> None:
    """Reply with the settings of the named queues and aliases, or of all of them."""
    LongReply(session, _dump_config_pieces(session, command)).start()


def _dump_config_pieces(session: Session, command: commands.DumpConfig) -> Iterator[bytes]:
    codec = session.codec
    for name, settings in session.control.iter_config(command.queues):
        yield codec.dump_stats(command, name, settings)
    yield codec.end_of_list(command)


def reload(session: Session, command: commands.Reload) -> None:
    """Read the configuration again."""
    session.access.check_administration("reload the configuration")
    session.reply_when_done(session.control.reload(), lambda _: session.outbox.reply(session.codec.done(command)))


def status(session: Session, command: commands.Status) -> None:
    """Reply with the server's status, or change it."""
    server_status = session.control.status
    if command.new_status is None:
        session.outbox.reply(session.codec.status(command, server_status.published.value))
        return
    session.access.check_administration("change the status")
    try:
        changed = server_status.change(command.new_status)
    except errors.UnknownStatus as error:
        session.refuse(error)
    else:
        session.reply_when_done(changed, lambda _: session.outbox.reply(session.codec.done(command)))


def upgrade(session: Session, command: commands.Upgrade) -> None:
    """Acknowledge the command, which changes nothing."""
    session.outbox.reply(session.codec.done(command))


def help_(session: Session, command: commands.Help) -> None:
    """Reply with the commands of the protocol."""
    session.outbox.reply(session.codec.help())


def quit_(session: Session, command: commands.Quit) -> None:
    """Close the connection."""
    session.close()


def shutdown(session: Session, command: commands.Shutdown) -> None:
    """Stop the server."""
    session.access.check_administration("shut the server down")
    reply = session.codec.done(command)
    if reply:
        session.outbox.reply(reply)
    else:
        session.close()
    session.control.shutdown()


def other_protocol(session: Session, command: commands.OtherProtocol) -> None:
    """Count, log and refuse a request of another protocol, and close the connection."""
    session.counters.foreign_requests += 1
    session.refuse_and_close(errors.ClientError(command.reason))


def malformed(session: Session, command: commands.Malformed) -> None:
    """Reply with the reason why the request cannot be parsed."""
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
    commands.DumpConfig: dump_config,
    commands.Reload: reload,
    commands.Status: status,
    commands.Upgrade: upgrade,
    commands.Help: help_,
    commands.Quit: quit_,
    commands.Shutdown: shutdown,
    commands.OtherProtocol: other_protocol,
    commands.Malformed: malformed,
}
