"""A ZooKeeper for all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from tests.cluster.zookeeper import ZooKeeper, running_zookeeper

_numbers = count()


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    """One that all tests of a process share: each has a path of its own, and none may kill it."""
    with running_zookeeper(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


@pytest.fixture
def prefix() -> str:
    """The path of server sets that no other test has."""
    return f"/tests/{next(_numbers)}"
