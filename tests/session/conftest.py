"""Servers for the tests of sessions."""

from __future__ import annotations

import pytest

from kestrel.testing.server import MemoryServer
from kestrel.testing.storage import SteppedStorage
from tests.session.servers import serving


@pytest.fixture
def server() -> MemoryServer:
    return serving()


@pytest.fixture
def storage() -> SteppedStorage:
    return SteppedStorage()


@pytest.fixture
def slow(storage: SteppedStorage) -> MemoryServer:
    """Return a server over a storage that the test steps."""
    return serving(storage=storage)
