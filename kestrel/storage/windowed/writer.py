"""The changes of a `WindowedStorage` that its database does not have yet, and their writer.

The writer passes them to the database in batches, one at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from kestrel.errors import DatabaseAway, OwnershipLost, QueueFailed, StorageError, StorageRefused
from kestrel.storage.database import IDatabase, QueueChanges, StoredItem, StoredQueue, WriteBatch
from kestrel.storage.failures import error_of, reason_of

log = Logger(__name__)

BATCH_ITEMS: Final = 10_000
BATCH_BYTES: Final = 16 << 20
"""Sizes at which a batch is full. The changes of one queue and commit are never split, so a batch may be larger."""

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 5.0
"""The pause between two attempts while the database is away doubles from `FIRST_PAUSE_S` up to this."""

REFUSED_S: Final = 5.0
"""How long puts are refused after the database reported that it has no room, in seconds."""


class PendingChanges:
    """The changes to one queue that the next commit writes. A put and a removal of the same item cancel out."""

    __slots__ = ("bytes", "errors", "is_new", "puts", "removed")

    def __init__(self, is_new: bool = False) -> None:
        self.is_new = is_new
        """Whether the database must first delete everything stored under the queue's name. True for a queue that
        the database does not know."""
        self.puts: dict[int, StoredItem] = {}
        """New items by position, lowest first."""
        self.bytes = 0
        """Bytes of data of `puts`."""
        self.removed: list[tuple[int, int]] = []
        """Inclusive ranges of positions, in no order."""
        self.errors: dict[int, int] = {}

    def __bool__(self) -> bool:
        return bool(self.is_new or self.puts or self.removed or self.errors)

    def put(self, item: StoredItem) -> None:
        """Add a new item. Its position is greater than all others."""
        self.puts[item.position] = item
        self.bytes += len(item.data)

    def remove(self, position: int) -> None:
        """Remove the item at `position`."""
        put = self.puts.pop(position, None)
        if put is not None:
            self.bytes -= len(put.data)
            return
        self.errors.pop(position, None)
        if self.removed and self.removed[-1][1] == position - 1:
            self.removed[-1] = (self.removed[-1][0], position)
        else:
            self.removed.append((position, position))

    def remove_all_but(self, kept: Iterable[int], first: int, last: int) -> None:
        """Remove all items from `first` to `last`, inclusive, except those at the positions `kept`, which are in
        ascending order.
        """
        keeping = list(kept)
        self.puts = {position: self.puts[position] for position in keeping if position in self.puts}
        self.bytes = sum(len(item.data) for item in self.puts.values())
        self.errors = {position: self.errors[position] for position in keeping if position in self.errors}
        self.removed = []  # the ranges below include all of these
        for position in (*keeping, last + 1):
            if first < position:
                self.removed.append((first, position - 1))
            first = position + 1

    def fail(self, item: StoredItem) -> None:
        """Set the error count of an item."""
        if item.position in self.puts:
            self.puts[item.position] = item
        else:
            self.errors[item.position] = item.errors

    def seal(self, before: int, after: StoredQueue) -> QueueChanges:
        """Return the changes for the database to commit. This object is not cleared.

        Removals up to `after.floor` become one range from `before + 1`. The database has no items up to `before` now,
        and will have none up to `after.floor`.
        """
        ranges = [each for each in self.removed if each[1] > after.floor]
        if len(ranges) < len(self.removed):
            ranges.append((before + 1, after.floor))
        removed = _merged(ranges)
        return QueueChanges(after, self.is_new, False, removed, list(self.puts.values()), self.errors)


def _merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return merged


class PendingWrite(NamedTuple):
    """The changes of one commit of one queue, and the Deferred for its result."""

    changes: QueueChanges
    done: Deferred[None]


class BatchWriter:
    """Writes batches to the database. Repeats a batch while its result is unknown."""

    def __init__(self, database: IDatabase, clock: IReactorTime, on_end: Callable[[StorageError], None]) -> None:
        self._database = database
        self._clock = clock
        self._on_end = on_end
        """Receives the reason when nothing more will be written."""
        self._waiting: deque[PendingWrite] = deque()
        self._single_retries: deque[PendingWrite] = deque()
        """Writes of a batch that was refused. They are tried one by one, so that only those that fail alone are lost.
        """
        self._writing: list[PendingWrite] = []
        self._is_flushing = False
        self._number = 0
        self._pause_s = FIRST_PAUSE_S
        self._next_attempt: IDelayedCall | None = None
        self._room_timer: IDelayedCall | None = None
        self._outage: str | None = None
        """Reason why the database is away, or None. Only logged, because it may name accounts and machines."""
        self._has_room = True
        self._idle: Deferred[None] | None = None
        self.end: str | None = None
        """Reason why nothing more will be written, or None."""

    @property
    def refusal(self) -> str | None:
        """Reason why puts are refused, or None."""
        if self.end is not None:
            return self.end
        if self._outage is not None:
            return "the database is away"
        return None if self._has_room else "the database has no room"

    def write(self, changes: QueueChanges) -> Deferred[None]:
        """Add changes to the next batch. `flush` starts it.

        The Deferred fires when they are in the database. It fails with `QueueFailed` if they never will be.
        """
        done: Deferred[None] = Deferred()
        self._waiting.append(PendingWrite(changes, done))
        return done

    def flush(self) -> None:
        """Write the waiting changes, unless a batch is being written."""
        if self.end is not None:
            self._fail_all(self.end)
        if self._is_flushing:
            return  # the database answered at once, so the loop below is running and continues
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
            if changes.queue.name in names:  # a deleted queue and a new one of the same name
                break
            names.add(changes.queue.name)
            items += len(changes.puts) + len(changes.removed) + len(changes.errors)
            size += sum(len(item.data) for item in changes.puts)
            writes.append(self._waiting.popleft())
        return writes

    def _apply(self, batch: WriteBatch) -> None:
        self._next_attempt = None
        applying = maybeDeferred(self._database.apply, batch)
        applying.addCallbacks(self._applied, self._apply_failed, errbackArgs=(batch,))
        applying.addErrback(self._stop_after_error)

    def _applied(self, _: object) -> None:
        if self._outage is not None:
            log.info("The database is back")
        self._outage = None
        self._pause_s = FIRST_PAUSE_S
        writes, self._writing = self._writing, []
        for write in writes:
            write.done.callback(None)
        self._flush_or_idle()

    def _apply_failed(self, failure: Failure, batch: WriteBatch) -> None:
        if not self._writing:
            return  # the writer was stopped, so no write waits for the result
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
            log.error("The database is away, and the writer tries again: {reason}", reason=reason)
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

    def _stop_after_error(self, failure: Failure) -> None:
        log.failure("Handling the result of a batch failed", failure)
        self.stop(StorageError("the storage failed to go on"))

    def idle(self) -> Deferred[None]:
        """Return a Deferred that fires when there is nothing left to write."""
        self._idle = Deferred()
        idle = self._idle
        self._flush_or_idle()
        return idle

    def stop(self, error: StorageError) -> None:
        """Write nothing more. All waiting changes fail with the message of `error`."""
        reason = str(error)
        self.end = self.end or reason
        for call in (self._next_attempt, self._room_timer):
            if call is not None and call.active():
                call.cancel()
        self._next_attempt = self._room_timer = None
        self._fail_all(reason)
        self._on_end(error)
        self._flush_or_idle()

    def _fail_all(self, reason: str) -> None:
        writes = [*self._writing, *self._single_retries, *self._waiting]
        self._writing = []
        self._single_retries.clear()
        self._waiting.clear()
        _fail(writes, reason)


def _fail(writes: list[PendingWrite], reason: str) -> None:
    for write in writes:
        write.done.errback(QueueFailed(reason))
