"""The disk reserve: space for the batch that finds the disk full. Puts are then refused until there is room again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from twisted.logger import Logger
from twisted.python.failure import Failure

from kestrel.disk.files import Disk, is_full
from kestrel.storage.jobs import Jobs

log = Logger(__name__)

RETRY_S: Final = 1.0

T = TypeVar("T")


class DiskReserve:
    """A file that reserves disk space. It is erased when the disk is full, and created again when there is room."""

    def __init__(self, disk: Disk, path: bytes, reserve_bytes: int, jobs: Jobs) -> None:
        self._disk = disk
        self._path = path
        self._reserve_bytes = max(1, reserve_bytes)  # even a file of one byte shows when there is room
        self._jobs = jobs
        self._has_reserve = False
        self.refusal: str | None = None
        """Reason why puts are refused, or None."""

    def allocate_reserve(self) -> None:
        """Create the reserve file in a thread. Retry until there is room for it."""
        self._jobs.run(self._disk.allocate, self._path, self._reserve_bytes).addCallbacks(
            self._reserve_allocated, self._reserve_not_allocated
        )

    def release_reserve(self) -> bool:
        """Erase the reserve, and refuse puts. Return False if the reserve was already used."""
        had_reserve, self._has_reserve = self._has_reserve, False
        if had_reserve:
            self._disk.erase(self._path)
        if self.refusal is None:
            self.refusal = "disk full"
            log.error("The disk is full: puts are refused until there is room")
            self._jobs.later(RETRY_S, self.allocate_reserve)
        return had_reserve

    def run_with_reserve(self, action: Callable[[], T]) -> T:
        """Return the result of `action`. If the disk is full, release the reserve and call it once more. Raises
        OSError.
        """
        try:
            return action()
        except OSError as error:
            if not is_full(error) or not self.release_reserve():
                raise
            return action()

    def _reserve_allocated(self, _: object) -> None:
        self._has_reserve = True
        if self.refusal is not None:
            self.refusal = None
            log.info("There is room on the disk again: puts are accepted")

    def _reserve_not_allocated(self, failure: Failure) -> None:
        error = failure.value
        if isinstance(error, OSError) and is_full(error):
            refusal = "disk full"
        else:
            refusal = f"the disk reserve cannot be made: {getattr(error, 'strerror', None) or error}"
        if self.refusal != refusal:
            self.refusal = refusal
            log.error(
                "Puts are refused: {refusal}. The reserve (diskReserveSize) needs {size} bytes",
                refusal=refusal,
                size=self._reserve_bytes,
            )
        self._jobs.later(RETRY_S, self.allocate_reserve)
