"""What the tests of whole servers share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage.serving import IN_MEMORY, NEVER, PERIODIC, SYNCED, Machine


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """Where servers run, with the queues "synced", "periodic" and "memory", and any other never synced."""
    queues = {b"synced": SYNCED, b"periodic": PERIODIC, b"memory": IN_MEMORY}
    machine = Machine(tmp_path, NEVER, queues)
    yield machine
    machine.stop_all()
