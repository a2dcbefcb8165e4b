"""A database in memory, and one that fails when it is told to: what a storage over a database is tried with."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import attrs
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.python.failure import Failure
from zope.interface import implementer

from kestrel.errors import DatabaseAway, OwnershipLost, StorageError, StorageInUse, StorageRefused
from kestrel.storage.database import IDatabase, QueueChanges, StoredItem, StoredQueue, WriteBatch
from kestrel.storage.interfaces import InThread
from kestrel.testing.database_call_checker import DatabaseCallChecker


def run_immediately(function: Callable[..., Any], *args: object) -> Deferred[Any]:
    """An `InThread` that waits for nothing."""
    return maybeDeferred(function, *args)


class MemoryTables:
    """What a `MemoryDatabase` keeps, and what outlives it: whoever is given the same tables has the same queues.

    Nothing is kept that contradicts itself: a batch that would leave a queue with other figures than it says is an
    AssertionError, and nothing of it is applied.
    """

    def __init__(self) -> None:
        self.queues: dict[bytes, StoredQueue] = {}
        self.items: dict[bytes, list[StoredItem]] = {}
        """Of each queue, lowest position first."""
        self.owner: object | None = None
        """Who holds the tables; None when the connection of the last owner has ended, which it need not know."""
        self.epoch = 0
        """How many owners there have been. What an earlier one sends is not applied."""
        self.last_number = 0
        """Of the last batch of this owner."""
        self.room: int | None = None
        """The bytes of data that there is room for; None is any number."""

    def copy(self) -> MemoryTables:
        """What is left when the owner's process dies now."""
        copy = type(self)()
        copy.queues, copy.items = self.queues.copy(), self.items.copy()
        copy.epoch, copy.last_number = self.epoch, self.last_number
        return copy

    def own(self, owner: object) -> int:
        """Let that be the owner; gives its epoch."""
        if self.owner is not None:
            raise StorageInUse("another server keeps its queues in this database: stop it, or name another database")
        self.owner = owner
        self.epoch += 1
        self.last_number = 0
        return self.epoch

    def list_queues(self) -> list[StoredQueue]:
        """All of them."""
        return list(self.queues.values())

    def read_after(self, name: bytes, position: int, n: int, max_bytes: int) -> list[StoredItem]:
        """The items of a queue behind that position: up to `n`, up to so many bytes, but one at least."""
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
        """Do all of it, or nothing: it is done on copies of what it changes."""
        if epoch != self.epoch:
            raise OwnershipLost("another server has taken the database over: this one writes nothing more")
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
        """Do that to these queues and items; the lists of items are not changed, but replaced."""
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
            assert is_there, f"an error count for {position}, where no item stands"
            kept[place] = kept[place]._replace(errors=errors)
        kept += change.puts
        self.check(change.queue, kept)
        queues[name], items[name] = change.queue, kept

    def check(self, queue: StoredQueue, items: Sequence[StoredItem]) -> None:
        """Raise AssertionError unless the queue says of itself what is so when it has these items."""
        positions = [item.position for item in items]
        size = sum(len(item.data) for item in items)
        assert positions == sorted(set(positions)), f"{queue.name!r} has items out of order"
        assert (queue.items, queue.bytes) == (len(items), size), f"{queue} has {len(items)} items of {size} bytes"
        assert not items or queue.gone_to < positions[0], f"{queue} has an item at {positions[0]}"
        assert not items or positions[-1] <= queue.last, f"{queue} has an item at {positions[-1]}"

    def remove(self, items: list[StoredItem], removed: Sequence[tuple[int, int]]) -> None:
        """Take the items of these ranges out of a list."""
        for first, last in removed:
            del items[bisect_left(items, first, key=_position) : bisect_right(items, last, key=_position)]


def _position(item: StoredItem) -> int:
    return item.position


def _size(queues: Mapping[bytes, StoredQueue]) -> int:
    return sum(queue.bytes for queue in queues.values())


@implementer(IDatabase)
class MemoryDatabase:
    """A database over tables in memory (`IDatabase`).

    What is asked for is done by one job of `in_thread`, and answered by a second one: a test can look, or let the
    process die, while it is done and nobody has been told.
    """

    def __init__(self, tables: MemoryTables, in_thread: InThread = run_immediately) -> None:
        self.tables = tables
        """They are as good as a server: the object may be closed, or forgotten, and its queues are there."""
        self._in_thread = in_thread
        self._epoch = 0
        self._is_closed = False

    def _run(self, function: Callable[..., Any], *args: object) -> Deferred[Any]:
        return self._in_thread(function, *args).addCallback(lambda result: self._in_thread(lambda: result))

    def list_queues(self) -> Deferred[Sequence[StoredQueue]]:
        """Own the tables."""
        return self._run(self._own)

    def _own(self) -> list[StoredQueue]:
        if self._is_closed:
            raise DatabaseAway("the database is closed")
        self._epoch = self.tables.own(self)
        return self.tables.list_queues()

    def read_after(self, name: bytes, position: int, n: int, max_bytes: int) -> Deferred[Sequence[StoredItem]]:
        """As the tables have it when the job is done."""
        return self._run(self.tables.read_after, name, position, n, max_bytes)

    def apply(self, batch: WriteBatch) -> Deferred[None]:
        """In one step, unless the tables have a later owner."""
        return self._run(self.tables.apply, batch, self._epoch)

    def close(self) -> Deferred[None]:
        """Others may own the tables."""
        return self._run(self._let_go)

    def _let_go(self) -> None:
        self._is_closed = True
        if self.tables.owner is self:
            self.tables.owner = None


