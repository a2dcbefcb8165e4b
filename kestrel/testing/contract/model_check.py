"""A storage that is compared with a model, which knows what each queue must hold and what a crash may leave."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final, NamedTuple, TypeAlias
from zlib import crc32

from twisted.python.failure import Failure

from kestrel.item import Item
from kestrel.storage.interfaces import IQueueStorage
from kestrel.testing.contract.backend import DeferredOutcome, StorageUnderTest


class ModelItem(NamedTuple):
    """An item of the model. Add times are unique within a queue, and rise in the order of the puts."""

    data: bytes
    add_ms: int
    expiry_ms: int
    errors: int = 0


State: TypeAlias = tuple[ModelItem, ...]
"""The items of a queue that a start finds, in order."""

MOST_SHOWN_BYTES: Final = 40
"""The maximum number of bytes of an item's data in a message."""

_NOT_GIVEN_YET: Final = 0
"""A placeholder for the xid of an open read until the storage has returned it."""


class QueueModel:
    """The model of a queue: a list of items and a dict of open reads."""

    def __init__(self, items: Iterable[ModelItem] = ()) -> None:
        self.items = list(items)
        self.opened: dict[int, ModelItem] = {}

    def copy(self) -> QueueModel:
        copy = QueueModel(self.items)
        copy.opened = self.opened.copy()
        return copy


Change: TypeAlias = Callable[[QueueModel], Iterator[None]]
"""A change of a model. The generator yields after each part that can survive a crash without the later parts."""


class PossibleStates:
    """The states of one name that a crash may restore, from the last durable state on. They continue over deletions."""

    def __init__(self, first: State = ()) -> None:
        self.states: list[State] = [first]
        self._first_place = 0

    @property
    def place(self) -> int:
        """The number of the present state."""
        return self._first_place + len(self.states) - 1

    def acknowledge(self, place: int) -> None:
        """Record that the state with the number `place` is durable. Drop earlier states, which a crash can no longer
        restore.
        """
        del self.states[: max(0, place - self._first_place)]
        self._first_place = max(place, self._first_place)


