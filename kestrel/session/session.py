"""The session of one client: it receives bytes, runs commands one after the other, and sends replies.

It works with any transport and protocol. The handlers in the other modules of this package run the commands and use the
public members of this class. docs/internals.md follows a command through it.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, ISystemHandle
from twisted.logger import Logger
from twisted.python.failure import Failure

from kestrel.address import show_address
from kestrel.commands import Command
from kestrel.errors import ClientError, KestrelError, NotAuthorized, RequestTooSlow
from kestrel.protocols.codec import Codec
from kestrel.session.access import Access
from kestrel.session.open_reads import ConnectionOpenReads, LeaseCounts
from kestrel.session.outbox import Outbox
from kestrel.session.session_context import ServerControl, SessionContext
from kestrel.session.session_state import (
    CLOSING,
    DRAINING,
    DRAINING_LOADING,
    GONE,
    LOADING,
    OPEN,
    WAITING,
    SessionEvent,
    SessionState,
    next_state,
)
from kestrel.session.timeouts import IdleTimeout
from kestrel.storage.total_memory import MemoryShare

log = Logger(__name__)

_Result = TypeVar("_Result")

Handlers: TypeAlias = "dict[type[Command], Callable[[Session, Any], None]]"
"""The handler of each command class."""

MAX_COMMANDS_PER_SLICE: Final = 64

MAX_UNPARSED_BYTES: Final = 64 * 1024
"""Unparsed bytes of a session that is not running above which its transport is paused."""

MIN_READER_BYTES_PER_S: Final = 16 * 1024
"""A client that reads a large reply at this rate is not idle."""

MAX_HELD_BYTES_WHEN_MEMORY_IS_FULL: Final = 64 * 1024
"""Limit of held reply bytes per connection while the server's memory is full. One reply is held in any case."""


_NO_COMMAND: Final = Command()


