"""What every test of a journaled queue has at hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.library.journaled import Program


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    """A program, which leaves nothing behind."""
    program = Program(tmp_path)
    yield program
    program.stop()