class ModelCheckedStorage:
    """A storage whose results are compared with a model.

    `possible` maps each name to the states that a crash may leave. There is no order between queues.
    """

    def __init__(self, subject: StorageUnderTest, possible: Mapping[bytes, Sequence[State]] | None = None) -> None:
        """Wrap a storage that was just started. Each of its queues must be in one of the `possible` states."""
        self.subject = subject
        self.models: dict[bytes, QueueModel] = {}
        self._live: dict[bytes, IQueueStorage] = {}
        self._pasts: dict[bytes, PossibleStates] = {}
        self._given: dict[bytes, set[int]] = {}
        self._touched: set[bytes] = set()
        self._deleted: list[tuple[bytes, int, IQueueStorage]] = []
        self._committing: dict[int, DeferredOutcome] = {}
        """Pending commits, by the identity of the queue."""
        self._failed: list[DeferredOutcome] = []
        self._underway: dict[bytes, list[State]] = {}
        """The states that the call in progress leads to."""
        self._last_ms = 0
        subject.commit_to_fill = lambda queue: self.commit()
        capabilities = subject.backend.capabilities
        self._is_order_kept = "order_kept" in capabilities
        self._are_errors_kept = "errors_kept" in capabilities
        for name in sorted({*(possible or ()), *subject.loaded}):
            assert not isinstance(subject.loaded.get(name), Failure), subject.loaded[name]
            self._adopt(name, (possible or {}).get(name, [()]))

    def _adopt(self, name: bytes, possible: Sequence[State]) -> None:
        """Check the queue that a start found, and use it as the model's state."""
        queue = self.subject.reopened(name)
        assert (queue.open_reads, queue.replayed_items) == (0, queue.items)
        model = self.models[name] = QueueModel()
        self._live[name] = queue
        self._given[name] = set()
        items = self.subject.look_through(queue)
        self._given[name] = {item.xid for item in items}
        found = tuple(self._entry(item) for item in items)
        assert found in possible, f"{name!r} is in an impossible state; {differences(found, *possible)}"
        model.items[:] = found
        self._pasts[name] = PossibleStates(found)
        self._touched.add(name)
        self._last_ms = max(self._last_ms, *(entry.add_ms for entry in found), 0)

    def _entry(self, item: Item) -> ModelItem:
        return ModelItem(item.data, item.add_ms, item.expiry_ms, item.errors if self._are_errors_kept else 0)

    # Operations.

    def queue(self, name: bytes) -> IQueueStorage:
        """Return the live queue of that name. Check that a new one is empty."""
        if name not in self._live:
            queue = self._live[name] = self.subject.queue(name)
            self.models[name] = QueueModel()
            self._given[name] = set()
            self._pasts.setdefault(name, PossibleStates())
            self._touched.add(name)
            assert (queue.items, queue.bytes, queue.open_reads, queue.failure) == (0, 0, 0, None)
        return self._live[name]

    def put(self, names: Sequence[bytes], data: bytes, expires: bool = False) -> None:
        self._last_ms += 1
        entry = ModelItem(data, self._last_ms, self._last_ms + 1000 if expires else 0)
        queues = [self.queue(name) for name in names]

        def change(model: QueueModel) -> Iterator[None]:
            model.items.append(entry)
            yield

        self._do(names, change, lambda: self.subject.storage.put(queues, data, entry.add_ms, entry.expiry_ms))

    def take(self, name: bytes, opened: bool = False) -> None:
        """Take the head, and compare it with the model."""
        queue = self.queue(name)
        expected = next(iter(self.models[name].items), None)

        def change(model: QueueModel) -> Iterator[None]:
            if model.items:
                entry = model.items.pop(0)
                if opened:
                    model.opened[_NOT_GIVEN_YET] = entry
                yield

        item = self._do([name], change, lambda: self.subject.take(queue, opened))
        self._is_as_expected(name, item, expected)
        if item is not None:
            assert (item.xid != 0) == opened
            if opened:
                assert item.xid not in self._given[name], "an xid was used twice"
                self._given[name].add(item.xid)
                model = self.models[name]
                model.opened[item.xid] = model.opened.pop(_NOT_GIVEN_YET)
                assert queue.is_open(item.xid)

    def peek(self, name: bytes) -> None:
        """Peek at the head, and compare it with the model."""
        self._is_as_expected(name, self.subject.peek(self.queue(name)), next(iter(self.models[name].items), None))

    def _is_as_expected(self, name: bytes, item: Item | None, expected: ModelItem | None) -> None:
        found = None if item is None else self._entry(item)
        assert found == expected, f"the head of {name!r} is {found}, but should be {expected}"

    def confirm(self, name: bytes, xids: Sequence[int]) -> None:
        """Confirm open reads, and compare the count with the model."""
        queue = self.queue(name)
        were_open = {xid for xid in xids if xid in self.models[name].opened}

        def change(model: QueueModel) -> Iterator[None]:
            for xid in dict.fromkeys(xids):
                if model.opened.pop(xid, None) is not None:
                    yield

        assert self._do([name], change, lambda: queue.confirm(xids)) == len(were_open)

    def put_back(self, name: bytes, xids: Sequence[int], failed: bool) -> None:
        queue = self.queue(name)

        def change(model: QueueModel) -> Iterator[None]:
            for xid in reversed(xids):
                entry = model.opened.pop(xid, None)
                if entry is not None:
                    errors = entry.errors + (failed and self._are_errors_kept)
                    model.items.insert(0, entry._replace(errors=errors))
                    yield

        self._do([name], change, lambda: queue.put_back(xids, failed))

    def clear(self, name: bytes) -> None:
        """Drop all items that are not open reads."""
        queue = self.queue(name)

        def change(model: QueueModel) -> Iterator[None]:
            while model.items:
                del model.items[0]
                yield

        self._do([name], change, queue.clear)

    def delete(self, name: bytes) -> None:
        if name not in self._live:
            return
        queue = self._live[name]

        def change(model: QueueModel) -> Iterator[None]:
            model.items.clear()
            model.opened.clear()
            yield

        self._do([name], change, lambda: self.subject.storage.delete(queue))
        self._deleted.append((name, self._pasts[name].place, queue))
        self._touched.discard(name)
        del self._live[name], self.models[name]

    def _do(self, names: Sequence[bytes], change: Change, call: Callable[[], Any]) -> Any:
        changed = {}
        for name in names:
            model = changed[name] = self.models[name].copy()
            self._underway[name] = [self._after_a_restart(model) for _ in change(model)]
        try:
            result = call()
        except Exception:
            self._underway.clear()
            raise
        for name, model in changed.items():
            self.models[name] = model
            self._pasts[name].states += self._underway.pop(name)
            self._touched.add(name)
        return result

    def _after_a_restart(self, model: QueueModel) -> State:
        """Return the state after a restart: open reads first, or without `order_kept` in the order of the puts."""
        entries = [*model.opened.values(), *model.items]
        return tuple(entries if self._is_order_kept else sorted(entries, key=lambda entry: entry.add_ms))

    # Commits.

    def begin_commit(self) -> None:
        """Commit each queue with recorded changes, unless a commit of it is pending."""
        places: dict[int, tuple[bytes, int]] = {}
        queues: list[IQueueStorage] = []
        for name in sorted(self._touched):
            if id(self._live[name]) not in self._committing:
                queues.append(self._live[name])
                places[id(self._live[name])] = name, self._pasts[name].place
                self._touched.discard(name)
        still_pending = []
        for name, place, queue in self._deleted:
            if id(queue) in self._committing:
                still_pending.append((name, place, queue))
            else:
                queues.append(queue)
                places[id(queue)] = name, place
        self._deleted = still_pending
        for group, deferred in self.subject.storage.commit(queues):
            for queue in group:
                assert id(queue) in places, "commit returned a queue that was not passed to it, or a queue twice"
                deferred.addCallback(self._acknowledged, *places.pop(id(queue)))
            outcome = DeferredOutcome(deferred)
            self._committing |= {id(queue): outcome for queue in group}
        for name, place in places.values():
            self._acknowledged(None, name, place)
        self._forget_ended()

    def _acknowledged(self, result: object, name: bytes, place: int) -> object:
        disk = self.subject.disk
        if disk is None or not disk.is_dead:
            self._pasts[name].acknowledge(place)
        return result

    def _forget_ended(self) -> None:
        ended = {outcome for outcome in self._committing.values() if outcome.is_there}
        self._failed += [outcome for outcome in ended if outcome.has_failed]
        self._committing = {key: each for key, each in self._committing.items() if not each.is_there}

    def _raise_failure(self) -> None:
        """Raise the failure of a commit that has ended, if there is one."""
        failed, self._failed = self._failed, []
        for outcome in failed:
            outcome.result()

    def commit(self) -> None:
        """Commit all changes and wait. Raise a failure after all pending commits have ended."""
        while (self._committing or self._touched or self._deleted) and not self._failed:
            self.begin_commit()
            for outcome in set(self._committing.values()):
                self.subject.until_fired(outcome)
            self._forget_ended()
        self._raise_failure()

    def run_threads(self, jobs: int) -> None:
        for _ in range(min(jobs, len(self.subject.threads))):
            self.subject.threads.run_one()
            self.subject.end_turn()
        self._forget_ended()
        self._raise_failure()

    def pass_time(self, seconds: float) -> None:
        """Move the clock forward without running jobs."""
        self.subject.clock.advance(seconds)
        self.subject.end_turn()
        self._forget_ended()
        self._raise_failure()

    def compact(self, name: bytes) -> None:
        """Commit all changes, and make the backend compact that queue."""
        self.commit()
        self.subject.backend.compact(self.subject, self.queue(name))

    # Checks and restarts.

    def check(self) -> None:
        """Check the items of every queue that has no open reads against its model, in order. Check the counts of all
        queues.
        """
        for name, model in self.models.items():
            if not model.opened:
                found = [self._entry(item) for item in self.subject.look_through(self._live[name])]
                assert found == model.items, f"{name!r} has the wrong items; {differences(found, model.items)}"
                self._touched.add(name)
        self.check_counts()

    def check_counts(self) -> None:
        for name, model in self.models.items():
            queue = self._live[name]
            size = sum(len(entry.data) for entry in model.items)
            assert (queue.items, queue.bytes, queue.open_reads) == (len(model.items), size, len(model.opened))
            assert 0 <= queue.mem_items <= queue.items
            assert 0 <= queue.mem_bytes <= queue.bytes

    def possible(self) -> dict[bytes, list[State]]:
        """Return the states that a crash may leave now, by name."""
        states = {name: past.states + self._underway.get(name, []) for name, past in self._pasts.items()}
        return states if self._is_order_kept else {name: _mixed_cuts(each) for name, each in states.items()}

    def restarted(self) -> ModelCheckedStorage:
        """Stop the storage and start it again. Check that nothing is lost."""
        last = {name: [self._after_a_restart(model)] for name, model in self.models.items()}
        return ModelCheckedStorage(self.subject.restarted(), last)

    def killed(self) -> ModelCheckedStorage:
        """Start the storage that remains if the process is killed now. Check that its state is possible."""
        return ModelCheckedStorage(self.subject.killed(), self.possible())

    def without_power(self) -> ModelCheckedStorage:
        """Start the storage that remains if the machine loses power now. Check that its state is possible."""
        return ModelCheckedStorage(self.subject.without_power(), self.possible())

    def recover(self) -> None:
        """Recover from a failure. Check that each failed queue is reopened at its last durable state."""
        self.subject.run_threads()
        self._forget_ended()
        self._failed.clear()
        for name in [name for name, queue in self._live.items() if queue.failure is not None]:
            assert self.subject.reopened(name) is not self._live[name], f"{name!r} failed, but was not reopened"
            self._adopt(name, self._pasts[name].states[:1])


