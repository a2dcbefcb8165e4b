"""What `IDatabase` says of how it is called, to be checked while somebody calls one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from twisted.python.failure import Failure

from kestrel.errors import DatabaseAway
from kestrel.storage.database import QueueChanges, StoredQueue, WriteBatch

MAX_NAME_BYTES: Final = 255
MAX_POSITION: Final = (1 << 63) - 1


class DatabaseCallChecker:
    """How a database has been called, and what `IDatabase` says of it."""

    def __init__(self) -> None:
        self.complaints: list[str] = []
        self.is_closed = False
        self._was_listed = False
        self._queues: dict[bytes, StoredQueue] = {}
        """As the last batch left each."""
        self._last_number = 0
        self._pending: WriteBatch | None = None
        """A copy of the batch that is being applied."""
        self._undecided: WriteBatch | None = None
        """A copy of a batch that may have been applied or not."""

    def _check(self, is_so: bool, otherwise: str) -> None:
        if not is_so:
            self.complaints.append(otherwise)
            raise AssertionError(otherwise)

    def _check_is_open(self, operation: str) -> None:
        self._check(self._was_listed, f"{operation} before list_queues")
        self._check(not self.is_closed, f"{operation} after close")

    # Calls.

    def check_list_queues(self) -> None:
        """The first call, once."""
        self._check(not self._was_listed, "list_queues a second time")
        self._check(not self.is_closed, "list_queues after close")
        self._was_listed = True

    def was_listed(self, queues: Sequence[StoredQueue]) -> Sequence[StoredQueue]:
        """So much is there."""
        self._queues = {queue.name: queue for queue in queues}
        return queues

    def check_read_after(self, name: bytes, position: int, n: int, max_bytes: int) -> None:
        """A read that asks for something."""
        self._check_is_open("read_after")
        self._check_name(name)
        gone_to = self._queues[name].gone_to if name in self._queues else 0
        self._check(gone_to <= position <= MAX_POSITION, f"items are read behind {position}, and are gone to {gone_to}")
        self._check(n > 0, f"{n} items are asked for")
        self._check(max_bytes >= 0, f"items of {max_bytes} bytes are asked for")

    def check_close(self) -> None:
        """Once."""
        self._check(not self.is_closed, "close a second time")
        self.is_closed = True

    def check_apply(self, batch: WriteBatch) -> None:
        """One at a time, with rising numbers; the same again when it is not known whether it was applied."""
        self._check_is_open("apply")
        self._check(self._pending is None, "apply while another one is pending")
        copy = _copied(batch)
        if self._undecided is not None:
            self._check(copy == self._undecided, "another batch, or a changed one, after one of unknown outcome")
        else:
            self._check(batch.number > self._last_number, f"batch {batch.number} after batch {self._last_number}")
            names = [each.queue.name for each in batch.changes]
            self._check(bool(names), f"batch {batch.number} changes nothing")
            self._check(len(names) == len(set(names)), f"a queue has two entries in batch {batch.number}")
            for each in batch.changes:
                self._check_changes(each)
        self._last_number = batch.number
        self._pending = copy

    def was_applied(self, result: object, batch: WriteBatch) -> object:
        """That was the outcome."""
        pending, self._pending = self._pending, None
        self._check(_copied(batch) == pending, f"batch {batch.number} was changed while it was being applied")
        self._undecided = None
        if isinstance(result, Failure):
            if result.check(DatabaseAway):
                self._undecided = pending
            elif result.check(AssertionError):
                self.complaints.append(result.getErrorMessage())
            return result
        for each in batch.changes:
            if each.is_deleted:
                self._queues.pop(each.queue.name, None)
            else:
                self._queues[each.queue.name] = each.queue
        return result

    # One queue's changes.

    def _check_name(self, name: bytes) -> None:
        self._check(0 < len(name) <= MAX_NAME_BYTES, f"a name of {len(name)} bytes")

    def _check_changes(self, changes: QueueChanges) -> None:
        queue = changes.queue
        self._check_name(queue.name)
        if changes.is_deleted:
            has_more = changes.removed or changes.puts or changes.errors
            self._check(not has_more, f"{queue.name!r} is deleted, and has other changes")
            return
        before = StoredQueue(queue.name, 0, 0, 0, 0)
        if not changes.is_new:
            self._check(queue.name in self._queues, f"{queue.name!r} is not there, and is not new")
            before = self._queues[queue.name]
        self._check_figures(changes, before)
        self._check_ranges(changes)
        self._check_puts(changes, before)
        for position, errors in changes.errors.items():
            is_there = before.gone_to < position <= before.last
            self._check(is_there, f"{queue.name!r} counts errors of {position}, where no item stands")
            self._check(errors > 0, f"{queue.name!r} says {errors} errors of {position}")

    def _check_figures(self, changes: QueueChanges, before: StoredQueue) -> None:
        queue = changes.queue
        is_legal = min(queue.items, queue.bytes, queue.gone_to) >= 0 and queue.last <= MAX_POSITION
        self._check(is_legal, f"{queue} cannot be")
        self._check(before.last <= queue.last, f"{queue.name!r} had given {before.last}, and now {queue.last}")
        self._check(before.gone_to <= queue.gone_to, f"items of {queue.name!r} stand again below {before.gone_to}")
        if not changes.removed:
            items = before.items + len(changes.puts)
            size = before.bytes + sum(len(item.data) for item in changes.puts)
            self._check((queue.items, queue.bytes) == (items, size), f"{queue} has {items} items of {size} bytes")

    def _check_ranges(self, changes: QueueChanges) -> None:
        end = -1
        for first, last in changes.removed:
            self._check(end < first <= last <= MAX_POSITION, f"{first} to {last} is removed, behind {end}")
            end = last
            elsewhere = [*(item.position for item in changes.puts), *changes.errors]
            named_twice = [position for position in elsewhere if first <= position <= last]
            self._check(not named_twice, f"{named_twice} are removed, and put or counted")

    def _check_puts(self, changes: QueueChanges, before: StoredQueue) -> None:
        last = before.last
        for item in changes.puts:
            self._check(last < item.position, f"{changes.queue.name!r} puts {item.position} behind {last}")
            self._check(item.errors >= 0, f"{changes.queue.name!r} puts an item with {item.errors} errors")
            last = item.position
        self._check(last <= changes.queue.last, f"{changes.queue} was given {last}")


def _copied(batch: WriteBatch) -> WriteBatch:
    """The same, of values that nobody else can change."""
    return WriteBatch(
        batch.number,
        [
            each._replace(removed=list(each.removed), puts=list(each.puts), errors=dict(each.errors))
            for each in batch.changes
        ],
    )
