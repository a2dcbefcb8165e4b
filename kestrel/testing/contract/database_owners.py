"""Ownership: a database has one owner at a time, and a former owner can change nothing.

A close may overtake pending calls, and reads may run during a batch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from kestrel.errors import OwnershipLost, StorageError, StorageInUse
from kestrel.storage.database import QueueChanges, StoredQueue, WriteBatch
from kestrel.testing.contract.backend import DeferredOutcome
from kestrel.testing.contract.database_backend import ALL, DatabaseBackend, OwnedDatabase, items
from kestrel.testing.contract.requirements import requires
from kestrel.testing.threads import RealThreads, SteppedThreads


class OwnerTests(DatabaseBackend):
    """Two owners that compete for one database."""

    def test_second_owner_is_refused_with_a_reason(self, owner: OwnedDatabase) -> None:
        owner.put(b"work", *items(1))
        with pytest.raises(StorageInUse, match=r"\w+ \w+"):
            owner.another()
        owner.put(b"work", *items(2))
        assert owner.read() == items(1, 2)
        assert owner.restarted().read() == items(1, 2)

    def test_closing_a_refused_owner_releases_nothing(self, owner: OwnedDatabase) -> None:
        for _ in range(2):
            with pytest.raises(StorageInUse):
                # The new owner closes its database when it is refused.
                owner.another()
        owner.put(b"work", *items(1))
        assert owner.read() == items(1)

    def test_refused_owner_does_not_reset_batch_numbers(self, owner: OwnedDatabase) -> None:
        owner.put(b"work", *items(1))
        batch = owner.apply(owner.changes(removed=[(1, 1)], puts=items(2)))
        with pytest.raises(StorageInUse):
            owner.another()
        owner.wait(owner.database.apply(batch))
        assert owner.read() == items(2)

    def test_closed_database_can_be_owned_again(self, owner: OwnedDatabase) -> None:
        for turn in range(1, 4):
            owner.put(b"work", *items(turn))
            owner = owner.restarted()
        assert owner.read() == items(1, 2, 3)

    def test_unused_database_can_be_closed(self, owner: OwnedDatabase) -> None:
        threads = SteppedThreads()
        unused = self.make_database(owner.folder, threads)
        closing = unused.close()
        while threads:
            threads.run_one()
        owner.wait(closing)
        owner.put(b"work", *items(1))
        assert owner.read() == items(1)

    def test_close_before_list_queues_is_done_releases_ownership(self, owner: OwnedDatabase) -> None:
        folder, threads = owner.folder.with_name("closed at once"), SteppedThreads()
        closed_at_once = self.make_database(folder, threads)
        outcomes = [DeferredOutcome(closed_at_once.list_queues()), DeferredOutcome(closed_at_once.close())]
        while threads:
            threads.run_one()
        assert [outcome.is_there for outcome in outcomes] == [True, True]
        assert owner.another(folder).found == {}

    def test_killed_owner_can_be_replaced_at_once(self, owner: OwnedDatabase) -> None:
        owner.put(b"work", *items(1))
        owner.put(b"work", *items(2))
        again = owner.killed()
        assert again.found == owner.queues
        again.put(b"work", *items(3))
        assert (again.read(), owner.read()) == (items(1, 2, 3), items(1, 2))

    # A former owner that does not know that it lost the database.

    @requires("lose_hold")
    def test_replaced_owner_applies_no_batch(self, owner: OwnedDatabase) -> None:
        owner.put(b"work", *items(1))
        new = self._taken_over(owner)
        assert new.found == owner.queues
        new.put(b"work", *items(2))
        for position in (3, 4):
            with pytest.raises(OwnershipLost, match=r"\w+ \w+"):
                owner.apply_until_known(owner.batch(put_of_one(position)))
        new.put(b"work", *items(5))
        assert new.read() == items(1, 2, 5)

    @requires("lose_hold")
    def test_replaced_owner_fails_for_a_batch_number_of_its_successor(self, owner: OwnedDatabase) -> None:
        owner.put(b"work", *items(1))
        new = self._taken_over(owner)
        new.put(b"work", *items(2))
        new.put(b"work", *items(3))
        with pytest.raises(OwnershipLost):
            owner.apply_until_known(WriteBatch(new.number, [put_of_one(4)]))
        assert new.read() == items(1, 2, 3)

    @requires("lose_hold")
    def test_closing_a_replaced_owner_releases_nothing(self, owner: OwnedDatabase) -> None:
        new = self._taken_over(owner)
        owner.close()
        with pytest.raises(StorageInUse):
            new.another()
        new.put(b"work", *items(1))
        assert new.read() == items(1)

    @requires("lose_hold")
    def test_owner_that_lost_its_connection_continues_if_not_replaced(self, owner: OwnedDatabase) -> None:
        owner.put(b"work", *items(1))
        applied = owner.apply(owner.changes(removed=[(1, 1)], puts=items(2)))
        new = owner.batch(owner.changes(puts=items(3)))
        self._lose_hold(owner)
        owner.apply_until_known(applied)
        owner.apply_until_known(new)
        assert owner.restarted().read() == items(2, 3)

    def _lose_hold(self, owner: OwnedDatabase) -> None:
        assert self.lose_hold is not None
        self.lose_hold(owner.database)

    def _taken_over(self, owner: OwnedDatabase) -> OwnedDatabase:
        """End the owner's connection, and return a new owner of the same database."""
        self._lose_hold(owner)
        return owner.another()


