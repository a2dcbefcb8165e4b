"""The start of scroll storages, which all tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scroll.storages import Opener


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Opener]:
    """Return an opener of storages, which are stopped after the test."""
    opener = Opener(tmp_path)
    yield opener
    opener.stop_all()