class Session:
    """The session of one client.

    The connection calls `began`, `received`, `input_ended`, `lost`, and `pause` and `resume` as its transport's
    producer.
    """

    def __init__(
        self,
        context: SessionContext,
        codec: Codec,
        control: ServerControl,
        handlers: Handlers,
        access: Access,
    ) -> None:
        self.manager = manager = context.manager
        self.counters = manager.counters
        self.uncommitted = manager.barrier.uncommitted
        self.codec = codec
        self.control = control
        self.access = access
        self.open_reads = ConnectionOpenReads()
        self.leases = context.leases
        self.lease_counts = LeaseCounts()
        self.outbox = Outbox(
            manager.barrier,
            codec,
            manager.counters,
            MemoryShare(manager.memory_limit),
            peer_has_left=self._peer_has_left,
            continue_session=self._continue,
        )
        self._handlers = handlers
        self.scheduler = context.scheduler
        self._context = context
        self.clock = clock = context.clock
        self.settings = context.settings
        """The current limits, which a reload may change."""
        self._most_held_bytes = self.settings.max_pipeline_bytes
        self._transport: Any = None
        self._state: SessionState = OPEN
        self._is_shaking_hands = False
        self._is_reading = True
        self._is_running = False
        self._is_slice_due = False
        self._stop_waiting: Callable[[], None] | None = None
        self._when_replies_sent: Callable[[], None] | None = None
        self._deadline: IDelayedCall | None = None
        self._closes_when_answered = False
        self._paused_s = 0.0
        self.pending_put_bytes = 0
        """Bytes held by the put that waits for the server."""
        self._unparsed_bytes = 0
        """Bytes of incomplete, pending and running requests, when they were last counted."""
        self.commands_done = 0
        """Number of this client's commands so far."""
        self._request_began_after = -1
        """Value of `commands_done` when the incomplete request began. At -1 its time starts again."""
        self._idleness = IdleTimeout(clock, self._timeout_ms, self.waits_for_server, self._timed_out)

    # Events from the connection.

    def received(self, data: bytes) -> None:
        """Process bytes from the client."""
        self.counters.bytes_read += len(data)
        if self._state.has_ended:
            return
        if self._idleness.has_timeout:
            self._idleness.reset()
        self.codec.buffer.receive(data)
        if self._state.runs_commands and not self._is_slice_due:
            self._run_slice()
        unparsed_bytes = len(self.codec)
        if self._state is WAITING and unparsed_bytes > self._most_held_bytes:
            # The session must keep reading, or it would miss a disconnect and the client would swallow an item.
            self.refuse(ClientError("too much was sent behind a command that waits"), closes=True)
        elif unparsed_bytes or self.pending_put_bytes or self._unparsed_bytes:
            self._update_input(unparsed_bytes)

    def input_ended(self) -> None:
        """Process the end of the client's input. The client may still read."""
        if self.outbox.holds_waiter_reply:  # it ended before the reply was sent, as if it had ended while waiting
            self._end_waiting()  # otherwise this client would get the items that are put back
            self.outbox.retract()
            self._step(SessionEvent.CLOSE)
        else:
            self._step(SessionEvent.INPUT_ENDED)
        if self._state is CLOSING:
            self._close_now()
        elif self._state is DRAINING and not self._is_slice_due:
            self._run_slice()

    def lost(self) -> None:
        """Process a disconnect: put the client's open reads back."""
        self._step(SessionEvent.LOST)
        self._context.request_deadlines.untrack(self)
        self._idleness.stop()
        self.codec.end()
        self._end_waiting()
        self.outbox.lost()
        self.open_reads.put_back_all()

    def pause(self) -> None:
        """Stop making replies, because the client does not read them."""
        self._paused_s = self.clock.seconds()
        self.outbox.pause()
        if self._awaits_reader:  # the client must continue to read within requestTimeout
            self._context.request_deadlines.track(self, self._unparsed_bytes, is_new=True)

    def resume(self) -> None:
        """Make replies again, because the client reads them."""
        self._idleness.reset()
        if self._awaits_reader:
            if self._unparsed_bytes:
                self._context.request_deadlines.track(self, self._unparsed_bytes, is_new=True)
            else:
                self._context.request_deadlines.untrack(self)
        self.outbox.resume()
        self._continue()

    def stop(self) -> None:
        """Close the connection after the replies so far, because the server stops.

        A command that waits for the storage is answered first. The queues put the client's open reads back.
        """
        if self._state is GONE:
            return
        self.open_reads.forget_all()
        if self._state is LOADING or self._state is DRAINING_LOADING:
            self._closes_when_answered = True
        else:
            self.close()

    def began(self, transport: Any) -> None:
        """Use the transport of the new connection from now on, and start the idle timeout."""
        self._transport = self.outbox.transport = transport
        self._idleness.reset()

    def handshake_began(self) -> None:
        """Start the deadline of the TLS handshake."""
        self._is_shaking_hands = True
        self._context.request_deadlines.track(self, 0, is_new=True)

    def handshake_ended(self) -> None:
        """End the deadline of the TLS handshake."""
        self._is_shaking_hands = False
        self._context.request_deadlines.untrack(self)

    def abandon(self, why: RequestTooSlow) -> None:
        """Refuse a slow client and close the connection. Abort it if the client would not read the reason."""
        if self._state.has_ended or self._is_shaking_hands:
            self._transport.abortConnection()
        elif self._awaits_reader:
            self.log_refusal("a long reply was not read in time")
            self._transport.abortConnection()
        else:
            self.outbox.current_command = _NO_COMMAND
            self.refuse_and_close(why)

    def refuse_and_close(self, why: ClientError) -> None:
        """Log the reason, reply with it, and close the connection."""
        self.log_refusal(str(why))
        self.refuse(why, closes=True)

    def log_refusal(self, what: str) -> None:
        """Log a refusal with the address and the name of the client."""
        self._context.refusal_log.log(self.peer, self.access.identity, what)

    @property
    def awaited_queue(self) -> bytes | None:
        """Name of the queue that the client waits for an item of, or None if it does not wait."""
        if self._state is not WAITING:
            return None
        command: Any = self.outbox.current_command
        queue: bytes = command.queue
        return queue

    @property
    def peer(self) -> str:
        return "gone" if self._transport is None else show_address(self._transport.getPeer())

    def settings_changed(self) -> None:
        """Apply the new settings of the session context."""
        self.settings = self._context.settings
        self._most_held_bytes = self.settings.max_pipeline_bytes
        self._idleness.timeout_changed()

    def _timeout_ms(self) -> int | None:
        return self.settings.client_timeout_ms

    @property
    def _awaits_reader(self) -> bool:
        """Whether a long reply continues only after the client has read the previous part."""
        sends_long_reply = self._when_replies_sent is not None and self._state is not WAITING
        return sends_long_reply and self.outbox.is_paused

    def waits_for_server(self) -> bool:
        """Return True if the client waits for the server, not the server for the client."""
        is_busy = self._state in (WAITING, LOADING, DRAINING_LOADING) or self._is_slice_due
        if is_busy and not self._awaits_reader:
            return True
        if self.outbox.is_paused:  # The transport does not report how much of the last reply the client has read.
            may_take_s = self.outbox.transport_bytes / MIN_READER_BYTES_PER_S
            return self.clock.seconds() - self._paused_s < may_take_s
        return self.outbox.holds_replies

    def _timed_out(self) -> None:
        """Close an idle connection. Abort it if the client does not read its replies, since a close would never reach
        it.
        """
        if self.outbox.is_paused or self._state is CLOSING:
            self._transport.abortConnection()
        else:
            self.close()

    # Slices.

    def _step(self, event: SessionEvent) -> None:
        self._state = next_state(self._state, event)

    def _schedule_slice(self) -> None:
        if self._state.runs_commands and not self._is_running and not self._is_slice_due:
            self._is_slice_due = True
            self.scheduler.continue_later(self._run_next_slice)

    def _run_next_slice(self) -> None:
        self._is_slice_due = False
        self._run_slice()
        self._update_input(len(self.codec))

    def _run_slice(self) -> None:
        """Run commands for one slice, if the tick has time for it, and schedule the next one if there may be more."""
        scheduler = self.scheduler
        if not scheduler.has_time():
            self._schedule_slice()
            return
        self._is_running = True
        try:
            has_more = self._run(scheduler.checked_at_s)
        finally:
            self._is_running = False
        if has_more:
            self._schedule_slice()

    def _run(self, began_s: float) -> bool:
        """Run commands for one slice, which began at `began_s`. Return True if there may be more to do."""
        codec, outbox, scheduler, handlers = self.codec, self.outbox, self.scheduler, self._handlers
        for _ in range(MAX_COMMANDS_PER_SLICE):
            state = self._state
            if not state.runs_commands or ((codec.buffer.size or state is DRAINING) and self.is_backpressured):
                return False
            command = codec.next_command() if codec.buffer.size else None
            if command is None:
                outbox.current_command = _NO_COMMAND  # the last one may have been a large put
                if state is DRAINING:
                    self._step(SessionEvent.ALL_DONE)
                    self._close_now()
                return False
            outbox.current_command = command
            self.commands_done += 1
            try:
                handlers[type(command)](self, command)
            except KestrelError as error:
                self.refuse(error)
            except Exception as error:
                self._failed(error)
            if codec.buffer.size and scheduler.exceeds_tick(began_s):
                break
        return True

    @property
    def is_backpressured(self) -> bool:
        """Whether replies must be sent before more are made."""
        outbox = self.outbox
        held_bytes = outbox.held_bytes
        if held_bytes > self._most_held_bytes or outbox.is_paused:
            return True
        return held_bytes > MAX_HELD_BYTES_WHEN_MEMORY_IS_FULL and self.manager.memory_limit.is_reached

    def continue_later(self, work: Callable[[], None]) -> None:
        """Call `work` for the command in the next tick."""
        self.scheduler.continue_later(partial(self._run_step, work))

    def continue_in_background(self, step: Callable[[], None]) -> None:
        """Call `step` for the command when the requests of other clients leave time for it."""
        self.scheduler.run_in_background(partial(self._run_step, step))

    def _run_step(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        """Close this connection after an unexpected error, which must not affect others."""
        log.failure("A command failed")
        self.refuse(error, closes=True)

    def _update_input(self, unparsed_bytes: int) -> None:
        """Pause or resume reading, and update the deadline and size of the unfinished request."""
        if not self._state.has_ended:
            self._update_reading(unparsed_bytes)
            self._track_unparsed(unparsed_bytes + self.pending_put_bytes)

    def _update_reading(self, unparsed_bytes: int) -> None:
        state = self._state
        is_wanted = unparsed_bytes <= MAX_UNPARSED_BYTES or state is WAITING
        if not is_wanted:
            is_wanted = state.runs_commands and not self._is_slice_due and not self.is_backpressured
        if is_wanted is self._is_reading or not state.receives:
            return
        self._is_reading = is_wanted
        if is_wanted:
            self._request_began_after = -1  # the client could not send while paused, so its time starts again
            self._transport.resumeProducing()
        else:
            self._transport.pauseProducing()

    def _track_unparsed(self, unread_bytes: int) -> None:
        was_tracked = self._unparsed_bytes > 0
        self._unparsed_bytes = unread_bytes
        if unread_bytes:
            is_another = self.commands_done != self._request_began_after
            self._request_began_after = self.commands_done
            self._context.request_deadlines.track(self, unread_bytes, is_new=is_another)
        elif was_tracked:
            self._context.request_deadlines.untrack(self)

    # Replies.

    def _peer_has_left(self) -> bool:
        """Return True if the client has disconnected but `lost` has not run yet."""
        return self._is_reading and self._state.receives and peer_has_closed(self._transport)

    def _continue(self) -> None:
        """Continue when replies have been sent: there is room for more."""
        if self._when_replies_sent is not None:
            self._when_replies_sent()
        elif self._state is DRAINING or self.codec.buffer.size:
            self._schedule_slice()

    def refuse(self, error: Exception, *, closes: bool = False) -> None:
        """Reply to the command with `error`. Close the connection after it if the protocol or `closes` requires it."""
        if isinstance(error, NotAuthorized):
            self.log_refusal(str(error))
        reply, ends = self.codec.error(self.outbox.current_command, error)
        self.outbox.reply(reply)
        if ends or closes:
            self.close()

    def close(self) -> None:
        """Put the client's open reads back, and close the connection after the replies so far."""
        self._step(SessionEvent.CLOSE)
        self._close_now()

    def _close_now(self) -> None:
        """End the session: no command runs any more, so all open reads are put back."""
        self._end_waiting()
        self.open_reads.put_back_all()
        self.codec.end()
        if self._state is not GONE:
            # until all replies are sent and the connection is closed
            self._context.request_deadlines.track(self, 0, is_new=True)
        self.outbox.close()

    # Commands that wait.

    def wait_for_server(self, stop: Callable[[], None], when_replies_sent: Callable[[], None] | None = None) -> None:
        """Keep the command until `finish_command`. It waits for the storage, the next tick, or the sending of replies.

        `stop` is called once: by `finish_command`, or earlier if the connection is closed. `when_replies_sent` is
        called whenever there is room for more replies.
        """
        self._step(SessionEvent.STORAGE_WAITS)
        self._stop_waiting = stop
        self._when_replies_sent = when_replies_sent

    def wait_for_client(
        self,
        wait_ms: int,
        stop: Callable[[], None],
        timed_out: Callable[[], None],
        when_replies_sent: Callable[[], None] | None = None,
    ) -> bool:
        """Let the command wait until `finish_command`, and call `timed_out` after `wait_ms`.

        If the client has already sent its last byte, close the connection instead and return False. `stop` is called
        once: by `finish_command`, or earlier if the connection is closed. `when_replies_sent` is called whenever there
        is room for more replies.
        """
        self._step(SessionEvent.CLIENT_WAITS)
        if self._state is CLOSING:
            self._close_now()
            return False
        self._stop_waiting = stop
        self._when_replies_sent = when_replies_sent
        self._update_reading(len(self.codec))
        self._deadline = self.clock.callLater(wait_ms / 1000, timed_out)
        return True

    def reply_when_done(self, outcome: Deferred[_Result], answer: Callable[[_Result], None]) -> None:
        """When `outcome` fires, call `answer` with the result to reply to the command, or reply with the error."""
        is_there = True

        def gone() -> None:
            nonlocal is_there
            is_there = False

        def done(result: _Result) -> None:
            if is_there:
                answer(result)
                self.finish_command()

        def failed(failure: Failure) -> None:
            error = failure.value
            if not isinstance(error, KestrelError):
                log.failure("A command failed", failure)
            if is_there:
                self.refuse(error if isinstance(error, Exception) else KestrelError(str(error)))
                self.finish_command()

        self.wait_for_server(gone)
        outcome.addCallbacks(done, failed)

    def finish_command(self) -> None:
        """Finish the command that waited, and continue with the next."""
        self._idleness.reset()
        self._end_waiting()
        self.pending_put_bytes = 0
        self._request_began_after = -1  # the time of the request behind it starts now
        self._step(SessionEvent.ANSWERED)
        if self._closes_when_answered:
            self.close()
        else:
            self._schedule_slice()

    def _end_waiting(self) -> None:
        stop, self._stop_waiting = self._stop_waiting, None
        deadline, self._deadline = self._deadline, None
        self._when_replies_sent = None
        if stop is not None:
            stop()
        if deadline is not None and deadline.active():
            deadline.cancel()


def socket_of(transport: Any) -> socket.socket | None:
    """Return the socket of a transport, or None for TLS and other transports without one."""
    handle = transport.getHandle() if ISystemHandle.providedBy(transport) else None
    return handle if isinstance(handle, socket.socket) else None


def peer_has_closed(transport: Any) -> bool:
    """Return True if a plain connection has ended and no received bytes are left to read. Always False for TLS."""
    handle = socket_of(transport)
    if handle is None:
        return False
    try:
        return not handle.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except OSError as error:
        return not isinstance(error, BlockingIOError)
