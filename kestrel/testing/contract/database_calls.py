"""Overlapping calls of a database: a close that overtakes pending calls, and reads during a batch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from kestrel.errors import StorageError
from kestrel.testing.contract.backend import DeferredOutcome
from kestrel.testing.contract.database_backend import ALL, DatabaseBackend, OwnedDatabase, items
from kestrel.testing.threads import RealThreads, SteppedThreads

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
