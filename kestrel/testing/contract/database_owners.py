"""Ownership: a database has one owner at a time, and a former owner can change nothing."""

from __future__ import annotations

import pytest

from kestrel.errors import OwnershipLost, StorageInUse
from kestrel.storage.database import QueueChanges, StoredQueue, WriteBatch
from kestrel.testing.contract.backend import DeferredOutcome
from kestrel.testing.contract.database_backend import DatabaseBackend, OwnedDatabase, items
from kestrel.testing.contract.requirements import requires
from kestrel.testing.threads import SteppedThreads


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
