"""A ZooKeeper and servers, shared by all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.cluster.sets import SERVED, Sets
from tests.cluster.zookeeper import ZooKeeper, running_zookeeper
from tests.server.running import Processes, Server

_numbers = count()

_RUN_ONE = {"ZooKeeper", "running_zookeeper"}
"""A test module that imports one of these starts a ZooKeeper, as the fixture does."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need ZooKeeper, because it runs on Java."""
    folder = Path(__file__).parent
    for item in items:
        if item.path.parent == folder and isinstance(item, pytest.Function) and _has_zookeeper(item):
            item.add_marker(pytest.mark.needs("java"))


def _has_zookeeper(test: pytest.Function) -> bool:
    return "zookeeper" in test.fixturenames or not _RUN_ONE.isdisjoint(vars(test.module))


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    """Return a ZooKeeper that all tests of a process share. Each test has its own path, and none may kill it."""
    with running_zookeeper(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


@pytest.fixture
def prefix() -> str:
    """Return a path for server sets that no other test uses."""
    return f"/tests/{next(_numbers)}"


@pytest.fixture
def sets(zookeeper: ZooKeeper, prefix: str) -> Sets:
    """Return two empty server sets."""
    return Sets(zookeeper, prefix)


@pytest.fixture(scope="session")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    """Return two servers that all tests of a process share."""
    with Processes(tmp_path_factory.mktemp("one")) as one, Processes(tmp_path_factory.mktemp("two")) as two:
        started = [one.start(SERVED), two.start(SERVED)]
        yield [server.serves() for server in started]


@pytest.fixture
def servers(both: list[Server]) -> list[Server]:
    """Return two empty servers that are in no set yet."""
    for server in both:
        with server.connect() as client:
            client.ask(b"delete work\r\n", b"DELETED\r\n")
    return both
