"""What the tests of whole servers share, and those that let a process die again and again."""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.storage.backends import BACKENDS, Backend
from tests.storage.crash_trials import RestartCache
from tests.storage.serving import IN_MEMORY, NEVER, PERIODIC, SYNCED, Machine


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend" in metafunc.fixturenames:
        only = metafunc.definition.get_closest_marker("backends")
        names = BACKENDS if only is None else only.args
        metafunc.parametrize("backend", names, indirect=True, scope="module")


@pytest.fixture(scope="module")
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each durable backend in turn, or those that the test's mark `backends` names."""
    return BACKENDS[request.param]


@pytest.fixture
def machine(tmp_path: Path, backend: Backend) -> Iterator[Machine]:
    """Where servers run, with the queues "synced", "periodic" and "memory", and any other never synced."""
    queues = {b"synced": SYNCED, b"periodic": PERIODIC, b"memory": IN_MEMORY}
    machine = Machine(tmp_path, NEVER, queues, backend.make)
    yield machine
    machine.stop_all()


AllowDescriptors = Callable[[int], None]
"""Tells a storage that is started then how many files the process may have open."""


@pytest.fixture
def allow_descriptors(monkeypatch: pytest.MonkeyPatch) -> AllowDescriptors:
    """The limit of the process stays what it is, for all else that has files open."""

    def allow(descriptors: int) -> None:
        monkeypatch.setattr(resource, "getrlimit", lambda which: (descriptors, descriptors))

    return allow


# For processes that die.


@pytest.fixture
def folder() -> Iterator[Path]:
    """A place for a great many small files: in memory, where the system has one there."""
    memory = "/dev/shm"
    with TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def _frozen() -> Iterator[None]:
    """What was there before is not looked at when garbage is collected."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    gc.collect()
    gc.freeze()


@pytest.fixture
def last_words(_frozen: None) -> Iterator[None]:
    """What Deferreds of the dead have to say, because nobody handled their failure, they say now and not later."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def restarts(backend: Backend) -> RestartCache:
    """Shared, since many a death leaves the same files."""
    return RestartCache(backend)
