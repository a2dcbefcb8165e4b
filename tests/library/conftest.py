"""Fixtures of the tests of journaled queues."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kestrel.library import JournaledQueue, Reader
from tests.library.journaled import Program


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    """Return a program. Its queues are closed after the test."""
    program = Program(tmp_path)
    yield program
    program.stop()


@pytest.fixture
def queue(program: Program) -> JournaledQueue:
    """Return a queue with the default config."""
    return program.queue()


@pytest.fixture
def reader(queue: JournaledQueue) -> Reader:
    """Return the default reader of the queue."""
    return queue.reader()
