"""A folder for the files of one input, over a disk that waits for no medium."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kestrel.disk.files import Disk


class QuickDisk(Disk):
    """Whatever is written is as good as safe."""

    def sync(self, descriptor: int) -> None:
        """Nothing."""

    def sync_folder(self, path: bytes) -> None:
        """Nothing."""


@contextmanager
def a_folder() -> Iterator[Path]:
    """A path that is gone afterwards with all that is there; in memory where the system has such a place."""
    memory = Path("/dev/shm")
    above = tempfile.mkdtemp(prefix="kestrel-fuzz-", dir=memory if os.access(memory, os.W_OK) else None)
    try:
        yield Path(above) / "queues"
    finally:
        shutil.rmtree(above)
