"""A disk that keeps what a crash at each of its operations would leave."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kestrel.testing.faults import FaultyDisk


class WatchedDisk(FaultyDisk):
    """A disk that copies a folder before each operation: as it is, and as a power failure would leave it.

    Each write is split in two, so that a crash can also happen in the middle of one.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._is_watching = False
        self.left_by_processes: list[Path] = []
        self.left_by_machines: list[Path] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Make copies while the block runs, and once at its end."""
        self._is_watching = True
        yield
        self._keep()
        self._is_watching = False

    def _keep(self) -> None:
        number = len(self.left_by_processes)
        by_process = self._folder.with_name(f"process-{number}")
        by_machine = self._folder.with_name(f"machine-{number}")
        shutil.copytree(self._folder, by_process)
        self.medium.copy(bytes(self._folder), bytes(by_machine))
        self.left_by_processes.append(by_process)
        self.left_by_machines.append(by_machine)

    def _check(self, operation: str) -> None:
        super()._check(operation)
        if self._is_watching:
            self._keep()

    def write(self, descriptor: int, data: bytes) -> None:
        half = len(data) // 2
        super().write(descriptor, data[:half])
        super().write(descriptor, data[half:])
