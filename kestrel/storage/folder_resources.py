"""Resources that the queues of one folder share."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from typing import Any, Final

from mypy_extensions import mypyc_attr
from twisted.internet.defer import DeferredSemaphore

from kestrel.disk.file_numbers import FileNumbers
from kestrel.disk.files import Disk
from kestrel.disk.folders import PRIVATE_FOLDER
from kestrel.errors import QueueFailed
from kestrel.storage.disk_reserve import DiskReserve
from kestrel.storage.failed_syncs import FailedSyncs
from kestrel.storage.interfaces import Measure
from kestrel.storage.jobs import Jobs
from kestrel.storage.open_files import OpenFiles
from kestrel.storage.total_memory import MemoryLimit

RESERVE_BYTES: Final = 16 * 1024 * 1024
"""Default size of the file that is erased when the disk is full."""

SYNCS_AT_ONCE: Final = 32
"""Maximum number of simultaneous syncs, each of which needs a descriptor.

This and the next two limits are at most an eighth of the descriptors that the process may have.
"""

READS_AT_ONCE: Final = 16

REWRITES_AT_ONCE: Final = 2
"""Small, because rewrites take time from the reactor and space on the disk."""


def wall_clock_ms() -> int:
    """Return the time of day in milliseconds since 1970."""
    return int(time.time() * 1000)


@mypyc_attr(allow_interpreted_subclasses=True)
class FolderResources:
    """The disk, the threads, and limits for simultaneous work of the queues of one folder.

    `kill` makes the store of a queue fail, or a journal that queues share, and returns the error to report.
    """

    def __init__(
        self,
        disk: Disk,
        folder: bytes,
        jobs: Jobs,
        kill: Callable[[Any, Exception], QueueFailed],
        reserve_bytes: int = RESERVE_BYTES,
        now_ms: Callable[[], int] = wall_clock_ms,
        memory_limit: MemoryLimit | None = None,
    ) -> None:
        self.disk = disk
        self.folder = folder
        self.jobs = jobs
        self.kill = kill
        self.disk_reserve = DiskReserve(disk, self.path(PRIVATE_FOLDER + b"/reserve"), reserve_bytes, jobs)
        self.now_ms = now_ms
        self.numbers = FileNumbers(now_ms)
        self.memory_limit = memory_limit or MemoryLimit()
        self.open_files = OpenFiles()
        self.failed_syncs = FailedSyncs(disk, folder)
        self.measure: Measure = _ignore_measurement
        """Receives the durations that `record_duration` measures."""
        descriptors = max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8)
        self.sync_slots = DeferredSemaphore(min(SYNCS_AT_ONCE, descriptors))
        self.read_slots = DeferredSemaphore(min(READS_AT_ONCE, descriptors))
        self.rewrite_slots = DeferredSemaphore(min(REWRITES_AT_ONCE, descriptors))

    def path(self, file_name: bytes) -> bytes:
        """Return the path of a file in the queue folder."""
        return self.folder + b"/" + file_name

    def is_disk_full(self) -> bool:
        """Return whether puts are refused because the disk is full."""
        return self.disk_reserve.refusal is not None

    def record_duration(self, queue: bytes, what: str, began_s: float) -> None:
        """Report that work on the queue began at `began_s`, by the clock of the jobs, and is done now. `what` names the
        metric.
        """
        self.measure(queue, what, int((self.jobs.seconds() - began_s) * 1_000_000))


def _ignore_measurement(queue: bytes, what: str, value: int) -> None:
    """Do nothing, because the storage has no listener."""
