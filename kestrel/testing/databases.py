"""A database in memory, and a database wrapper that injects faults, for tests of database storages."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import attrs
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.python.failure import Failure
from zope.interface import implementer

from kestrel.errors import DatabaseAway, OwnershipLost, StorageError, StorageInUse, StorageRefused
from kestrel.storage.database import IDatabase, QueueChanges, StoredItem, StoredQueue, WriteBatch
from kestrel.storage.interfaces import InThread
from kestrel.testing.faults import Fault

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


class MemoryTables:
    """The queues and items of a `MemoryDatabase`. They outlive it: databases can share them one after the other.

    A batch that would leave a queue with wrong totals raises AssertionError and changes nothing.
    """

    def __init__(self) -> None:
        self.queues: dict[bytes, StoredQueue] = {}
        self.items: dict[bytes, list[StoredItem]] = {}
        """The items of each queue, lowest position first."""
        self.owner: object | None = None
        """The object that owns the tables; None if no connection of an owner is open."""
        self.epoch = 0
        """The number of owners so far. A batch from an earlier owner is refused."""
        self.last_number = 0
        """The number of the last batch that the current owner applied."""
        self.room: int | None = None
        """The limit for the bytes of data in all queues; None for no limit."""

    def copy(self) -> MemoryTables:
        """Return the tables that remain if the owner's process dies now."""
        copy = type(self)()
        copy.queues, copy.items = self.queues.copy(), self.items.copy()
        copy.epoch, copy.last_number = self.epoch, self.last_number
        return copy

    def own(self, owner: object) -> int:
        """Make this object the owner, and return its epoch. Raise StorageInUse if there is an owner already."""
        if self.owner is not None:
            raise StorageInUse("another server keeps its queues in this database: stop it, or name another database")
        self.owner = owner
        self.epoch += 1
        self.last_number = 0
        return self.epoch

    def list_queues(self) -> list[StoredQueue]:
        return list(self.queues.values())

    def read_after(self, name: bytes, position: int, n: int, max_bytes: int) -> list[StoredItem]:
        """Return up to `n` items and `max_bytes` of data after that position, but at least one item if there is any."""
        items = self.items.get(name, [])
        begin = bisect_right(items, position, key=_position)
        found: list[StoredItem] = []
        for item in items[begin : begin + n]:
            max_bytes -= len(item.data)
            if found and max_bytes < 0:
                break
            found.append(item)
        return found

    def apply(self, batch: WriteBatch, epoch: int) -> None:
        """Apply the whole batch, or raise and change nothing. Ignore a batch that repeats the last number."""
        if epoch != self.epoch:
            raise OwnershipLost("another server has taken over the database: this one no longer writes to it")
        if batch.number == self.last_number:
            return
        queues, items = self.queues.copy(), self.items.copy()
        for change in batch.changes:
            self.change(queues, items, change)
        if self.room is not None and _size(queues) > max(self.room, _size(self.queues)):
            raise StorageRefused("the database is full: make room in it")
        self.queues, self.items, self.last_number = queues, items, batch.number

    def change(
        self, queues: dict[bytes, StoredQueue], items: dict[bytes, list[StoredItem]], change: QueueChanges
    ) -> None:
        """Apply one queue's changes to `queues` and `items`. Lists in `items` are replaced, never modified."""
        name = change.queue.name
        if change.is_deleted:
            queues.pop(name, None)
            items.pop(name, None)
            return
        kept = [] if change.is_new else items.get(name, []).copy()
        self.remove(kept, change.removed)
        for position, errors in change.errors.items():
            place = bisect_left(kept, position, key=_position)
            is_there = place < len(kept) and kept[place].position == position
            assert is_there, f"an error count for position {position}, which has no item"
            kept[place] = kept[place]._replace(errors=errors)
        kept += change.puts
        self.check(change.queue, kept)
        queues[name], items[name] = change.queue, kept

    def check(self, queue: StoredQueue, items: Sequence[StoredItem]) -> None:
        """Raise AssertionError if the totals of the queue differ from these items."""
        positions = [item.position for item in items]
        size = sum(len(item.data) for item in items)
        assert positions == sorted(set(positions)), f"{queue.name!r} has items out of order"
        assert (queue.items, queue.bytes) == (len(items), size), f"{queue} has {len(items)} items of {size} bytes"
        assert not items or queue.floor < positions[0], f"{queue} has an item at {positions[0]}"
        assert not items or positions[-1] <= queue.last, f"{queue} has an item at {positions[-1]}"

    def remove(self, items: list[StoredItem], removed: Sequence[tuple[int, int]]) -> None:
        """Remove the items in these ranges from the list. Both ends of a range are included."""
        for first, last in removed:
            del items[bisect_left(items, first, key=_position) : bisect_right(items, last, key=_position)]


