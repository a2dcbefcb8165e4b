"""One client: it is given bytes, carries out its commands one after the other, and gives bytes back.

Whatever transport and protocol a client came by, this is what it talks to. Commands are carried out by the
handlers (`kestrel.session.handlers`), which use what is public here. docs/architecture.md follows a command
through it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from kestrel.commands import Command
from kestrel.errors import ClientError, KestrelError, NotListed, TooSlow
from kestrel.protocols.codec import Codec
from kestrel.session.access import Access
from kestrel.session.idleness import Idleness
from kestrel.session.leases import LeaseCounts
from kestrel.session.lifecycle import ENDED, HEARING, RUNNING, Event, State, after
from kestrel.session.outbox import Outbox, Speaker
from kestrel.session.reads import OpenReads
from kestrel.session.services import SessionServices
from kestrel.session.settings import ServerControl
from kestrel.session.wire import Wire
from kestrel.storage.total_memory import MemoryShare

log = Logger(__name__)

_Result = TypeVar("_Result")

Handlers: TypeAlias = "dict[type[Command], Callable[[Session, Any], None]]"
"""What to do for each kind of command."""

COMMANDS_PER_TURN: Final = 64

UNREAD_BYTES: Final = 64 * 1024
"""What may wait to be parsed while a session stands still; beyond it the transport is asked to pause."""

SLOWEST_READER_BYTES_PER_S: Final = 16 * 1024
"""A client that takes a large reply at this rate is not idle."""

HELD_BYTES_WHEN_MEMORY_IS_FULL: Final = 64 * 1024
"""While the server's memory is full, no more replies than that are held for one connection; and one in any case."""


_NO_COMMAND: Final = Command()


