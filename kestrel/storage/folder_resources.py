"""What the queues of one folder share."""

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
"""Each needs a descriptor of its own. Where the process may open few, an eighth of those; so for the others."""

READS_AT_ONCE: Final = 16

REWRITES_AT_ONCE: Final = 2
"""They take time from the reactor, and space on the disk."""


class FolderResources:
    """The disk, the threads, and how many of a kind may be at work at once.

    `kill` makes the object of a queue, or of a journal that queues share, dead and returns the failure to tell;
    `is_disk_full` tells whether puts are refused.
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
        """Who is told how long something took."""
        descriptors = max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8)
        self.sync_slots = DeferredSemaphore(min(SYNCS_AT_ONCE, descriptors))
        self.read_slots = DeferredSemaphore(min(READS_AT_ONCE, descriptors))
        self.rewrite_slots = DeferredSemaphore(min(REWRITES_AT_ONCE, descriptors))

    def record_duration(self, queue: bytes, what: str, began_s: float) -> None:
        """Something that was begun then, by the clock of the jobs, is done."""
        self.measure(queue, what, int((self.jobs.seconds() - began_s) * 1_000_000))


def _ignore_measurement(queue: bytes, what: str, value: int) -> None:
    """Nobody wants to know."""
