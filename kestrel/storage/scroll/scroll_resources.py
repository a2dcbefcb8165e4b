"""The resources that all journals of a scroll folder share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kestrel.disk.file_numbers import FileNumbers
from kestrel.disk.files import Disk
from kestrel.errors import QueueFailed
from kestrel.storage.folder_resources import FolderResources
from kestrel.storage.jobs import Jobs
from kestrel.storage.open_files import OpenFiles
from kestrel.storage.total_memory import MemoryLimit


class ScrollResources(FolderResources):
    """The resources that all journals of a scroll folder share.

    `refusal` returns the reason why no put is accepted, or None. `numbers` allocates the numbers of new files.
    `archive` is the folder for writer files that are no longer needed; None means that they are erased. If
    `is_all_shared` is true, each item is for all readers of its journal.
    """

    def __init__(
        self,
        disk: Disk,
        folder: bytes,
        jobs: Jobs,
        kill: Callable[[Any, Exception], QueueFailed],
        *,
        refusal: Callable[[], str | None],
        numbers: FileNumbers,
        memory_limit: MemoryLimit,
        archive: bytes | None,
        is_all_shared: bool,
    ) -> None:
        super().__init__(disk, folder, jobs, kill, lambda: refusal() is not None)
        self.refusal = refusal
        self.numbers = numbers
        self.memory_limit = memory_limit
        self.archive = archive
        self.is_all_shared = is_all_shared
        self.open_files = OpenFiles()

    def path(self, file_name: bytes) -> bytes:
        """Return the path of a file in the queue folder."""
        return self.folder + b"/" + file_name
