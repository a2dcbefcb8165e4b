"""Fixtures for tests on each durable backend, on whole servers, and on processes that crash often."""

from __future__ import annotations

import gc
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.storage.backends import BACKENDS, Backend
from tests.storage.crash_trials import RestartCache
from tests.storage.faulty_server import IN_MEMORY, NEVER, PERIODIC, SYNCED, Client, Machine, Server
from tests.torture.damage import quick_folder


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend" in metafunc.fixturenames:
        only = metafunc.definition.get_closest_marker("backends")
        names = BACKENDS if only is None else only.args
        metafunc.parametrize("backend", names, indirect=True, scope="module")


@pytest.fixture(scope="module")
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each durable backend in turn, or those that the mark `backends` of the test names."""
    return BACKENDS[request.param]


@pytest.fixture
def machine(tmp_path: Path, backend: Backend) -> Iterator[Machine]:
    """A machine with the queues "synced", "periodic" and "memory". All other queues are never synced."""
    queues = {b"synced": SYNCED, b"periodic": PERIODIC, b"memory": IN_MEMORY}
    machine = Machine(tmp_path, NEVER, queues, backend.make)
    yield machine
    machine.stop_all()


@pytest.fixture
def server(machine: Machine) -> Server:
    """A server over an empty folder."""
    return machine.start()


@pytest.fixture
def client(server: Server) -> Client:
    """A connection to `server`."""
    return server.client()


AllowDescriptors = Callable[[int], None]
"""Sets the number of open files that storages believe the process may have, for storages that start later."""


@pytest.fixture
def allow_descriptors(monkeypatch: pytest.MonkeyPatch) -> AllowDescriptors:
    """A function that sets the limit of open files for storages. The real limit of the process does not change."""

    def allow(descriptors: int) -> None:
        monkeypatch.setattr(resource, "getrlimit", lambda which: (descriptors, descriptors))

    return allow


# Crashing processes.


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder for many small files, in memory if the system has a file system there."""
    with quick_folder() as folder:
        yield folder


@pytest.fixture(scope="module")
def _frozen() -> Iterator[None]:
    """Exclude existing objects from garbage collection, which makes it fast."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    gc.collect()
    gc.freeze()


@pytest.fixture
def report_unhandled_failures(_frozen: None) -> Iterator[None]:
    """Collect garbage at the end, so that Deferreds of crashed storages log unhandled failures in this test."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def restarts(backend: Backend) -> RestartCache:
    """Results of restarts, which all tests of a module share, because many crashes leave the same files."""
    return RestartCache(backend)
