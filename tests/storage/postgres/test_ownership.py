"""Tests of ownership: one server at a time owns the queues, and a former owner cannot change them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from kestrel.errors import DatabaseAway, OwnershipLost, StorageError, StorageInUse
from kestrel.storage.database import StoredQueue
from kestrel.storage.postgres.database import PostgresDatabase
from tests.server.storages import ON_POSTGRES
from tests.storage.postgres.batches import (
    RealThreads,
    Schemas,
    applied,
    batch,
    changes,
    deletion,
    fired,
    first,
    items,
    read,
    schema_of,
)

pytestmark = ON_POSTGRES


@pytest.fixture
def owner(schemas: Schemas, tmp_path: Path) -> Iterator[PostgresDatabase]:
    """A database that owns one queue with one item."""
    owner = schemas.listed(tmp_path)
    fired(owner.apply(batch(1, first(b"work", *items(1)))))
    yield owner
    fired(owner.close())


@pytest.fixture
def new_owner(owner: PostgresDatabase, schemas: Schemas, tmp_path: Path) -> Iterator[PostgresDatabase]:
    """A database that has taken the queues from `owner`, which has not noticed."""
    schemas.end_sessions()
    new_owner = schemas.listed(tmp_path)
    yield new_owner
    fired(new_owner.close())


def put(position: int) -> StoredQueue:
    """Return the queue work with items up to a position."""
    return StoredQueue(b"work", position, position, 0, position)


# A running owner.


def test_second_owner_is_refused_with_the_name_of_the_first(
    owner: PostgresDatabase, schemas: Schemas, tmp_path: Path
) -> None:
    second = schemas.database(tmp_path)
    with pytest.raises(StorageInUse, match=r"in use by process \d+ on \S+: stop that one first"):
        fired(second.list_queues())
    fired(second.close())
    fired(owner.apply(batch(2, changes(put(2), items(2)))))
    assert read(owner) == items(1, 2)


def test_each_schema_has_its_own_owner(owner: PostgresDatabase, schemas: Schemas, tmp_path: Path) -> None:
    other = schemas.listed(tmp_path / "other")
    assert read(other) == []
    fired(other.close())


def test_second_owner_waits_briefly_for_the_first_to_stop(schemas: Schemas, tmp_path: Path) -> None:
    first_one = schemas.listed(tmp_path)
    threads = RealThreads()
    second = schemas.database(tmp_path, threads, lock_s=30.0)
    listing: Deferred[Any] = second.list_queues()
    while not schemas.execute("SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"):
        pass
    fired(first_one.close())
    threads.finish()
    assert fired(listing) == []
    closing = second.close()
    threads.finish()
    fired(closing)


def test_concurrent_starts_create_the_tables_once(schemas: Schemas, tmp_path: Path) -> None:
    threads = RealThreads()
    ends: list[Deferred[Any]] = []
    for _ in range(4):
        database = schemas.database(tmp_path, threads, lock_s=30.0)
        ends.append(database.list_queues().addCallback(partial(_closed, database)))
    threads.finish()
    assert [fired(end) for end in ends] == [[]] * 4
    assert schemas.count(tmp_path, "owner") == 1


def _closed(database: PostgresDatabase, found: Sequence[StoredQueue]) -> Deferred[Sequence[StoredQueue]]:
    return database.close().addCallback(lambda _: found)


# A former owner.


def test_batch_of_a_former_owner_is_not_applied(owner: PostgresDatabase, new_owner: PostgresDatabase) -> None:
    for _ in range(3):
        with pytest.raises(OwnershipLost, match="another server has taken the queues over"):
            applied(owner, batch(2, changes(put(2), items(2))))
    fired(new_owner.apply(batch(1, changes(put(3), items(3)))))
    with pytest.raises(OwnershipLost):
        fired(owner.apply(batch(2, deletion(b"work"))))
    assert read(new_owner) == items(1, 3)


def test_former_owner_is_not_misled_by_an_equal_batch_number(
    owner: PostgresDatabase, new_owner: PostgresDatabase
) -> None:
    fired(new_owner.apply(batch(1, changes(put(2), items(2)))))
    fired(new_owner.apply(batch(2, changes(put(3), items(3)))))
    with pytest.raises(OwnershipLost):
        applied(owner, batch(2, changes(put(9), items(9))))
    assert read(new_owner) == items(1, 2, 3)


def test_former_owner_cannot_read(owner: PostgresDatabase, new_owner: PostgresDatabase) -> None:
    for _ in range(2):
        with pytest.raises(OwnershipLost):
            read(owner)


def test_epoch_fences_an_owner_with_a_working_connection(
    owner: PostgresDatabase, schemas: Schemas, tmp_path: Path
) -> None:
    schemas.execute(f'UPDATE "{schema_of(tmp_path)}".owner SET epoch = epoch + 1')
    for _ in range(2):
        with pytest.raises(OwnershipLost):
            fired(owner.apply(batch(2, changes(put(2), items(2)), first(b"other", *items(1)))))
    assert schemas.count(tmp_path, "items") == schemas.count(tmp_path, "queues") == 1


def test_owner_continues_after_lost_connections(owner: PostgresDatabase, schemas: Schemas, tmp_path: Path) -> None:
    for number in range(2, 5):
        schemas.end_sessions()
        assert applied(owner, batch(number, changes(put(number), items(number)))) == 1
        assert read(owner) == items(*range(1, number + 1))
    second = schemas.database(tmp_path)
    with pytest.raises(StorageInUse):
        fired(second.list_queues())
    fired(second.close())


# A database that has lost acknowledged batches.


def test_database_that_lost_batches_is_not_written_to(
    owner: PostgresDatabase, schemas: Schemas, tmp_path: Path
) -> None:
    fired(owner.apply(batch(2, changes(put(2), items(2)))))
    schemas.execute(f'UPDATE "{schema_of(tmp_path)}".owner SET batch = 1')
    schemas.end_sessions()
    for _ in range(2):
        with pytest.raises(OwnershipLost, match="lost changes that it had acknowledged"):
            applied(owner, batch(3, changes(put(3), items(3))))
        with pytest.raises(DatabaseAway):
            fired(owner.read_after(b"work", 0, 1, 1))
    again = schemas.listed(tmp_path)
    assert read(again) == items(1, 2)
    fired(again.close())


def test_tables_of_another_layout_are_refused(schemas: Schemas, tmp_path: Path) -> None:
    fired(schemas.listed(tmp_path).close())
    schemas.execute(f'UPDATE "{schema_of(tmp_path)}".owner SET layout = 2')
    again = schemas.database(tmp_path)
    with pytest.raises(StorageError, match="have layout 2, but this release needs 1"):
        fired(again.list_queues())
    fired(again.close())
