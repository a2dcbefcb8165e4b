"""The contract suites for storages and databases, run on PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest

from kestrel.storage.database import IDatabase, QueueChanges, StoredQueue
from kestrel.storage.interfaces import InThread
from kestrel.storage.postgres.factory import PostgresStorageFactory
from kestrel.testing.contract.backend import StorageUnderTest
from kestrel.testing.contract.database_backend import OwnedDatabase
from kestrel.testing.contract.suite import DatabaseContract, OnFaultyDatabase, StorageContract
from tests.sample import examples
from tests.server.storages import ON_POSTGRES
from tests.storage.postgres.batches import Schemas, changes, item

pytestmark = ON_POSTGRES


class OnPostgres:
    """Hooks of the contract suite. Each folder is a schema of the shared server."""

    schemas: Schemas

    @pytest.fixture(autouse=True)
    def _schemas(self, schemas: Schemas) -> None:
        self.schemas = schemas

    def make_database(self, folder: Path, in_thread: InThread) -> IDatabase:
        return self.schemas.database(folder, in_thread)

    def after_a_kill(self, subject: StorageUnderTest | OwnedDatabase, folder: Path) -> None:
        self.schemas.copy(subject.folder, folder)


class TestPostgresDatabase(OnPostgres, DatabaseContract):
    is_embedded = False  # faults of the kestrel process and its disk do not affect a database server
    max_examples = examples(20)

    def lose_hold(self, database: IDatabase) -> None:
        self.schemas.end_sessions()

    def impossible(self, queue: StoredQueue) -> QueueChanges:
        return changes(queue, [item(1, b"at a used position")])


class TestPostgresStorage(OnPostgres, OnFaultyDatabase, StorageContract):
    factory = PostgresStorageFactory()
    max_examples = examples(20)
