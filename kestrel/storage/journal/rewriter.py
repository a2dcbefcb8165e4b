"""The rewriter of a queue's journal, which replaces older files by one, and the scheduler of the queue's syncs.

The rewriter works in threads while the queue continues. After a failed sync, the scheduler rewrites the queue to a new
file.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any

from twisted.internet.defer import Deferred, fail, succeed

from kestrel.disk.files import Disk
from kestrel.errors import QueueFailed
from kestrel.journal.fileset import current_name, pack_name, rotated_name, temporary_name
from kestrel.journal.pack import PublishIncomplete, WriteStopped, publish, write_temporary
from kestrel.journal.rewrite import ReplacementRecords
from kestrel.storage.failures import reason_of
from kestrel.storage.folder_resources import FolderResources
from kestrel.storage.jobs import fire_all
from kestrel.storage.journal.queue import JournalQueue
from kestrel.storage.log.sync_scheduler import SyncScheduler


class RewritePhase(Enum):
    """The phase of a replacement. It can be stopped in each phase but PUBLISHING, which is short."""

    WAITING = "waiting"
    WRITING = "writing"
    WRITTEN = "written"
    PUBLISHING = "publishing"
    OVER = "over"


class _ActiveRewrite:
    """A replacement in progress."""

    def __init__(self, is_urgent: bool) -> None:
        self.is_urgent = is_urgent
        self.phase = RewritePhase.WAITING
        self.is_stopped = False
        self._waiting: list[Deferred[None]] = []

    def enter(self, phase: RewritePhase) -> None:
        """Enter `phase`, and fire the Deferreds that wait for the end of the last phase."""
        self.phase = phase
        fire_all(self._waiting)

    def next_phase(self) -> Deferred[None]:
        """Return a Deferred that fires when the current phase ends."""
        done: Deferred[None] = Deferred()
        self._waiting.append(done)
        return done


class JournalRewriter:
    """The rewriter of one queue's files. It makes one replacement at a time."""

    def __init__(self, queue: JournalQueue, resources: FolderResources) -> None:
        self._queue = queue
        self._resources = resources
        self._active: _ActiveRewrite | None = None

    @property
    def is_running(self) -> bool:
        """True if a replacement is in progress."""
        return self._active is not None

    @property
    def is_publishing(self) -> bool:
        """True if a thread is renaming the queue's files."""
        return self._active is not None and self._active.phase is RewritePhase.PUBLISHING

    def published(self) -> Deferred[None]:
        """Return a Deferred that fires when no thread is renaming the queue's files."""
        return self._active.next_phase() if self._active is not None and self.is_publishing else succeed(None)

    def stop(self) -> Deferred[None]:
        """Stop the replacement in progress. Return a Deferred that fires when no thread works on it."""
        rewrite = self._active
        if rewrite is None:
            return succeed(None)
        rewrite.is_stopped = True
        if rewrite.phase in (RewritePhase.WRITING, RewritePhase.PUBLISHING):
            return rewrite.next_phase()
        self._active = None
        return succeed(None)

    def stop_unless_urgent(self) -> None:
        """Stop the replacement in progress, unless it is urgent."""
        if self._active is not None and not self._active.is_urgent:
            self.stop()

    async def replace(
        self,
        replacement: ReplacementRecords,
        *,
        before_publishing: Callable[[], Awaitable[None]] | None = None,
        is_urgent: bool = False,
    ) -> None:
        """Write the new file, wait for `before_publishing`, and replace the older files by the new one.

        Raise `WriteStopped`, OSError, or the error of `before_publishing` if the files are unchanged. Raise
        `PublishIncomplete` if the new file is valid but the queue must be reopened. An urgent replacement does not wait
        for those of other queues.
        """
        rewrite = self._active = _ActiveRewrite(is_urgent)
        slots = self._resources.rewrite_slots
        if not is_urgent:
            await slots.acquire()
        try:
            self._enter(rewrite, RewritePhase.WRITING)
            await self._in_thread(self._write, replacement, replacement, lambda: rewrite.is_stopped)
            rewrite.enter(RewritePhase.WRITTEN)
            try:
                if before_publishing is not None:
                    await before_publishing()
                self._enter(rewrite, RewritePhase.PUBLISHING)
            except BaseException:
                self._erase(temporary_name(self._queue.name, replacement.boundary.number))
                raise
            await self._publish(rewrite, replacement)
        finally:
            if not is_urgent:
                slots.release()
            rewrite.enter(RewritePhase.OVER)
            if self._active is rewrite:
                self._active = None

    def _enter(self, rewrite: _ActiveRewrite, phase: RewritePhase) -> None:
        if rewrite.is_stopped:
            raise WriteStopped
        rewrite.enter(phase)

    def _in_thread(self, function: Callable[..., Any], replacement: ReplacementRecords, *args: object) -> Deferred[Any]:
        resources = self._resources
        number = replacement.boundary.number
        return resources.jobs.run(function, resources.disk, resources.folder, self._queue.name, number, *args)

    def _write(
        self,
        disk: Disk,
        folder: bytes,
        queue: bytes,
        number: int,
        replacement: ReplacementRecords,
        is_stopped: Callable[[], bool],
    ) -> None:
        runs = replacement.runs(disk, folder, self._queue.history.rotated_up_to(number))
        write_temporary(disk, folder, queue, number, runs, replacement.most_bytes(), is_stopped)

    async def _publish(self, rewrite: _ActiveRewrite, replacement: ReplacementRecords) -> None:
        queue, number = self._queue, replacement.boundary.number
        replaced = [span.file_name for span in queue.history.rotated_up_to(number)]
        try:
            unneeded = await self._in_thread(publish, replacement, replaced, replacement.size)
        except OSError:
            if not queue.is_deleted:
                self._erase(temporary_name(queue.name, number))
                raise
            unneeded = [pack_name(queue.name, number)]
        if queue.is_deleted:
            # The deletion may have missed the file that was renamed meanwhile.
            unneeded.append(rotated_name(queue.name, number))
        elif queue.failure is None:
            queue.replaced(replacement)
        for name in unneeded:
            self._erase(name)

    def _erase(self, name: bytes) -> None:
        self._resources.erase_later(self._resources.disk.erase, self._resources.path(name))


class JournalSyncScheduler(SyncScheduler):
    """The scheduler of the syncs of one queue. It calls `on_synced` after each successful sync."""

    def __init__(
        self, queue: JournalQueue, resources: FolderResources, rewriter: JournalRewriter, on_synced: Callable[[], None]
    ) -> None:
        super().__init__(queue, queue.writer, current_name(queue.name), resources, on_synced)
        self._queue = queue
        self._rewriter = rewriter

    def end(self) -> None:
        """End a rewrite that waits for a commit, because the queue has ended."""
        fire_all(self._commits)

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
        queue.writer.acknowledged_size = queue.writer.size
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
        # The new file must have whole commits, because the changes of a failed commit must not return. So the commits
        # until now write to the old file, and the rewrite begins when no change is recorded, or in the next commit.
        fire_all(self._blocked, value=False)
        if queue.has_uncommitted and not self._waiting:
            await self._wait(self._commits)
        queue.check()
        writer, acknowledged_size, number = queue.writer, queue.writer.acknowledged_size, None
        try:
            if self._pending_error is not None or (queue.has_uncommitted and not self._blocked):
                # The files of an incomplete pack must be loaded first. Changes whose commit begins only after the one
                # that waits for this rewrite must not be written.
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            records = queue.take_pending()
            self._rewritten, self._blocked = self._blocked, []
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