def _mixed_cuts(states: Sequence[State]) -> list[State]:
    """Return the states that a crash may leave if puts survive up to one state and all other changes up to another."""
    were_put: list[dict[int, ModelItem]] = []
    for state in states:
        earlier = were_put[-1] if were_put else {}
        were_put.append({**{entry.add_ms: entry for entry in state}, **earlier})
    return list(
        dict.fromkeys(
            tuple(
                next((each for each in state if each.add_ms == add_ms), entry)
                for add_ms, entry in sorted(put.items())
                if add_ms not in put_by_then or any(each.add_ms == add_ms for each in state)
            )
            for state, put_by_then in zip(states, were_put, strict=True)
            for put in were_put
        )
    )


def differences(found: Sequence[ModelItem], *expected: Sequence[ModelItem]) -> str:
    """Describe the differences from the expected state, or from the nearest of several, one a line."""
    lines = min(([*_differing(found, each)] for each in expected), key=len)
    nearest = f"the nearest of {len(expected)} possible states" if len(expected) > 1 else "the expected state"
    return "\n".join([f"{nearest} differs from the {len(found)} items that were found:", *lines])


def _differing(found: Sequence[ModelItem], expected: Sequence[ModelItem]) -> Iterator[str]:
    for place, (is_there, should_be) in enumerate(zip_longest(found, expected)):
        if is_there != should_be:
            yield f"  item {place} is {_shown(is_there)}"
            yield f"    should be {_shown(should_be)}"


def _shown(entry: ModelItem | None) -> str:
    if entry is None:
        return "not there"
    data = repr(entry.data)
    if len(entry.data) > MOST_SHOWN_BYTES:
        data = f"{entry.data[:MOST_SHOWN_BYTES]!r}... ({len(entry.data)} bytes, crc32 {crc32(entry.data):08x})"
    return f"data={data} add_ms={entry.add_ms} expiry_ms={entry.expiry_ms} errors={entry.errors}"
