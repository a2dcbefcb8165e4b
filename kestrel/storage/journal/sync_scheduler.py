"""The scheduler of a queue's syncs. After a failed sync it rewrites the queue to a new file."""

from __future__ import annotations

import errno
from collections.abc import Callable

from twisted.internet.defer import Deferred, fail, succeed

from kestrel.errors import QueueFailed
from kestrel.journal.fileset import current_name
from kestrel.journal.pack import PublishIncomplete
from kestrel.storage.failures import reason_of
from kestrel.storage.folder_resources import FolderResources
from kestrel.storage.journal.queue import JournalQueue
from kestrel.storage.journal.rewriter import JournalRewriter
from kestrel.storage.log.sync_scheduler import SyncScheduler


class JournalSyncScheduler(SyncScheduler):
    """The scheduler of the syncs of one queue. It calls `on_synced` after each successful sync."""

    def __init__(
        self, queue: JournalQueue, resources: FolderResources, rewriter: JournalRewriter, on_synced: Callable[[], None]
    ) -> None:
        super().__init__(queue, queue.writer, current_name(queue.name), resources, on_synced)
        self._queue = queue
        self._rewriter = rewriter

    def written(self) -> Deferred[None] | None:
        """Begin or schedule the sync of the records just written, as syncJournal requires.

        Return None if the reply need not wait for it. Otherwise return a Deferred that fires when the records are
        synced, or fails with `QueueFailed` if the queue has failed.
        """
        queue = self._queue
        period_ms = queue.settings.sync_journal_ms
        if period_ms == 0 and queue.writer.is_synced:
            return None
        if period_ms is not None and self._unsynced_since_s is None:
            self._unsynced_since_s = self._resources.jobs.seconds()
        if period_ms == 0:
            return self._wait_for_sync(self._waiting)
        queue.writer.acknowledge()
        if period_ms is not None:
            self.settings_changed()
        return None

    def sync_for_pack(self) -> Deferred[None]:
        """Sync now, whatever syncJournal is. Return a Deferred that fires when all records written so far are synced.

        It fails with `QueueFailed` if the queue has failed, or will fail at its next commit.
        """
        if self._pending_error is not None:
            return fail(QueueFailed(reason_of(self._pending_error)))
        return succeed(None) if self._queue.writer.is_synced else self._wait_for_sync(self._packs)

    def rewrite_after_load(self) -> None:
        """Rewrite a queue that was loaded from files that failed to sync. Another sync of them would prove nothing."""
        self._begin_rewrite(OSError(errno.EIO, "its files failed to sync"))

    async def _rewrite(self) -> None:
        queue = self._queue
        await self._rewriter.stop()
        queue.check()
        writer, acknowledged_size, number = queue.writer, queue.writer.acknowledged_size, None
        try:
            records = queue.take_pending()
            if records:
                writer.append(records)
            end = queue.rotate(queue.boundary(), is_kept=False)
            number = end.number
            await self._rewriter.replace(queue.replacement(end), is_urgent=True)
        except PublishIncomplete as error:
            # The new file is synced and valid, so the waiting commits have succeeded.
            self._pending_error = error
        except Exception:
            # The commits that wait are answered with an error, so their records must not return.
            if queue.failure is None:
                writer.truncate_to(acknowledged_size, number)
            raise
        queue.check()
