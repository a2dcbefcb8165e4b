"""A journaled queue with a folder of its own, or in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred

from kestrel.disk.files import Disk
from kestrel.errors import KestrelError
from kestrel.library.arguments import FolderPath
from kestrel.library.deferreds import run_to_completion
from kestrel.library.folder_journaled_queue import FolderJournaledQueue
from kestrel.library.journaled_config import JournaledQueueConfig
from kestrel.library.scroll_folder import ScrollFolder
from kestrel.queues.context import wall_clock_ms
from kestrel.storage.scroll.storage import RESERVE_BYTES


class JournaledQueue(FolderJournaledQueue):
    """A journaled queue with its own folder, which is locked from `setup` to `close`.

    Without a `path`, or with ``journaled=False``, the queue is kept in memory and uses no files. `reserve_bytes`,
    `now_ms` and `disk` are those of `ScrollFolder`.
    """

    def __init__(
        self,
        config: JournaledQueueConfig,
        path: FolderPath | None,
        reactor: Any,
        *,
        reserve_bytes: int = RESERVE_BYTES,
        now_ms: Callable[[], int] = wall_clock_ms,
        disk: Disk | None = None,
    ) -> None:
        self.folder = ScrollFolder(
            path if config.journaled else None,
            reactor,
            archive=config.save_archived_journals,
            reserve_bytes=reserve_bytes,
            now_ms=now_ms,
            disk=disk,
        )
        super().__init__(config, self.folder)

    def setup(self) -> Deferred[None]:
        """Lock the folder and load the journal. Fails with a `StorageError`, and leaves the folder unlocked then."""
        return run_to_completion(self._setup())

    async def _setup(self) -> None:
        await self.folder.open()
        try:
            self.folder.adopt(self)
        except KestrelError:
            await self.folder.close()
            raise

    async def _close(self) -> None:
        try:
            await self.end()
        finally:
            await self.folder.close()

    async def _erase(self) -> None:
        try:
            await super()._erase()
        finally:
            await self.folder.close()
