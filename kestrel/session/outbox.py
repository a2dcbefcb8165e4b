"""The replies of one connection, in order, each held until its batch is committed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mypy_extensions import mypyc_attr
from twisted.logger import Logger

from kestrel.commands import Command
from kestrel.protocols.codec import Codec
from kestrel.queues.counters import ServerCounters
from kestrel.storage.barrier import Barrier, Batch
from kestrel.storage.total_memory import MemoryShare

log = Logger(__name__)

Sent = Callable[[bool], None]
"""Callback, called once, with True if the reply was passed to the transport unchanged."""


@mypyc_attr(acyclic=True)
class _HeldReply:
    """A reply in the queue of an outbox, and a link to the one behind it."""

    __slots__ = ("answers_waiter", "batch", "command", "lost", "next", "reply", "sent")

    def __init__(
        self,
        command: Command,
        reply: bytes,
        batch: Batch | None,
        sent: Sent | None,
        lost: Callable[[], None] | None,
        answers_waiter: bool,
    ) -> None:
        self.command = command
        self.reply = reply
        self.batch = batch
        self.sent = sent
        self.lost = lost
        self.answers_waiter = answers_waiter
        self.next: _HeldReply | None = None


class Outbox:
    """A FIFO of replies. At the end of a tick, replies are sent up to the first whose batch is not committed.

    If a batch is lost, its replies are replaced by an error. `peer_has_left` returns True if the client has
    disconnected but `lost` has not been called. `continue_session` is called after each write: there is room for more
    replies.
    """

    def __init__(
        self,
        barrier: Barrier,
        codec: Codec,
        counters: ServerCounters,
        memory: MemoryShare,
        *,
        peer_has_left: Callable[[], bool],
        continue_session: Callable[[], None],
    ) -> None:
        self.transport: Any = None
        """The transport of the connection, once there is one."""
        self._barrier = barrier
        self._codec = codec
        self._counters = counters
        self._memory = memory
        self._peer_has_left = peer_has_left
        self._continue_session = continue_session
        # A linked list, because most ticks hold and send a single reply.
        self._first: _HeldReply | None = None
        self._last: _HeldReply | None = None
        self._closes = False
        self._is_release_due = False
        self._release: Callable[[], None] = self.release
        """Bound once, since every tick uses it."""
        self._blocked_on: Batch | None = None
        self._is_gone = False
        self.current_command = Command()
        """The command that the next replies answer."""
        self.is_paused = False
        """Whether the transport has asked to pause sending."""
        self.held_bytes = 0
        self.transport_bytes = 0
        """Bytes of the last write, if the transport has accepted no more since."""

    def reply(
        self,
        reply: bytes,
        batch: Batch | None = None,
        sent: Sent | None = None,
        lost: Callable[[], None] | None = None,
        *,
        answers_waiter: bool = False,
    ) -> None:
        """Send a reply when `batch` is committed and all earlier replies are sent. An empty one is dropped.

        `lost` is called if the batch is lost and an error is sent instead. `sent` is called once in any case, with
        False if the reply was not sent unchanged and its items must be put back. A reply with `answers_waiter` is not
        sent once the client has sent its last byte, as if the client had disconnected while it waited.
        """
        if self._is_gone or self._closes or not reply:
            if sent is not None:
                sent(False)
            return
        self.held_bytes += len(reply)
        entry = _HeldReply(self.current_command, reply, batch, sent, lost, answers_waiter)
        if self._last is None:
            self._first = entry
        else:
            self._last.next = entry
        self._last = entry
        if not self._is_release_due:
            self._is_release_due = True
            self._barrier.at_end_of_tick(self._release)

    def close(self) -> None:
        """Close the connection after the replies so far. Later replies are dropped."""
        if not self._is_gone:
            self._closes = True
            self._release_at_end_of_tick()

    def _release_at_end_of_tick(self) -> None:
        if not self._is_release_due:
            self._is_release_due = True
            self._barrier.at_end_of_tick(self._release)

    def release(self) -> None:
        """Send replies in order, up to the first whose batch is not settled. Send none while paused."""
        self._is_release_due = False
        data = b""
        following: list[bytes] | None = None
        told: list[tuple[Sent, bool]] | None = None
        while not self.is_paused:
            entry = self._first  # a callback may have changed it
            if entry is None:
                break
            batch = entry.batch
            failure: Exception | None = None
            if batch is not None:
                if not batch.is_settled:
                    self._wait_for(batch)
                    break
                failure = batch.failure
                if failure is not None and entry.lost is not None and told is not None:
                    self._release_at_end_of_tick()  # `sent` of the replies in front must be called before `lost`
                    break
            if entry.answers_waiter and self._peer_has_left():
                break  # A disconnected waiter must not swallow an item. `retract` or `lost` is called next.
            self._first = entry.next
            if self._first is None:
                self._last = None
            self.held_bytes -= len(entry.reply)
            reply = entry.reply
            if failure is not None:
                reply, _ = self._codec.error(entry.command, failure)
                if entry.lost is not None:
                    entry.lost()
            if not data:
                data = reply
            elif following is None:
                following = [data, reply]
            else:
                following.append(reply)
            if entry.sent is not None:
                if told is None:
                    told = []
                told.append((entry.sent, failure is None))
        hangs_up = self._closes and not self._is_gone and self._first is None and not self.is_paused
        if self._memory.bytes != self.held_bytes:
            self._memory.set_bytes(self.held_bytes)
        if following is not None:
            data = b"".join(following)
        if data:
            self._counters.bytes_written += len(data)
            self.transport.write(data)
            if self.is_paused:  # the bytes stay in the transport until the client reads
                self.transport_bytes = len(data)
                self._memory.set_bytes(self.held_bytes + self.transport_bytes)
        if told is not None:
            for sent, was_sent in told:
                sent(was_sent and not self._is_gone)
        if hangs_up:
            self.lost()
            self.transport.unregisterProducer()  # a TLS transport would wait for its producer before it closes
            self.transport.loseConnection()
        elif data:
            self._continue_session()

    def _wait_for(self, batch: Batch) -> None:
        if self._blocked_on is not batch:
            self._blocked_on = batch
            batch.when_settled(self._settled)

    def _settled(self) -> None:
        self._blocked_on = None
        try:
            self.release()
        except Exception:  # a fault in one connection must not hold back the replies of the others
            log.failure("A connection's replies could not be released")

    @property
    def holds_replies(self) -> bool:
        """Whether replies, or the close after them, are still to be sent."""
        return self._first is not None or (self._closes and not self._is_gone)

    @property
    def holds_waiter_reply(self) -> bool:
        """Whether a held reply answers a waiter."""
        return any(entry.answers_waiter for entry in self._held())

    def retract(self) -> None:
        """Drop all replies from the first that answers a waiter, after the client sent its last byte. Their items go
        back.
        """
        entries = self._held()
        kept = next((place for place, entry in enumerate(entries) if entry.answers_waiter), len(entries))
        self._keep(entries[:kept])
        self._drop(entries[kept:])

    def forget(self, command: Command) -> None:
        """Drop the held replies to `command`, and call their callbacks as if their batches were lost."""
        entries = self._held()
        dropped = [entry for entry in entries if entry.command is command]
        self._keep([entry for entry in entries if entry.command is not command])
        self._drop(dropped)
        for entry in dropped:
            if entry.lost is not None:
                entry.lost()

    def _held(self) -> list[_HeldReply]:
        entries = []
        entry = self._first
        while entry is not None:
            entries.append(entry)
            entry = entry.next
        return entries

    def _keep(self, entries: Sequence[_HeldReply]) -> None:
        """Link these replies. The others are no longer held."""
        self._first = self._last = None
        for entry in reversed(entries):
            entry.next = self._first
            self._first = entry
            self._last = self._last or entry

    def _drop(self, entries: Sequence[_HeldReply]) -> None:
        for entry in entries:
            self.held_bytes -= len(entry.reply)
            if entry.sent is not None:
                entry.sent(False)

    def pause(self) -> None:
        """Stop sending until `resume`, because the buffer of the transport is full."""
        self.is_paused = True

    def resume(self) -> None:
        """Send again: the transport accepts bytes."""
        self.is_paused = False
        self._memory.set_bytes(self.held_bytes)
        if self._first is not None or self._closes:
            self._release_at_end_of_tick()

    def lost(self) -> None:
        """Drop all replies after the client disconnected."""
        self._is_gone = True
        entries = self._held()
        self._keep(())
        self.held_bytes = 0
        self._memory.set_bytes(0)
        for entry in entries:
            if entry.sent is not None:
                entry.sent(False)
