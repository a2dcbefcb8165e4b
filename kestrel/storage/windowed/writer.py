"""Write-behind: what queues recorded goes to the database in batches, one after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from kestrel.errors import DatabaseAway, OwnershipLost, QueueFailed, StorageError, StorageRefused
from kestrel.storage.database import IDatabase, QueueChanges, WriteBatch
from kestrel.storage.failures import error_of, reason_of

log = Logger(__name__)

BATCH_ITEMS: Final = 10_000
BATCH_BYTES: Final = 16 << 20
"""Beyond that nothing is added to a batch. What one queue recorded in one tick stays together."""

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 5.0
"""Between two attempts while the database is away: twice as long each time."""

REFUSED_S: Final = 5.0
"""How long no put is taken after the database said that it has no room."""


class PendingWrite(NamedTuple):
    """What one commit of one queue brings, and who waits for it."""

    changes: QueueChanges
    done: Deferred[None]


class BatchWriter:
    """Hands batches to the database, and the same one again where it is not known what became of it."""

    def __init__(self, database: IDatabase, clock: IReactorTime, ended: Callable[[StorageError], None]) -> None:
        self._database = database
        self._clock = clock
        self._ended = ended
        """Told when nothing will be written any more, and why."""
        self._waiting: deque[PendingWrite] = deque()
        self._single_retries: deque[PendingWrite] = deque()
        """They failed together, and are tried one by one: only those that fail alone are lost."""
        self._writing: list[PendingWrite] = []
        self._is_flushing = False
        self._number = 0
        self._pause_s = FIRST_PAUSE_S
        self._next_attempt: IDelayedCall | None = None
        self._room_timer: IDelayedCall | None = None
        self._outage: str | None = None
        """Why the database is, for the log. Clients are not told what may name accounts and machines."""
        self._has_room = True
        self._idle: Deferred[None] | None = None
        self.end: str | None = None
        """Why nothing will ever be written again; None while something may."""

    @property
    def refusal(self) -> str | None:
        """None, or why nothing is to be put now."""
        if self.end is not None:
            return self.end
        if self._outage is not None:
            return "the database is away"
        return None if self._has_room else "the database has no room"

    def write(self, changes: QueueChanges) -> Deferred[None]:
        """Fires when that is in the database; `flush` begins it. Fails with `QueueFailed` when it never will be."""
        done: Deferred[None] = Deferred()
        self._waiting.append(PendingWrite(changes, done))
        return done

    def flush(self) -> None:
        """Write what waits, as far as nothing is being written."""
        if self.end is not None:
            self._give_up(self.end)
        if self._is_flushing:
            return  # a database that answers at once: the loop below goes on with what is left
        self._is_flushing = True
        while not self._writing and (self._single_retries or self._waiting):
            self._writing = [self._single_retries.popleft()] if self._single_retries else self._next_writes()
            self._number += 1
            self._apply(WriteBatch(self._number, [write.changes for write in self._writing]))
        self._is_flushing = False

    def _next_writes(self) -> list[PendingWrite]:
        writes: list[PendingWrite] = []
        names: set[bytes] = set()
        items = size = 0
        while self._waiting and items < BATCH_ITEMS and size < BATCH_BYTES:
            changes = self._waiting[0].changes
            if changes.queue.name in names:  # a queue that was deleted, and the one that has its name now
                break
            names.add(changes.queue.name)
            items += len(changes.puts) + len(changes.removed) + len(changes.errors)
            size += sum(len(item.data) for item in changes.puts)
            writes.append(self._waiting.popleft())
        return writes

    def _apply(self, batch: WriteBatch) -> None:
        self._next_attempt = None
        applying = maybeDeferred(self._database.apply, batch)
        applying.addCallbacks(self._applied, self._failed, errbackArgs=(batch,))
        applying.addErrback(self._fault)

    def _applied(self, _: object) -> None:
        if self._outage is not None:
            log.info("The database is back")
        self._outage = None
        self._pause_s = FIRST_PAUSE_S
        writes, self._writing = self._writing, []
        for write in writes:
            write.done.callback(None)
        self._flush_or_idle()

    def _failed(self, failure: Failure, batch: WriteBatch) -> None:
        if not self._writing:
            return  # nobody waits for it any more
        error = error_of(failure)
        reason = reason_of(error)
        if isinstance(error, DatabaseAway):
            self._retry_later(reason, batch)
        elif isinstance(error, OwnershipLost):
            self.stop(error)
        else:
            self._outage = None
            self._pause_s = FIRST_PAUSE_S
            client_message = "the database refused it"
            if isinstance(error, StorageRefused):
                self._refuse_puts_for_now()
                client_message = "the database has no room for it"
            self._reject_writes(reason, client_message)

    def _retry_later(self, reason: str, batch: WriteBatch) -> None:
        if self._outage != reason:
            log.error("The database is away, and is tried again: {reason}", reason=reason)
        self._outage = reason
        self._next_attempt = self._clock.callLater(self._pause_s, self._apply, batch)
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def _refuse_puts_for_now(self) -> None:
        self._has_room = False
        if self._room_timer is None:
            self._room_timer = self._clock.callLater(REFUSED_S, self._may_have_room)
        else:
            self._room_timer.reset(REFUSED_S)

    def _may_have_room(self) -> None:
        self._room_timer = None
        self._has_room = True

    def _reject_writes(self, reason: str, client_message: str) -> None:
        writes, self._writing = self._writing, []
        if len(writes) > 1:
            self._single_retries.extend(writes)
        else:
            log.error("The database refuses a batch: {reason}", reason=reason)
            _fail(writes, client_message)
        self._flush_or_idle()

    def _flush_or_idle(self) -> None:
        self.flush()
        if self._idle is not None and not (self._writing or self._single_retries or self._waiting):
            idle, self._idle = self._idle, None
            idle.callback(None)

    def _fault(self, failure: Failure) -> None:
        log.failure("What was to be told of a batch failed", failure)
        self.stop(StorageError("the storage failed to go on"))

    def idle(self) -> Deferred[None]:
        """Fires when nothing is left to be written."""
        self._idle = Deferred()
        idle = self._idle
        self._flush_or_idle()
        return idle

    def stop(self, error: StorageError) -> None:
        """Write nothing any more, for that reason: all that waits is lost."""
        reason = str(error)
        self.end = self.end or reason
        for call in (self._next_attempt, self._room_timer):
            if call is not None and call.active():
                call.cancel()
        self._next_attempt = self._room_timer = None
        self._give_up(reason)
        self._ended(error)
        self._flush_or_idle()

    def _give_up(self, reason: str) -> None:
        writes = [*self._writing, *self._single_retries, *self._waiting]
        self._writing = []
        self._single_retries.clear()
        self._waiting.clear()
        _fail(writes, reason)


def _fail(writes: list[PendingWrite], reason: str) -> None:
    for write in writes:
        write.done.errback(QueueFailed(reason))


