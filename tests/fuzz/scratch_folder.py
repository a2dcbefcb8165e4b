"""Folders for the files of one input."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.torture.damage import quick_folder


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a path for a new file or folder, which is deleted afterwards."""
    with quick_folder() as parent:
        yield parent / "queues"
