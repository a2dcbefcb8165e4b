"""A queue with a folder of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred

from kestrel.config.model import QueueSettings
from kestrel.disk.files import Disk
from kestrel.errors import KestrelError
from kestrel.library.arguments import FolderPath, check_name, check_settings
from kestrel.library.deferreds import run_to_completion
from kestrel.library.folder_queue import FolderQueue
from kestrel.library.queue_folder import Lookup, QueueFolder
from kestrel.queues.context import wall_clock_ms
from kestrel.storage.journal.storage import RESERVE_BYTES


class PersistentQueue(FolderQueue):
    """A queue with its own folder, which is locked from `setup` to `close`. The arguments are those of `QueueFolder`.

    `settings` apply to this queue. Queues that are created in the folder when items move to them have default settings.
    """

    folder: QueueFolder

    def __init__(
        self,
        name: bytes,
        path: FolderPath,
        reactor: Any,
        *,
        settings: QueueSettings | None = None,
        lookup: Lookup | None = None,
        expire_every_s: float | None = None,
        reserve_bytes: int = RESERVE_BYTES,
        now_ms: Callable[[], int] = wall_clock_ms,
        disk: Disk | None = None,
    ) -> None:
        check_name(name)
        own, others = check_settings(name, settings or QueueSettings()), QueueSettings()
        folder = QueueFolder(
            path,
            reactor,
            settings_for=lambda other: own if other == name else others,
            lookup=lookup,
            expire_every_s=expire_every_s,
            reserve_bytes=reserve_bytes,
            now_ms=now_ms,
            disk=disk,
        )
        super().__init__(name, folder)

    def setup(self) -> Deferred[None]:
        """Lock the folder and replay its journals.

        Fails with a `StorageError`, or with `BadQueueName` if the name is too long for a file name. The folder is
        unlocked then.
        """
        return run_to_completion(self._setup())

    async def _setup(self) -> None:
        await self.folder.open()
        try:
            self.underlying()
        except KestrelError:
            await self.folder.close()
            raise

    def close(self) -> Deferred[None]:
        """Close the queue and unlock the folder when all changes are safe, as `QueueFolder.close` does."""
        return self.folder.close()