class Session(Speaker):
    """The client behind one connection, the `wire`.

    The connection calls `received`, `input_ended`, `lost`, and `pause` and `resume` as its transport's producer.
    """

    def __init__(
        self,
        services: SessionServices,
        codec: Codec,
        control: ServerControl,
        handlers: Handlers,
        access: Access,
        wire: Wire,
    ) -> None:
        self.manager = manager = services.manager
        self.counters = manager.counters
        self.uncommitted = manager.barrier.uncommitted
        self.codec = codec
        self.control = control
        self.access = access
        self.reads = OpenReads()
        self.leases = services.leases
        self.lease_counts = LeaseCounts()
        share = MemoryShare(manager.memory_limit)
        self.outbox = Outbox(manager.barrier, self, share)
        self._handlers = handlers
        self.scheduler = services.scheduler
        self._services = services
        self.clock = clock = services.clock
        self.settings = services.settings
        """The limits as they are now; a reload may change them."""
        self._most_held_bytes = self.settings.max_pipeline_bytes
        self._wire = wire
        self._state = State.OPEN
        self._may_run = True
        """This and the next three follow from `_state`: every request asks for them."""
        self._waits = self._drains = self._has_ended = False
        self._is_shaking_hands = False
        self._is_listening = True
        self._is_running = False
        self._is_turn_due = False
        self._stop_waiting: Callable[[], None] | None = None
        self._when_replies_left: Callable[[], None] | None = None
        self._deadline: IDelayedCall | None = None
        self._closes_when_answered = False
        self._paused_s = 0.0
        self.carried_bytes = 0
        """What the command that waits for the server holds meanwhile."""
        self._unread_bytes = 0
        """What there was of requests that have not come whole, stand in line or are under way, at the last look."""
        self._commands_done = 0
        """How many there were of this client's."""
        self._begun_behind = -1
        """What `_commands_done` was when the request that has not come whole began; -1: its time counts anew."""
        self._idleness = Idleness(clock, self._timeout_ms, self._is_our_turn, self._timed_out)

    # What the connection tells.

    def received(self, data: bytes) -> None:
        """Bytes from the client."""
        self.counters.bytes_read += len(data)
        if self._has_ended:
            return
        self._idleness.interrupted()
        self.codec.receive(data)
        if self._may_run and not self._is_turn_due:
            self._take_turn()
        if self._waits and len(self.codec) > self._most_held_bytes:
            # It must be read on, or its leaving would not be noticed and it would swallow an item.
            self.refuse(ClientError("too much was sent behind a command that waits"), closes=True)
        self._listen_or_not()
        self._note_unread()

    def input_ended(self) -> None:
        """The client has sent its last byte, but may still read."""
        if self.outbox.holds_waited_for:  # it ended before the reply left, as if it had ended while waiting
            self._end_waiting()  # or what is put back would be served to this very client
            self.outbox.retract()
            self._step(Event.CLOSE)
        else:
            self._step(Event.INPUT_ENDED)
        if self._state is State.CLOSING:
            self._close_now()
        elif self._drains and not self._is_turn_due:
            self._take_turn()

    def lost(self) -> None:
        """The client is gone; what it had open goes back to the head."""
        self._step(Event.LOST)
        self._services.unfinished.is_done(self)
        self._idleness.stop()
        self.codec.end()
        self._end_waiting()
        self.outbox.lost()
        self.reads.put_back_all()

    def pause(self) -> None:
        """Make no more replies: the client does not read them."""
        self._paused_s = self.clock.seconds()
        self.outbox.pause()
        if self._awaits_reader:  # the client has to read on within requestTimeout
            self._services.unfinished.is_at(self, self._unread_bytes, anew=True)

    def resume(self) -> None:
        """Make replies again: the client reads them."""
        self._idleness.interrupted()
        if self._awaits_reader:
            if self._unread_bytes:
                self._services.unfinished.is_at(self, self._unread_bytes, anew=True)
            else:
                self._services.unfinished.is_done(self)
        self.outbox.resume()
        self.replies_left()

    def stop(self) -> None:
        """The server stops: say what is still to be said, then hang up."""
        if self._state is State.GONE:
            return
        self.reads.leave_all()
        if self._state in (State.LOADING, State.DRAINING_LOADING):
            self._closes_when_answered = True
        else:
            self.close()

    def began(self) -> None:
        """The connection is there."""
        self._idleness.interrupted()

    def handshake_began(self) -> None:
        """There is something to be done before the client can ask for anything."""
        self._is_shaking_hands = True
        self._services.unfinished.is_at(self, 0, anew=True)

    def handshake_ended(self) -> None:
        """It is done."""
        self._is_shaking_hands = False
        self._services.unfinished.is_done(self)

    @property
    def waits_for_us(self) -> bool:
        """Whether it is the server's turn, and not the client's."""
        return self._is_our_turn()

    def give_up(self, why: TooSlow) -> None:
        """Hang up on a client that is too slow. Drop it where it would not read why."""
        if self._has_ended or self._is_shaking_hands:
            self._wire.abort()
            return
        if self._awaits_reader:
            self._services.refusals.log(self._wire.peer, self.access.identity, "a long reply was not read in time")
            self._wire.abort()
            return
        self.outbox.answering = Command()
        self.turn_away(why)

    def turn_away(self, why: ClientError) -> None:
        """Log the reason, answer with it, and hang up."""
        self._services.refusals.log(self._wire.peer, self.access.identity, str(why))
        self.refuse(why, closes=True)

    def settings_changed(self) -> None:
        """The limits may be others now."""
        self.settings = self._services.settings
        self._most_held_bytes = self.settings.max_pipeline_bytes
        self._idleness.timeout_changed()

    def _timeout_ms(self) -> int | None:
        return self.settings.client_timeout_ms

    @property
    def _awaits_reader(self) -> bool:
        """Whether a long reply goes on only when the client has read what was sent of it."""
        exceeds_tick = self._when_replies_left is not None and self._state is not State.WAITING
        return exceeds_tick and self.outbox.is_paused

    def _is_our_turn(self) -> bool:
        """Whether the client waits for the server, and not the server for the client."""
        is_busy = self._state in (State.WAITING, State.LOADING, State.DRAINING_LOADING) or self._is_turn_due
        if is_busy and not self._awaits_reader:
            return True
        if self.outbox.is_paused:  # what it has read of the last reply the transport does not tell
            may_take_s = self.outbox.stuck_bytes / SLOWEST_READER_BYTES_PER_S
            return self.clock.seconds() - self._paused_s < may_take_s
        return self.outbox.holds_replies

    def _timed_out(self) -> None:
        """It asked for nothing for too long; or it does not take its replies, and no hang-up would ever reach it."""
        if self.outbox.is_paused or self._state is State.CLOSING:
            self._wire.abort()
        else:
            self.close()

    # One turn after the other.

    def _step(self, event: Event) -> None:
        self._state = after(self._state, event)
        self._may_run = self._state in RUNNING
        self._waits = self._state is State.WAITING
        self._drains = self._state is State.DRAINING
        self._has_ended = self._state in ENDED

    def _go_on(self) -> None:
        if self._may_run and not self._is_running and not self._is_turn_due:
            self._is_turn_due = True
            self.scheduler.continue_later(self._next_turn)

    def _next_turn(self) -> None:
        self._is_turn_due = False
        self._take_turn()
        self._listen_or_not()
        self._note_unread()

    def _take_turn(self) -> None:
        if not self.scheduler.has_time():
            self._go_on()
            return
        self._is_running = True
        try:
            has_more = self._run()
        finally:
            self._is_running = False
        if has_more:
            self._go_on()

    def _run(self) -> bool:
        """Carry out commands. True when there may be more to do at once."""
        codec, outbox, scheduler, handlers = self.codec, self.outbox, self.scheduler, self._handlers
        began = scheduler.checked_at_s
        for _ in range(COMMANDS_PER_TURN):
            if not self._may_run or self.is_held_up:
                return False
            command = codec.next_command()
            if command is None:
                outbox.answering = _NO_COMMAND  # the last one may have been a large put
                if self._drains:
                    self._step(Event.ALL_DONE)
                    self._close_now()
                return False
            outbox.answering = command
            self._commands_done += 1
            try:
                handlers[type(command)](self, command)
            except KestrelError as error:
                self.refuse(error)
            except Exception as error:
                self._failed(error)
            if scheduler.exceeds_tick(began):
                break
        return True

    @property
    def is_held_up(self) -> bool:
        """Whether replies must leave before more are made."""
        held_bytes = self.outbox.held_bytes
        if held_bytes > self._most_held_bytes or self.outbox.is_paused:
            return True
        return held_bytes > HELD_BYTES_WHEN_MEMORY_IS_FULL and self.manager.memory_limit.is_reached

    def continue_later(self, work: Callable[[], None]) -> None:
        """Do that for the command in the next tick."""
        self.scheduler.continue_later(partial(self._go_on_with, work))

    def go_on_in_background(self, step: Callable[[], None]) -> None:
        """Call `step` for the command when other clients' requests leave time for it."""
        self.scheduler.run_in_background(partial(self._go_on_with, step))

    def _go_on_with(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        """A fault of ours ends this connection and nothing else."""
        log.failure("A command failed")
        self.refuse(error, closes=True)

    def _listen_or_not(self) -> None:
        stands_still = not self._may_run or self._is_turn_due or self.is_held_up
        wanted = self._waits or not stands_still or len(self.codec) <= UNREAD_BYTES
        if wanted is not self._is_listening and self._state in HEARING:
            self._is_listening = wanted
            if wanted:
                self._begun_behind = -1  # the client could send nothing: it has its time from now on
            self._wire.listen(wanted)

    def _note_unread(self) -> None:
        """How long a request may take to come whole is bounded, and how much there may be of those that have not."""
        unread_bytes = len(self.codec) + self.carried_bytes
        if not (unread_bytes or self._unread_bytes) or self._has_ended:
            return
        self._unread_bytes = unread_bytes
        if unread_bytes:
            is_another = self._commands_done != self._begun_behind
            self._begun_behind = self._commands_done
            self._services.unfinished.is_at(self, unread_bytes, anew=is_another)
        else:
            self._services.unfinished.is_done(self)

    # Replies.

    def say(self, replies: bytes) -> None:
        """Hand them to the client."""
        self.counters.bytes_written += len(replies)
        self._wire.write(replies)

    def say_lost(self, command: Command, failure: Exception) -> bytes:
        """The reply to a command whose batch was lost."""
        return self.codec.error(command, failure)[0]

    def has_left(self) -> bool:
        """Whether the client has left, and the session is told of it next."""
        return self._is_listening and self._state in HEARING and self._wire.has_ended()

    def hang_up(self) -> None:
        """All is said."""
        self._wire.lose()

    def replies_left(self) -> None:
        """There is room for more."""
        if self._when_replies_left is not None:
            self._when_replies_left()
        elif self._drains or len(self.codec):
            self._go_on()

    def refuse(self, error: Exception, *, closes: bool = False) -> None:
        """Answer the command with that error; hang up after it where the protocol does."""
        if isinstance(error, NotListed):
            self._services.refusals.log(self._wire.peer, self.access.identity, str(error))
        reply, ends = self.codec.error(self.outbox.answering, error)
        self.outbox.reply(reply)
        if ends or closes:
            self.close()

    def close(self) -> None:
        """Hang up after the replies so far."""
        self._step(Event.CLOSE)
        self._close_now()

    def _close_now(self) -> None:
        """Nothing more is carried out, so nothing that is open can be finished any more."""
        self._end_waiting()
        self.reads.put_back_all()
        self.codec.end()
        if self._state is not State.GONE:
            self._services.unfinished.is_at(self, 0, anew=True)  # until all is said, and the connection gone
        self.outbox.close()

    # A command that has to wait.

    def wait_for_server(
        self, stop: Callable[[], None], when_replies_left: Callable[[], None] | None = None
    ) -> None:
        """Keep the command until `answered`: it waits for the storage, for its next turn, or for replies to leave.

        `stop` is called when the client goes before that, `when_replies_left` whenever replies made room for more.
        """
        self._step(Event.STORAGE_WAITS)
        self._stop_waiting = stop
        self._when_replies_left = when_replies_left

    def wait_for_client(
        self,
        wait_ms: int,
        stop: Callable[[], None],
        timed_out: Callable[[], None],
        when_replies_left: Callable[[], None] | None = None,
    ) -> bool:
        """The command waits as long as the client asked to. False when the client will not be there to see the end.

        `stop` is called when it goes before `answered`, `when_replies_left` whenever replies made room for more.
        """
        self._step(Event.CLIENT_WAITS)
        if self._state is State.CLOSING:
            self._close_now()
            return False
        self._stop_waiting = stop
        self._when_replies_left = when_replies_left
        self._listen_or_not()
        self._deadline = self.clock.callLater(wait_ms / 1000, timed_out)
        return True

    def answer_when_done(self, outcome: Deferred[_Result], answer: Callable[[_Result], None]) -> None:
        """The command is answered when that has fired: by `answer`, or with its error."""
        is_there = True

        def gone() -> None:
            nonlocal is_there
            is_there = False

        def done(result: _Result) -> None:
            if is_there:
                answer(result)
                self.answered()

        def failed(failure: Failure) -> None:
            error = failure.value
            if not isinstance(error, KestrelError):
                log.failure("A command failed", failure)
            if is_there:
                self.refuse(error if isinstance(error, Exception) else KestrelError(str(error)))
                self.answered()

        self.wait_for_server(gone)
        outcome.addCallbacks(done, failed)

    def answered(self) -> None:
        """The command that waited has its answer: go on with the next."""
        self._idleness.interrupted()
        self._end_waiting()
        self.carried_bytes = 0
        self._begun_behind = -1  # what has begun behind it has its time from now on
        self._step(Event.ANSWERED)
        if self._closes_when_answered:
            self.close()
        else:
            self._go_on()

    def _end_waiting(self) -> None:
        stop, self._stop_waiting = self._stop_waiting, None
        deadline, self._deadline = self._deadline, None
        self._when_replies_left = None
        if stop is not None:
            stop()
        if deadline is not None and deadline.active():
            deadline.cancel()