def _position(item: StoredItem) -> int:
    return item.position


def _size(queues: Mapping[bytes, StoredQueue]) -> int:
    return sum(queue.bytes for queue in queues.values())


@implementer(IDatabase)
class MemoryDatabase:
    """An `IDatabase` over tables in memory.

    Each call takes two jobs of `in_thread`: one does the work, a second one delivers the result. Between them, a test
    can inspect the tables or simulate a crash.
    """

    def __init__(self, tables: MemoryTables, in_thread: InThread = maybeDeferred) -> None:
        self.tables = tables
        """The stored data. It remains when this object is closed or dropped."""
        self._in_thread = in_thread
        self._epoch = 0
        self._is_closed = False

    def _run(self, function: Callable[..., Any], *args: object) -> Deferred[Any]:
        return self._in_thread(function, *args).addCallback(lambda result: self._in_thread(lambda: result))

    def list_queues(self) -> Deferred[Sequence[StoredQueue]]:
        """Take ownership of the tables, and return the queues."""
        return self._run(self._own)

    def _own(self) -> list[StoredQueue]:
        if self._is_closed:
            raise DatabaseAway("the database is closed")
        self._epoch = self.tables.own(self)
        return self.tables.list_queues()

    def read_after(self, name: bytes, position: int, n: int, max_bytes: int) -> Deferred[Sequence[StoredItem]]:
        return self._run(self.tables.read_after, name, position, n, max_bytes)

    def apply(self, batch: WriteBatch) -> Deferred[None]:
        """Apply the batch in one step. Fails with `OwnershipLost` if the tables have a later owner."""
        return self._run(self.tables.apply, batch, self._epoch)

    def close(self) -> Deferred[None]:
        """Release the tables, so that another database can own them."""
        return self._run(self._let_go)

    def _let_go(self) -> None:
        self._is_closed = True
        if self.tables.owner is self:
            self.tables.owner = None


@attrs.define
class _DatabaseFault(Fault):
    """A fault of one operation of a database."""

    is_done: bool = False
    """True if the operation is done and only its answer is lost."""
    concerns: Callable[[WriteBatch], bool] = lambda batch: True
    """Selects the batches that fail."""


class _Pending(NamedTuple):
    """A result that is held back until `release`."""

    operation: str
    answer: Deferred[Any]
    result: object


