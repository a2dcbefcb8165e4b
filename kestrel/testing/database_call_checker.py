"""A checker of the calls that a storage makes to an `IDatabase`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from twisted.python.failure import Failure

from kestrel.errors import DatabaseAway
from kestrel.storage.database import QueueChanges, StoredQueue, WriteBatch

MAX_NAME_BYTES: Final = 255
MAX_POSITION: Final = (1 << 63) - 1


class DatabaseCallChecker:
    """A record of the calls to one database, checked against the rules of `IDatabase`.

    A call that breaks a rule raises AssertionError. Its message is also kept in `complaints`.
    """

    def __init__(self) -> None:
        self.complaints: list[str] = []
        self.is_closed = False
        self._was_listed = False
        self._queues: dict[bytes, StoredQueue] = {}
        """Each queue after the last applied batch, by name."""
        self._last_number = 0
        self._pending: WriteBatch | None = None
        """A copy of the batch whose `apply` is pending."""
        self._undecided: WriteBatch | None = None
        """A copy of the last batch whose `apply` failed with `DatabaseAway`: it may have been applied."""

    def _check(self, is_so: bool, otherwise: str) -> None:
        if not is_so:
            self.complaints.append(otherwise)
            raise AssertionError(otherwise)

    def _check_is_open(self, operation: str) -> None:
        self._check(self._was_listed, f"{operation} before list_queues")
        self._check(not self.is_closed, f"{operation} after close")


    def check_list_queues(self) -> None:
        """Check that `list_queues` is the first call and is made once."""
        self._check(not self._was_listed, "list_queues was called twice")
        self._check(not self.is_closed, "list_queues after close")
        self._was_listed = True

    def was_listed(self, queues: Sequence[StoredQueue]) -> Sequence[StoredQueue]:
        """Record the queues that `list_queues` returned, and return them."""
        self._queues = {queue.name: queue for queue in queues}
        return queues

    def check_read_after(self, name: bytes, position: int, n: int, max_bytes: int) -> None:
        """Check the arguments of `read_after`."""
        self._check_is_open("read_after")
        self._check_name(name)
        floor = self._queues[name].floor if name in self._queues else 0
        self._check(floor <= position <= MAX_POSITION, f"read_after {position}, below `floor` = {floor}")
        self._check(n > 0, f"read_after with n = {n}")
        self._check(max_bytes >= 0, f"read_after with max_bytes = {max_bytes}")

    def check_close(self) -> None:
        """Check that `close` is called once."""
        self._check(not self.is_closed, "close was called twice")
        self.is_closed = True

    def check_apply(self, batch: WriteBatch) -> None:
        """Check a batch: one at a time, with rising numbers.

        A batch that failed with `DatabaseAway` must be sent again, unchanged, before any other batch.
        """
        self._check_is_open("apply")
        self._check(self._pending is None, "apply while another apply is pending")
        copy = _copied(batch)
        if self._undecided is not None:
            self._check(copy == self._undecided, "a batch of unknown outcome was not repeated unchanged")
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
        """Record the result of an `apply`, and return it."""
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


    def _check_name(self, name: bytes) -> None:
        self._check(0 < len(name) <= MAX_NAME_BYTES, f"a queue name has {len(name)} bytes")

    def _check_changes(self, changes: QueueChanges) -> None:
        queue = changes.queue
        self._check_name(queue.name)
        if changes.is_deleted:
            has_more = changes.removed or changes.puts or changes.errors
            self._check(not has_more, f"{queue.name!r} is deleted and has other changes")
            return
        before = StoredQueue(queue.name, 0, 0, 0, 0)
        if not changes.is_new:
            self._check(queue.name in self._queues, f"{queue.name!r} does not exist and is not marked as new")
            before = self._queues[queue.name]
        self._check_figures(changes, before)
        self._check_ranges(changes)
        self._check_puts(changes, before)
        for position, errors in changes.errors.items():
            is_there = before.floor < position <= before.last
            self._check(is_there, f"{queue.name!r} has an error count for position {position}, which has no item")
            self._check(errors > 0, f"{queue.name!r} has {errors} errors for position {position}")

    def _check_figures(self, changes: QueueChanges, before: StoredQueue) -> None:
        queue = changes.queue
        is_legal = min(queue.items, queue.bytes, queue.floor) >= 0 and queue.last <= MAX_POSITION
        self._check(is_legal, f"{queue} has a negative total or a position above 2^63 - 1")
        self._check(before.last <= queue.last, f"{queue.name!r} lowers `last` from {before.last}")
        self._check(before.floor <= queue.floor, f"{queue.name!r} lowers `floor` from {before.floor}")
        if not changes.removed:
            items = before.items + len(changes.puts)
            size = before.bytes + sum(len(item.data) for item in changes.puts)
            self._check((queue.items, queue.bytes) == (items, size), f"{queue}: expected {items} items of {size} bytes")

    def _check_ranges(self, changes: QueueChanges) -> None:
        end = -1
        for first, last in changes.removed:
            self._check(end < first <= last <= MAX_POSITION, f"removed range {first} to {last} follows {end}")
            end = last
            elsewhere = [*(item.position for item in changes.puts), *changes.errors]
            named_twice = [position for position in elsewhere if first <= position <= last]
            self._check(not named_twice, f"positions {named_twice} are removed and also put or counted")

    def _check_puts(self, changes: QueueChanges, before: StoredQueue) -> None:
        last = before.last
        for item in changes.puts:
            self._check(last < item.position, f"{changes.queue.name!r} puts position {item.position} after {last}")
            self._check(item.errors >= 0, f"{changes.queue.name!r} puts an item with {item.errors} errors")
            last = item.position
        self._check(last <= changes.queue.last, f"{changes.queue} has an item at position {last}, above `last`")


def _copied(batch: WriteBatch) -> WriteBatch:
    """Return a copy that later changes to the batch do not affect."""
    return WriteBatch(
        batch.number,
        [
            each._replace(removed=list(each.removed), puts=list(each.puts), errors=dict(each.errors))
            for each in batch.changes
        ],
    )
