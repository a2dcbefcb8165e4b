"""A full database: it refuses puts, and items can still be removed."""

from __future__ import annotations

import pytest

from kestrel.errors import StorageRefused
from kestrel.testing.contract.database_backend import DatabaseBackend, OwnedDatabase, item
from kestrel.testing.contract.requirements import requires

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
