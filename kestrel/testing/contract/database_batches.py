"""Batches: each is applied once and as a whole, even if its answer is lost or the database is full."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from twisted.internet.defer import Deferred

from kestrel.errors import StorageRefused
from kestrel.storage.database import QueueChanges, StoredItem, StoredQueue
from kestrel.testing.contract.backend import DeferredOutcome
from kestrel.testing.contract.database_backend import ALL, DatabaseBackend, OwnedDatabase, item, items
from kestrel.testing.contract.history import run_histories
from kestrel.testing.contract.requirements import requires
from kestrel.testing.databases import MemoryTables

NAMES: Final = [b"a", b"b", b"c"]


class BatchTests(DatabaseBackend):
    """Batches of one owner."""

    # Numbers.

    def test_repeated_batch_succeeds_without_being_applied_again(self, owner: OwnedDatabase) -> None:
        owner.put(b"work", *items(1, 2))
        batch = owner.apply(owner.changes(removed=[(1, 1)], puts=items(3), errors={2: 1}))
        for _ in range(3):
            assert owner.wait(owner.database.apply(batch)) is None
        assert owner.read() == [item(2)._replace(errors=1), item(3)]
        assert owner.restarted().read() == [item(2)._replace(errors=1), item(3)]

    def test_repeated_batch_does_not_clear_its_new_queue(self, owner: OwnedDatabase) -> None:
        owner.put(b"work", *items(1))
        batch = owner.apply(owner.changes(is_new=True, puts=items(1, 2)))
        owner.wait(owner.database.apply(batch))
        assert owner.read() == items(1, 2)

    def test_batch_numbers_may_have_gaps(self, owner: OwnedDatabase) -> None:
        for number in (1, 2, 5, 1000, 1 << 31, 1 << 40):
            owner.number = number - 1
            owner.put(b"work", item(number))
        assert owner.positions() == [1, 2, 5, 1000, 1 << 31, 1 << 40]

    def test_each_owner_begins_with_batch_number_one(self, owner: OwnedDatabase) -> None:
        for position, batches in [(10, 1), (20, 1), (30, 2), (40, 1)]:
            assert owner.number == 0
            for number in range(batches):
                owner.put(b"work", item(position + number))
            owner = owner.restarted()
        assert owner.positions() == [10, 20, 30, 31, 40]

    # All or nothing.

    def test_read_sees_whole_batches(self, owner: OwnedDatabase) -> None:
        before, after = begin(owner)
        batch = owner.batch(*change_all(owner))
        outcome = DeferredOutcome(owner.database.apply(batch))
        reads: list[tuple[bytes, Deferred[Any]]] = []
        for _ in around_each_job(owner, outcome):
            reads += [(name, owner.database.read_after(name, 0, ALL, ALL)) for name in NAMES]
        outcome.result()
        for name, reading in reads:
            assert list(owner.wait(reading)) in (before[name], after[name])
        assert {name: owner.read(name, 0) for name in NAMES} == after

    def test_kill_leaves_whole_batches(self, owner: OwnedDatabase) -> None:
        before, after = begin(owner)
        listed = owner.queues.copy()
        batch = owner.batch(*change_all(owner))
        outcome = DeferredOutcome(owner.database.apply(batch))
        for _ in around_each_job(owner, outcome):
            again = owner.killed()
            found = {name: again.read(name, 0) for name in NAMES}
            assert (found, again.found) in ((before, listed), (after, owner.queues))
            again.end()
        outcome.result()
        again = owner.killed()
        assert ({name: again.read(name, 0) for name in NAMES}, again.found) == (after, owner.queues)

    @requires("impossible")
    @pytest.mark.parametrize("place", [0, 1, 2])
    def test_batch_with_one_impossible_change_changes_nothing(self, owner: OwnedDatabase, place: int) -> None:
        before, _ = begin(owner)
        listed = owner.queues.copy()
        changes = change_all(owner)
        changes[place] = self._impossible(listed[NAMES[place]])
        with pytest.raises(Exception, match=r"\w"):
            owner.wait(owner.database.apply(owner.batch(*changes)))
        owner.queues = listed
        assert {name: owner.read(name, 0) for name in NAMES} == before
        again = owner.restarted()
        assert {name: again.read(name, 0) for name in NAMES} == before

    @requires("impossible")
    def test_batches_after_an_impossible_one_are_applied(self, owner: OwnedDatabase) -> None:
        before, after = begin(owner)
        impossible = self._impossible(owner.queues[b"a"])
        changes = change_all(owner)
        with pytest.raises(Exception, match=r"\w"):
            owner.wait(owner.database.apply(owner.batch(impossible, *changes[1:])))
        for each in changes[1:]:
            owner.apply(each)
        found = {name: owner.read(name, 0) for name in NAMES}
        assert found == {**after, b"a": before[b"a"]}

    def _impossible(self, queue: StoredQueue) -> QueueChanges:
        assert self.impossible is not None
        return self.impossible(queue)


def begin(owner: OwnedDatabase) -> tuple[dict[bytes, list[StoredItem]], dict[bytes, list[StoredItem]]]:
    """Make three queues. Return their items now, and their items after `change_all`."""
    before = {name: items(1, 2, 3, 4) for name in NAMES}
    owner.apply(*(owner.changes(name, puts=before[name]) for name in NAMES))
    after = {
        b"a": [item(2), item(4)._replace(errors=1), *items(5, 6)],
        b"b": [item(1, b"new"), item(2, b"new")],
        b"c": [],
    }
    return before, after


def change_all(owner: OwnedDatabase) -> list[QueueChanges]:
    """Return changes of all kinds for these queues."""
    return [
        owner.changes(b"a", removed=[(1, 1), (3, 3)], puts=items(5, 6), errors={4: 1}),
        owner.changes(b"b", is_new=True, puts=[item(1, b"new"), item(2, b"new")]),
        owner.deletion(b"c"),
    ]


def around_each_job(owner: OwnedDatabase, outcome: DeferredOutcome) -> Iterator[None]:
    """Yield before and after each job, until the Deferred has fired."""
    yield
    while not outcome.is_there:
        assert owner.threads, "all jobs have run, but the Deferred has not fired"
        owner.threads.run_one()
        yield


ITEMS = 20
ITEM_BYTES = 20_000


@requires("fill_database")
class FullDatabaseTests(DatabaseBackend):
    """A database without room. Its items are larger than a database page."""

    @pytest.fixture
    def full(self, owner: OwnedDatabase) -> OwnedDatabase:
        """Provide a full database with twenty items."""
        for position in range(1, ITEMS + 1):
            owner.put(b"work", item(position, b"x" * ITEM_BYTES))
        assert self.fill_database is not None
        self.fill_database(owner.database)
        return owner

    def test_batch_without_room_is_refused_whole(self, full: OwnedDatabase) -> None:
        listed = full.queues.copy()
        before = full.read()
        for _ in range(2):
            changes = full.changes(removed=[(1, 1)], puts=[item(ITEMS + 1, b"x" * 50 * ITEM_BYTES)])
            with pytest.raises(StorageRefused, match=r"\w+ \w+"):
                full.wait(full.database.apply(full.batch(changes)))
            full.queues = listed.copy()
            assert full.read() == before

    def test_items_can_be_removed_from_a_full_database(self, full: OwnedDatabase) -> None:
        for position in range(1, ITEMS):
            changes = full.changes(removed=[(position, position)], floor=position)
            try:
                full.apply(changes)
            except StorageRefused as error:
                raise AssertionError("items cannot be removed from a full database") from error
        assert full.restarted().positions() == [ITEMS]


HISTORY_NAMES: Final = (b"a", b"a\0", b"A", b"\xff")

some_name = st.sampled_from(HISTORY_NAMES)
some_batch = st.dictionaries(some_name, st.integers(0, 5), min_size=1)
"""Names with a kind of change each: 0 deletes the queue, 1 makes it new, any other number changes it."""


class DatabaseHistoryTests(DatabaseBackend):
    """Random histories of one database."""

    def test_random_batches_match_the_model(self, tmp_path: Path) -> None:
        def machine(folder: Path) -> DatabaseMachine:
            return DatabaseMachine(OwnedDatabase(self, folder))

        run_histories(tmp_path, machine, self.max_examples, steps=25)


class DatabaseMachine(RuleBasedStateMachine):
    """A state machine of the calls that a storage makes to a healthy database, compared with tables in memory."""

    def __init__(self, owner: OwnedDatabase) -> None:
        super().__init__()
        self.first = self.owner = owner
        self.model = MemoryTables()

    def teardown(self) -> None:
        self.first.end()

    @rule(queues=some_batch, answers_lost=st.integers(0, 2), data=st.data())
    def apply(self, queues: dict[bytes, int], answers_lost: int, data: st.DataObject) -> None:
        batch = self.owner.batch(*(self.change(name, kind, data) for name, kind in queues.items()))
        for _ in range(1 + answers_lost):
            self.owner.wait(self.owner.database.apply(batch))
        for each in batch.changes:
            self.model.change(self.model.queues, self.model.items, each)

    def change(self, name: bytes, kind: int, data: st.DataObject) -> QueueChanges:
        """Draw changes of that queue."""
        if kind == 0:
            return self.owner.deletion(name)
        is_new = kind == 1 or name not in self.model.queues
        positions = [] if is_new else [each.position for each in self.model.items[name]]
        last = 0 if is_new else self.owner.queues[name].last
        gaps = data.draw(st.lists(st.integers(1, 3), max_size=4), "gaps between puts")
        puts = [item(last + behind) for behind in itertools.accumulate(gaps)]
        bounds = sorted(data.draw(st.sets(st.integers(1, last), max_size=4), "bounds")) if last else []
        removed = list(zip(bounds[::2], bounds[1::2], strict=False))
        kept = [each for each in positions if not any(first <= each <= end for first, end in removed)]
        failed = data.draw(st.sets(st.sampled_from(kept)), "failed") if kept else ()
        errors = {position: data.draw(st.integers(1, 9), "errors") for position in sorted(failed)}
        return self.owner.changes(name, puts=puts, removed=removed, errors=errors, is_new=is_new)

    @rule(name=some_name, position=st.integers(0, 20), n=st.integers(1, 4), max_bytes=st.integers(0, 6))
    def read(self, name: bytes, position: int, n: int, max_bytes: int) -> None:
        assert self.owner.read(name, position, n, max_bytes) == self.model.read_after(name, position, n, max_bytes)

    @rule()
    def restart(self) -> None:
        self.owner = self.owner.restarted()

    @rule()
    def kill(self) -> None:
        again = self.owner.killed()
        assert again.found == self.owner.queues
        self.owner.close()
        self.owner = again

    @invariant()
    def each_queue_has_its_items(self) -> None:
        for name in HISTORY_NAMES:
            assert self.owner.read(name) == self.model.items.get(name, [])
