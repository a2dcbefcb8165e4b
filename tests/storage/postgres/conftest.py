"""Fixtures of private PostgreSQL servers and their schemas."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from kestrel.testing.postgres import PrivateServer
from tests.storage.postgres.batches import Schemas


@pytest.fixture(scope="session")
def server() -> Iterator[PrivateServer]:
    """A server shared by all tests that do not stop it. autovacuum is off because of hundreds of short-lived
    schemas."""
    with PrivateServer(autovacuum="off") as server:
        yield server


@pytest.fixture
def own_server() -> Iterator[PrivateServer]:
    """A server for one test, which may kill it."""
    with PrivateServer() as server:
        yield server


@pytest.fixture(scope="session")
def schemas(server: PrivateServer) -> Iterator[Schemas]:
    """Databases in the shared server."""
    with closing(Schemas(server.conninfo)) as schemas:
        yield schemas
