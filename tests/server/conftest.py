"""Servers for the tests of whole processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.certificates import Authority
from tests.server.running import Processes


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Signs the certificates of a test."""
    return Authority(tmp_path)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """Starts servers in a scratch folder, and sees to it that none is left."""
    with Processes(tmp_path) as processes:
        yield processes
