"""Queues in PostgreSQL keep the storage contract, and the database below them its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from batches import Schemas, changes, item
from kestrel.storage.database import IDatabase, QueueChanges, StoredQueue
from kestrel.storage.interfaces import InThread
from kestrel.testing.contract.backend import StorageUnderTest
from kestrel.testing.contract.database_backend import OwnedDatabase
from kestrel.testing.contract.suite import DatabaseContract, OnFaultyDatabase, StorageContract
from kestrel_postgres.factory import PostgresStorageFactory


class OnPostgres:
    """A folder is a schema of the server that all tests share."""

    schemas: Schemas

    @pytest.fixture(autouse=True)
    def _schemas(self, schemas: Schemas) -> None:
        self.schemas = schemas

    def make_database(self, folder: Path, in_thread: InThread) -> IDatabase:
        return self.schemas.database(folder, in_thread)

    def after_a_kill(self, subject: StorageUnderTest | OwnedDatabase, folder: Path) -> None:
        self.schemas.copy(subject.folder, folder)


class TestPostgresDatabase(OnPostgres, DatabaseContract):
    is_embedded = False  # a server: faults of a process and its disk do not reach the database
    max_examples = 20

    def lose_hold(self, database: IDatabase) -> None:
        self.schemas.end_sessions()

    def impossible(self, queue: StoredQueue) -> QueueChanges:
        return changes(queue, [item(1, b"where another one stands")])


class TestPostgresStorage(OnPostgres, OnFaultyDatabase, StorageContract):
    factory = PostgresStorageFactory()
    max_examples = 20