@implementer(IDatabase)
class FaultyDatabase:
    """A wrapper of another database that injects faults and checks how it is called.

    Operations are named list_queues, read_after, apply and close; `calls` lists them in order. A call that breaks the
    rules of `IDatabase` raises AssertionError. Its message is also kept in `complaints`, in case the caller swallows
    the exception. An injected failure takes one job of `in_thread`, as a real answer does.
    """

    def __init__(self, database: IDatabase, in_thread: InThread = maybeDeferred) -> None:
        self._database = database
        self._in_thread = in_thread
        self._faults: dict[str, list[_DatabaseFault]] = {}
        self._held_operations: set[str] = set()
        self._held: list[_Pending] = []
        self._use = DatabaseCallChecker()
        self.calls: list[str] = []

    @property
    def complaints(self) -> Sequence[str]:
        return self._use.complaints

    @property
    def is_closed(self) -> bool:
        return self._use.is_closed

    # Faults, set by a test.

    def fail(
        self, operation: str, error: StorageError, *, times: int | None = None, after: int = 0, is_done: bool = False
    ) -> None:
        """Make an operation fail with that error `times` times (None: until `mend`), after `after` more successes.

        A failing operation is not done. With `is_done` it is done and only the answer is lost. A read checks for a
        fault when it is answered, so this also affects pending reads.
        """
        self._faults.setdefault(operation, []).append(_DatabaseFault(error, times, after, is_done))

    def fail_changes_of(self, name: bytes) -> None:
        """Make each batch that changes this queue fail without being applied."""
        error = StorageError("the database cannot do that")
        fault = _DatabaseFault(error, None, 0, False, lambda batch: name in (each.queue.name for each in batch.changes))
        self._faults.setdefault("apply", []).append(fault)

    def refuse_puts(self) -> None:
        """Refuse each batch that puts an item, as a full database does."""
        error = StorageRefused("the database has no room")
        fault = _DatabaseFault(error, None, 0, False, lambda batch: any(each.puts for each in batch.changes))
        self._faults.setdefault("apply", []).append(fault)

    def go_away(self, *, is_done: bool = False) -> None:
        """Lose the connection: reads and batches fail with `DatabaseAway`. With `is_done`, batches are applied."""
        self.fail("apply", DatabaseAway("the database does not answer"), is_done=is_done)
        self.fail("read_after", DatabaseAway("the database does not answer"))

    def lose_ownership(self) -> None:
        """Make batches fail as if another server had taken ownership."""
        self.fail("apply", OwnershipLost("another server has taken over the database"))

    def hold(self, operation: str) -> None:
        """Hold back the answers of an operation until `release`. The operation itself is done."""
        self._held_operations.add(operation)

    def release(self, operation: str) -> None:
        """Deliver the answers of an operation that were held back, oldest first, and stop holding them back."""
        self._held_operations.discard(operation)
        kept = [each for each in self._held if each.operation == operation]
        self._held = [each for each in self._held if each.operation != operation]
        for each in kept:
            each.answer.callback(each.result)

    def held(self, operation: str) -> int:
        """Return the number of answers of that operation that are held back."""
        return sum(each.operation == operation for each in self._held)

    def mend(self) -> None:
        """Remove all faults, and deliver all answers that were held back."""
        self._faults.clear()
        for operation in list(self._held_operations):
            self.release(operation)

    # `IDatabase`.

    def list_queues(self) -> Deferred[Sequence[StoredQueue]]:
        self._use.check_list_queues()
        asked = self._asked("list_queues", None, self._database.list_queues)
        return asked.addCallback(self._use.was_listed)

    def read_after(self, name: bytes, position: int, n: int, max_bytes: int) -> Deferred[Sequence[StoredItem]]:
        """Call `read_after` of the wrapped database. A fault replaces its answer."""
        self._use.check_read_after(name, position, n, max_bytes)
        self.calls.append("read_after")
        answer = maybeDeferred(self._database.read_after, name, position, n, max_bytes)
        return answer.addCallback(self._unless_it_fails).addBoth(self._answered, "read_after")

    def _unless_it_fails(self, items: Sequence[StoredItem]) -> Sequence[StoredItem]:
        fault = self._fault_of("read_after", None)
        if fault is not None:
            raise fault.error
        return items

    def apply(self, batch: WriteBatch) -> Deferred[None]:
        self._use.check_apply(batch)
        return self._asked("apply", batch, self._database.apply, batch).addBoth(self._use.was_applied, batch)

    def close(self) -> Deferred[None]:
        self._use.check_close()
        return self._asked("close", None, self._database.close)

    def _fault_of(self, operation: str, batch: WriteBatch | None) -> _DatabaseFault | None:
        faults = (each for each in self._faults.get(operation, []) if batch is None or each.concerns(batch))
        return next((fault for fault in faults if fault.strikes()), None)

    def _asked(
        self, operation: str, batch: WriteBatch | None, call: Callable[..., Deferred[Any]], *args: object
    ) -> Deferred[Any]:
        self.calls.append(operation)
        fault = self._fault_of(operation, batch)
        if fault is None:
            answer = maybeDeferred(call, *args)
        elif fault.is_done:
            answer = maybeDeferred(call, *args).addCallback(lambda _: Failure(fault.error))
        else:
            answer = self._in_thread(_raise, fault.error)
        return answer.addBoth(self._answered, operation)

    def _answered(self, result: object, operation: str) -> object:
        if operation not in self._held_operations:
            return result
        answer: Deferred[Any] = Deferred()
        self._held.append(_Pending(operation, answer, result))
        return answer


def _raise(error: StorageError) -> None:
    raise error
