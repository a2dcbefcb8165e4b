"""Servers for the tests of the blocking client."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.running import Processes


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """Starts servers in a scratch folder, and sees to it that none is left."""
    with Processes(tmp_path) as processes:
        yield processes
