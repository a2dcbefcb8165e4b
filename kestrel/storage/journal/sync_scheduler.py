"""The scheduler of a queue's syncs, which also handles a failed sync.

A queue has at most one sync at a time. After a failed sync, a second sync of the same file could succeed although
records are lost. So the server stops using the file. If no client was told that its unsynced records are safe
(syncJournal 0), these records are discarded and the queue is replayed. Otherwise the queue is rewritten to a new file.
A queue that was loaded from the file is rewritten too. Until the new file is synced, the queue refuses puts and its
replies wait.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from enum import Enum
from typing import Any, Final

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from kestrel.errors import QueueFailed
from kestrel.journal.fileset import current_name
from kestrel.journal.pack import PublishIncomplete
from kestrel.journal.writer import JournalWriter, Sync
from kestrel.storage.failures import CannotOpen, error_of, reason_of
from kestrel.storage.folder_resources import FolderResources
from kestrel.storage.journal.queue import JournalQueue
from kestrel.storage.journal.rewriter import JournalRewriter

log = Logger(__name__)

RETRY_S: Final = 1.0


class JournalSyncState(Enum):
    """The state of the syncs of one queue.

    A sync begins in IDLE or DUE. If it fails, the queue fails or enters REWRITING. A rewrite ends in IDLE, or the queue
    fails.
    """

    IDLE = "idle"
    """No sync is scheduled."""
    DUE = "due"
    """A timer is set for the next sync."""
    SYNCING = "syncing"
    """A sync is running, or waits for a slot."""
    REWRITING = "rewriting"
    """The queue is being rewritten after a failed sync. Its commits wait."""
    FAILING = "failing"
    """The file must not be synced again, and no commit waits. The queue fails at its next commit."""


class JournalSyncScheduler:
    """The scheduler of the syncs of one queue. It calls `on_synced` after each successful sync."""

    def __init__(
        self, queue: JournalQueue, resources: FolderResources, rewriter: JournalRewriter, on_synced: Callable[[], None]
    ) -> None:
        self._queue = queue
        self._resources = resources
        self._rewriter = rewriter
        self._on_synced = on_synced
        self._timer: IDelayedCall | None = None
        self._waiting: list[Deferred[None]] = []
        """Deferreds of commits whose records are written but not synced."""
        self._blocked: list[Deferred[None]] = []
        """Deferreds of commits that must not write before the rewrite has ended."""
        self._packs: list[Deferred[None]] = []
        """Deferreds of packs that must not be published before all written records are synced."""
        self._pending_error: Exception | None = None
        """Error that makes the queue fail at its next commit, or None."""
        self._has_written_next = False
        """True if a rewrite has written changes of a commit that had not begun. That commit must succeed."""
        self._unsynced_since_s: float | None = None
        """Time of the first write since the last sync began, or None."""
        self.state = JournalSyncState.IDLE

    # Calls of the storage.

    def written(self) -> Deferred[None] | None:
        """Begin or schedule the sync of the records just written, as syncJournal requires.

        Return None if the reply need not wait for it. Otherwise return a Deferred that fires when the records are
        synced, or fails with `QueueFailed` if the queue has failed.
        """
        queue = self._queue
        period_ms = queue.settings.sync_journal_ms
        if period_ms == 0 and queue.writer.is_synced:
            return None
        if self._unsynced_since_s is None and period_ms is not None:
            self._unsynced_since_s = self._resources.jobs.seconds()
        if period_ms == 0:
            return self._wait_for_sync(self._waiting)
        queue.writer.acknowledge()
        self.settings_changed()
        return None

    def sync_for_pack(self) -> Deferred[None]:
        """Sync now, whatever syncJournal is. Return a Deferred that fires when all records written so far are synced.

        It fails with `QueueFailed` if the queue has failed, or will fail at its next commit.
        """
        if self._pending_error is not None:
            return fail(QueueFailed(reason_of(self._pending_error)))
        return succeed(None) if self._queue.writer.is_synced else self._wait_for_sync(self._packs)

    def _wait_for_sync(self, waiters: list[Deferred[None]]) -> Deferred[None]:
        """Append a Deferred to `waiters` and return it. Begin a sync if the state allows it."""
        done: Deferred[None] = Deferred()
        waiters.append(done)
        if self.state in (JournalSyncState.IDLE, JournalSyncState.DUE):
            self._begin_sync()
        return done

    def settings_changed(self) -> None:
        """Schedule the sync of unsynced records, after a change of syncJournal or after a load."""
        period_ms = self._queue.settings.sync_journal_ms
        if period_ms is not None and not self._queue.writer.is_synced:
            self._schedule_within(period_ms / 1000)

    def when_writable(self) -> Deferred[None] | None:
        """Return None if a commit may write now, or a Deferred that fires when the rewrite has ended.

        The Deferred fails with `QueueFailed` if the queue fails meanwhile. If an error is pending, fail the queue and
        raise `QueueFailed`.
        """
        if self.state is JournalSyncState.REWRITING:
            done: Deferred[None] = Deferred()
            self._blocked.append(done)
            return done
        if self._pending_error is not None and not self._has_written_next:
            raise self._resources.kill(self._queue, self._pending_error)
        self._has_written_next = False
        return None

    def sync_at_close(self) -> Deferred[Any]:
        """Sync at the stop, when nothing else runs. The Deferred fails with the error of the sync."""
        return (
            self._resources.sync_slots.run(self._sync_in_thread)
            if self._pending_error is None
            else fail(self._pending_error)
        )

    def fail_next_commit(self, error: Exception) -> None:
        """Make the queue fail at its next commit, so that the changes recorded until then are answered with `error`.

        If a rewrite has written changes of that commit, the queue fails at the one after it.
        """
        self._pending_error = error
        # An accepted put leads to a commit, which reports the error.
        self._queue.refusal = None
        packs, self._packs = self._packs, []
        for done in packs:
            done.errback(QueueFailed(reason_of(error)))

    # Syncs.

    def _schedule_within(self, seconds: float) -> None:
        if self.state not in (JournalSyncState.IDLE, JournalSyncState.DUE):
            # The end of the sync or rewrite schedules the next sync.
            return
        self.state = JournalSyncState.DUE
        self._timer = self._resources.jobs.within(seconds, self._timer, self._begin_sync)

    def _begin_sync(self) -> None:
        self._resources.jobs.cancel(self._timer)
        self._timer = None
        if self._queue.failure is not None:
            self._fire_waiting(None)
            return
        self.state = JournalSyncState.SYNCING
        commits, self._waiting = self._waiting, []
        packs, self._packs = self._packs, []
        since_s, self._unsynced_since_s = self._unsynced_since_s, None
        self._resources.sync_slots.run(self._sync_in_thread).addCallbacks(
            self._sync_succeeded,
            self._sync_failed,
            callbackArgs=(commits, packs, since_s),
            errbackArgs=(commits, packs),
        )

    def _sync_in_thread(self) -> Deferred[Sync | None]:
        """Sync all written records in a thread. Its result is its scope, or None if the queue has failed."""
        writer = self._queue.writer
        if self._queue.failure is not None:
            return succeed(None)
        try:
            sync = writer.begin_sync()
        except OSError as error:
            raise CannotOpen(str(error)) from error
        return self._resources.jobs.run(self._run_sync, writer, sync).addCallback(lambda _: sync)

    def _run_sync(self, writer: JournalWriter, sync: Sync) -> None:
        """Run `sync`, and note a failure for the next process. Runs in a thread."""
        try:
            writer.run_sync(sync)
        except OSError:
            self._resources.failed_syncs.add(current_name(self._queue.name))
            raise

    def _sync_succeeded(
        self, sync: Sync | None, commits: list[Deferred[None]], packs: list[Deferred[None]], since_s: float | None
    ) -> None:
        queue = self._queue
        if sync is not None and since_s is not None:
            self._resources.record_duration(queue.name, "fsync_delay_usec", since_s)
        self.state = JournalSyncState.IDLE
        if sync is not None:
            queue.writer.synced(sync)
        if queue.failure is None:
            self._on_synced()
        for done in commits + packs:
            done.callback(None)
        if self._waiting or self._packs:
            self._begin_sync()
        elif queue.failure is None:
            self.settings_changed()

    def _sync_failed(self, failure: Failure, commits: list[Deferred[None]], packs: list[Deferred[None]]) -> None:
        queue = self._queue
        self._waiting, self._packs = commits + self._waiting, packs + self._packs
        self.state = JournalSyncState.IDLE
        if queue.failure is not None:
            # The queue was deleted or has failed meanwhile: nothing is left to sync.
            self._fire_waiting(None)
        elif failure.check(CannotOpen):
            log.error("No file can be opened to sync queue {queue!r}: {reason}", queue=queue.name, reason=failure.value)
            self._schedule_within(RETRY_S)
        elif queue.writer.needs_sync:
            self._begin_rewrite(error_of(failure))
        else:
            queue.writer.sync_failed()
            self._fail_queue(error_of(failure))

    def _fail_queue(self, error: Exception) -> None:
        """Fail the queue in the commits that wait, or in its next commit if none waits."""
        if self._waiting or self._blocked:
            self._fire_waiting(self._resources.kill(self._queue, error))
        else:
            self.state = JournalSyncState.FAILING
            self.fail_next_commit(error)

    # Rewrites after a failed sync.

    def rewrite_after_load(self) -> None:
        """Rewrite a queue that was loaded from files that failed to sync. Another sync of them would prove nothing."""
        self._begin_rewrite(OSError(errno.EIO, "its files failed to sync"))

    def _begin_rewrite(self, error: Exception) -> None:
        log.error(
            "The journal of {queue!r} failed to sync ({reason}): rewriting it",
            queue=self._queue.name,
            reason=reason_of(error),
        )
        self._queue.refusal = f"queue storage failed: {reason_of(error)}; the queue is being rewritten"
        self.state = JournalSyncState.REWRITING
        Deferred.fromCoroutine(self._rewrite()).addCallbacks(self._rewrite_succeeded, self._rewrite_failed)

    async def _rewrite(self) -> None:
        queue = self._queue
        await self._rewriter.stop()
        queue.check()
        writer, acknowledged_size, number = queue.writer, queue.writer.acknowledged_size, None
        try:
            records = queue.take_pending()
            if records:
                self._has_written_next = True
                writer.append(records)
            end = queue.rotate(queue.boundary(), is_kept=False)
            number = end.number
            await self._rewriter.replace(queue.replacement(end), is_urgent=True)
        except PublishIncomplete as error:
            # The new file is synced and valid, so the waiting commits have succeeded.
            self._pending_error = error
        except Exception:
            # The commits that wait are answered with an error, so their records must not return.
            self._has_written_next = False
            if queue.failure is None:
                writer.truncate_to(acknowledged_size, number)
            raise
        queue.check()

    def _rewrite_succeeded(self, _: object) -> None:
        self._queue.refusal = None
        self._resources.failed_syncs.discard(current_name(self._queue.name))
        log.info("The journal of {queue!r} is rewritten and safe", queue=self._queue.name)
        self._fire_waiting(None)
        if self._pending_error is not None:
            self.fail_next_commit(self._pending_error)

    def _rewrite_failed(self, failure: Failure) -> None:
        if self._queue.failure is not None:
            self._fire_waiting(None)
        else:
            self._fail_queue(error_of(failure))

    def _fire_waiting(self, failure: QueueFailed | None) -> None:
        """Return to IDLE and fire all Deferreds that wait, with `failure` if there is one."""
        self.state = JournalSyncState.IDLE
        waiting = self._waiting + self._blocked + self._packs
        self._waiting, self._blocked, self._packs = [], [], []
        for done in waiting:
            done.callback(None) if failure is None else done.errback(failure)