@attrs.define
class _Fault:
    """A way in which an operation fails: when so many more have gone well, and so often."""

    error: StorageError
    times: int | None
    after: int
    is_done: bool
    """What was asked is done all the same; only the answer is lost."""
    concerns: Callable[[WriteBatch], bool] | None = None
    """Of which batches it is; None is all."""

    def strikes(self, batch: WriteBatch | None) -> bool:
        """Whether it is the turn of this one."""
        if self.times == 0 or (self.concerns is not None and batch is not None and not self.concerns(batch)):
            return False
        if self.after:
            self.after -= 1
            return False
        if self.times is not None:
            self.times -= 1
        return True


class _Pending(NamedTuple):
    """An answer that is held."""

    operation: str
    answer: Deferred[Any]
    result: object


@implementer(IDatabase)
class FaultyDatabase:
    """Another database, but for what was arranged; and whoever uses it otherwise than `IDatabase` says is told so.

    Operations are named list_queues, read_after, apply and close, as `calls` has them in order. What is wrong in a call
    is raised as an AssertionError, and kept in `complaints`, in case whoever called has not passed it on. A failure
    takes a job of `in_thread`, as an answer does.
    """

    def __init__(self, database: IDatabase, in_thread: InThread = run_immediately) -> None:
        self._database = database
        self._in_thread = in_thread
        self._faults: dict[str, list[_Fault]] = {}
        self._held_operations: set[str] = set()
        self._held: list[_Pending] = []
        self._use = DatabaseCallChecker()
        self.calls: list[str] = []

    @property
    def complaints(self) -> Sequence[str]:
        """What was wrong in how it was called."""
        return self._use.complaints

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._use.is_closed

    # What a test arranges.

    def fail(
        self, operation: str, error: StorageError, *, times: int | None = None, after: int = 0, is_done: bool = False
    ) -> None:
        """Let an operation fail: from now on or `times` times, once `after` more have gone well.

        Nothing is done then; with `is_done` it is, and only the answer is lost. A read fails when it is answered,
        so also one that was asked for before.
        """
        self._faults.setdefault(operation, []).append(_Fault(error, times, after, is_done))

    def fail_changes_of(self, name: bytes, error: StorageError | None = None) -> None:
        """Let each batch fail that changes this queue; nothing of it is done."""
        error = error or StorageError("the database cannot do that")
        fault = _Fault(error, None, 0, False, lambda batch: name in (each.queue.name for each in batch.changes))
        self._faults.setdefault("apply", []).append(fault)

    def refuse_puts(self) -> None:
        """There is no room: each batch is refused that puts an item."""
        error = StorageRefused("the database has no room")
        fault = _Fault(error, None, 0, False, lambda batch: any(each.puts for each in batch.changes))
        self._faults.setdefault("apply", []).append(fault)

    def go_away(self, *, is_done: bool = False) -> None:
        """The connection is lost; what is applied `is_done` or not, and the answer does not come. Reads fail."""
        self.fail("apply", DatabaseAway("the database does not answer"), is_done=is_done)
        self.fail("read_after", DatabaseAway("the database does not answer"))

    def lose_ownership(self) -> None:
        """Another server has taken it over."""
        self.fail("apply", OwnershipLost("another server has taken the database over"))

    def hold(self, operation: str) -> None:
        """Keep the answers of that operation until `release`; what is asked for is done."""
        self._held_operations.add(operation)

    def release(self, operation: str) -> None:
        """Give the answers that were kept, oldest first, and keep none from now on."""
        self._held_operations.discard(operation)
        kept = [each for each in self._held if each.operation == operation]
        self._held = [each for each in self._held if each.operation != operation]
        for each in kept:
            each.answer.callback(each.result)

    def held(self, operation: str) -> int:
        """How many answers of that operation are kept."""
        return sum(each.operation == operation for each in self._held)

    def mend(self) -> None:
        """Let everything go well again; what was kept is answered."""
        self._faults.clear()
        for operation in list(self._held_operations):
            self.release(operation)

    # What a storage asks.

    def list_queues(self) -> Deferred[Sequence[StoredQueue]]:
        """As the database does."""
        self._use.check_list_queues()
        asked = self._asked("list_queues", None, self._database.list_queues)
        return asked.addCallback(self._use.was_listed)

    def read_after(self, name: bytes, position: int, n: int, max_bytes: int) -> Deferred[Sequence[StoredItem]]:
        """As the database does."""
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
        """As the database does."""
        self._use.check_apply(batch)
        return self._asked("apply", batch, self._database.apply, batch).addBoth(self._use.was_applied, batch)

    def close(self) -> Deferred[None]:
        """As the database does."""
        self._use.check_close()
        return self._asked("close", None, self._database.close)

    def _fault_of(self, operation: str, batch: WriteBatch | None) -> _Fault | None:
        return next((fault for fault in self._faults.get(operation, []) if fault.strikes(batch)), None)

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
