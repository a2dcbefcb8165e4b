"""Resources that the queues of one folder share."""

from __future__ import annotations

import resource
from collections.abc import Callable
from typing import Any, Final

from twisted.internet.defer import DeferredSemaphore

from kestrel.disk.files import Disk
from kestrel.errors import QueueFailed
from kestrel.storage.failed_syncs import FailedSyncs
from kestrel.storage.interfaces import Measure
from kestrel.storage.jobs import Jobs

SYNCS_AT_ONCE: Final = 32
"""Maximum number of simultaneous syncs, each of which needs a descriptor.

This and the next two limits are at most an eighth of the descriptors that the process may have.
"""

READS_AT_ONCE: Final = 16

REWRITES_AT_ONCE: Final = 2
"""Small, because rewrites take time from the reactor and space on the disk."""


class FolderResources:
    """The disk, the threads, and limits for simultaneous work of the queues of one folder.

    `kill` makes the store of a queue fail, or a journal that queues share, and returns the error to report.
    `is_disk_full` returns whether puts are refused.
    """

    def __init__(
        self,
        disk: Disk,
        folder: bytes,
        jobs: Jobs,
        kill: Callable[[Any, Exception], QueueFailed],
        is_disk_full: Callable[[], bool] = lambda: False,
    ) -> None:
        self.disk = disk
        self.folder = folder
        self.jobs = jobs
        self.kill = kill
        self.is_disk_full = is_disk_full
        self.failed_syncs = FailedSyncs(disk, folder)
        self.measure: Measure = _ignore_measurement
        """Receives the durations that `record_duration` measures."""
        descriptors = max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8)
        self.sync_slots = DeferredSemaphore(min(SYNCS_AT_ONCE, descriptors))
        self.read_slots = DeferredSemaphore(min(READS_AT_ONCE, descriptors))
        self.rewrite_slots = DeferredSemaphore(min(REWRITES_AT_ONCE, descriptors))

    def record_duration(self, queue: bytes, what: str, began_s: float) -> None:
        """Report that work on the queue began at `began_s`, by the clock of the jobs, and is done now. `what` names the
        metric.
        """
        self.measure(queue, what, int((self.jobs.seconds() - began_s) * 1_000_000))


def _ignore_measurement(queue: bytes, what: str, value: int) -> None:
    """Do nothing, because the storage has no listener."""