def put_of_one(position: int) -> QueueChanges:
    """Return a put of one item at that position, by an owner that does not know about later puts."""
    queue = StoredQueue(b"work", 2, 1 + len(b"%d" % position), 0, position)
    return QueueChanges(queue, False, False, (), items(position), {})


_BATCHES: Final = 100
_ITEMS: Final = 200
"""The number of items in each batch: enough statements that a read can run between two of them."""

_READS: Final = 2
"""The number of reads that are pending at the same time."""

_SWITCH_S: Final = 1e-6
"""The interval of thread switches in seconds: short, so that more interleavings happen."""


class CallOrderTests(DatabaseBackend):
    """One owner whose calls run in an order that the test chooses, or in real threads."""

    # A thread pool guarantees no order, so the job of close() may run before those of earlier calls.

    def test_list_queues_that_runs_after_close_takes_no_ownership(self, owner: OwnedDatabase) -> None:
        folder, threads = owner.folder.with_name("closed first"), SteppedThreads()
        database = self.make_database(folder, threads)
        outcomes = [DeferredOutcome(database.list_queues()), DeferredOutcome(database.close())]
        while threads:
            threads.run_newest()
        assert [outcome.is_there for outcome in outcomes] == [True, True], "a pending call never got its answer"
        try:
            owner.another(folder)
        except StorageError as error:
            raise AssertionError(f"list_queues() ran after close() and took ownership: {error}") from error

    def test_apply_that_runs_after_close_changes_nothing(self, owner: OwnedDatabase) -> None:
        owner.put(b"work", *items(1))
        batch = owner.batch(owner.changes(puts=items(2)))
        applying, closing = self._overtaken_by_close(owner, DeferredOutcome(owner.database.apply(batch)))
        new = owner.another()
        before = new.read()
        owner.run_threads()
        assert applying.is_there and closing.is_there, "a pending call never got its answer"
        assert new.read() == before, "apply() ran after close() and changed the items of another owner"
        assert before == (items(1) if applying.has_failed else items(1, 2))

    def test_read_that_runs_after_close_ends_and_keeps_no_ownership(self, owner: OwnedDatabase) -> None:
        owner.put(b"work", *items(1))
        reading, closing = self._overtaken_by_close(
            owner, DeferredOutcome(owner.database.read_after(b"work", 0, ALL, ALL))
        )
        owner.run_threads()
        assert reading.is_there and closing.is_there, "a pending call never got its answer"
        assert owner.another().read() == items(1)

    def _overtaken_by_close(
        self, owner: OwnedDatabase, pending: DeferredOutcome
    ) -> tuple[DeferredOutcome, DeferredOutcome]:
        """Close the database while a call is pending. Run the newest job first until `close` has finished.

        Return the outcomes of the pending call and of `close`. Either may still be unfinished.
        """
        assert isinstance(owner.threads, SteppedThreads)
        closing = DeferredOutcome(owner.begin_close())
        while not closing.is_there and owner.threads:
            owner.threads.run_newest()
        return pending, closing

    def test_reads_in_other_threads_see_whole_batches(self, tmp_path: Path) -> None:
        owner = OwnedDatabase(self, tmp_path / "database", RealThreads())
        try:
            with _frequent_thread_switches():
                self._read_during_batches(owner)
        finally:
            owner.end()

    def _read_during_batches(self, owner: OwnedDatabase) -> None:
        before = items(*range(1, _ITEMS + 1))
        owner.put(b"work", *before)
        for number in range(1, _BATCHES + 1):
            first = number * _ITEMS + 1
            after = items(*range(first, first + _ITEMS))
            changes = owner.changes(removed=[(first - _ITEMS, first - 1)], puts=after)
            applying = DeferredOutcome(owner.database.apply(owner.batch(changes)))
            reads: list[DeferredOutcome] = []
            while not applying.is_there:
                while sum(not read.is_there for read in reads) < _READS:
                    reads.append(DeferredOutcome(owner.database.read_after(b"work", 0, ALL, ALL)))
                owner.threads.run_one()
            owner.run_threads()
            _check_answered(applying)
            for read in reads:
                seen = list(_check_answered(read))
                assert seen in (before, after), f"a read saw {len(seen)} items of a batch that replaces {_ITEMS}"
            assert owner.read() == after
            before = after


def _check_answered(call: DeferredOutcome) -> list[object]:
    """Return the result of a read or batch. Fail if the call failed, because it had no reason to."""
    try:
        result = call.result()
    except Exception as error:
        raise AssertionError(f"a read and a batch at the same time: {type(error).__name__}: {error}") from error
    return result or []


@contextmanager
def _frequent_thread_switches() -> Iterator[None]:
    usual = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)
