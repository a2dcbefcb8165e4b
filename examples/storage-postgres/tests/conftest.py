"""A private PostgreSQL for all tests, and schemas of it by folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from batches import Schemas
from kestrel_postgres.testing import PrivateServer


@pytest.fixture(scope="session")
def server() -> Iterator[PrivateServer]:
    """One server for all tests that do it no harm. Nobody clears up after hundreds of short-lived schemas."""
    with PrivateServer(autovacuum="off") as server:
        yield server


@pytest.fixture
def own_server() -> Iterator[PrivateServer]:
    """One for a single test, which may kill it."""
    with PrivateServer() as server:
        yield server


@pytest.fixture(scope="session")
def schemas(server: PrivateServer) -> Iterator[Schemas]:
    """Databases in the server that all tests share."""
    with closing(Schemas(server.conninfo)) as schemas:
        yield schemas
