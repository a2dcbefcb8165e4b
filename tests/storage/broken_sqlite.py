"""SQLite databases with one bug each, which the contract suite has to find.

pytest does not collect this module by itself: `test_contract_suite.py` runs it and checks which tests fail.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from kestrel_sqlite import READ, SqliteDatabase

from kestrel.errors import DatabaseAway, StorageError, StorageRefused
from kestrel.storage.database import IDatabase, StoredItem, StoredQueue, WriteBatch
from kestrel.storage.interfaces import InThread
from tests.storage import test_sqlite_contract
from tests.storage.test_sqlite_contract import FILE, RESERVE_BYTES


class TestUnbrokenSqlite(test_sqlite_contract.TestSqliteDatabase):
    database_class: type[SqliteDatabase] = SqliteDatabase

    def make_database(self, folder: Path, in_thread: InThread) -> IDatabase:
        return self.database_class(folder / FILE, in_thread, RESERVE_BYTES)


class WithPragma(SqliteDatabase):
    """A database with another setting than the example's."""

    pragma: str

    def _list_queues(self) -> list[StoredQueue]:
        found = super()._list_queues()
        with self._use() as connection:
            connection.execute(self.pragma)
        return found


class NeverSyncs(WithPragma):
    """A commit does not wait for the disk."""

    pragma = "PRAGMA synchronous = OFF"


class KeepsTheRollbackJournalInMemory(WithPragma):
    """A crash in a commit leaves half of it, and nothing to undo it with."""

    pragma = "PRAGMA journal_mode = MEMORY"


class ReportsFailedCommitAsNotApplied(SqliteDatabase):
    """An EIO in a commit is reported as an error after which nothing was applied."""

    error: type[StorageError] = StorageError

    def _apply(self, batch: WriteBatch) -> None:
        try:
            super()._apply(batch)
        except DatabaseAway as error:
            raise self.error(f"the commit failed: {error}") from error


class ReportsFailedCommitAsFull(ReportsFailedCommitAsNotApplied):
    """An EIO in a commit is reported as a full disk."""

    error = StorageRefused


class NeverSyncsAgain(SqliteDatabase):
    """After a failed sync no later commit waits for the disk, that of the same batch included."""

    def _apply(self, batch: WriteBatch) -> None:
        try:
            super()._apply(batch)
        except DatabaseAway:
            assert self._connection is not None
            self._connection.execute("PRAGMA synchronous = OFF")
            raise


class ReservesNothing(SqliteDatabase):
    """The rollback journal has the length of its longest transaction, and a remove may need a longer one."""

    def _reserve_room(self) -> None:
        pass


class ReadsWithoutTheLock(SqliteDatabase):
    """A reader uses the writer's connection while a transaction is open on it."""

    def _read_after(self, name: bytes, position: int, n: int, max_bytes: int) -> list[StoredItem]:
        assert self._connection is not None
        found: list[StoredItem] = []
        for row in self._connection.execute(READ, (name, position, n)):
            found.append(StoredItem(*row))
            max_bytes -= len(found[-1].data)
            if max_bytes < 0:
                return found[:-1] or found
        return found


class OpensAfterClose(SqliteDatabase):
    """A list_queues() that runs after close() takes ownership."""

    def _list_queues(self) -> list[StoredQueue]:
        self._is_closed = False
        return super()._list_queues()


POWER_FAILURE: Final = "test_power_failure_keeps_acknowledged_and_whole_batches"

FOUND_BY: Final[Mapping[type[SqliteDatabase], tuple[str, ...]]] = {
    NeverSyncs: (POWER_FAILURE,),
    KeepsTheRollbackJournalInMemory: (POWER_FAILURE,),
    ReportsFailedCommitAsNotApplied: ("test_failed_sync_in_a_commit_is_database_away",),
    ReportsFailedCommitAsFull: ("test_failed_sync_in_a_commit_is_database_away",),
    NeverSyncsAgain: ("test_batch_repeated_after_a_failed_sync_survives_power_failure",),
    ReservesNothing: ("test_full_disk_refuses_puts_and_accepts_removes",),
    ReadsWithoutTheLock: ("test_reads_in_other_threads_see_whole_batches",),
    OpensAfterClose: ("test_list_queues_that_runs_after_close_takes_no_ownership",),
}
"""The contract tests that find each bug. `test_sqlite_contract.py` checks that they pass for the correct database."""

for bug in FOUND_BY:
    globals()[f"Test{bug.__name__}"] = type(f"Test{bug.__name__}", (TestUnbrokenSqlite,), {"database_class": bug})
