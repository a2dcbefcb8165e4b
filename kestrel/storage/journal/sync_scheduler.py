"""When the journal of a queue is synced, and what becomes of the queue when that fails.

Never two syncs of one queue at a time: if one fails, a second that overlaps it or follows it on the same file would
succeed and mean nothing. So a failed sync ends the file. If nobody has been told that what it held beyond the last
sync is kept (syncJournal 0), those records are given up and the queue is replayed. Else, or where the file was only
loaded, the queue's contents, which are in memory, are written to a new file; until that is safe the queue takes no
put and its replies wait.
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
    """Where the syncs of one queue stand.

    From IDLE or DUE a sync begins (SYNCING) and ends in IDLE, or DUE if more was written meanwhile. One that fails
    kills the queue, or leads to MENDING: its contents are written anew. From there it is IDLE, or dead; DOOMED is
    dead as soon as there is a commit that can be told.
    """

    IDLE = "idle"
    DUE = "due"
    SYNCING = "syncing"
    REWRITING = "rewriting"
    FAILING = "failing"


class JournalSyncScheduler:
    """The syncs of one queue. `on_synced` is called after each that worked."""

    def __init__(
        self, queue: JournalQueue, resources: FolderResources, rewriter: JournalRewriter, on_synced: Callable[[], None]
    ) -> None:
        self._queue = queue
        self._resources = resources
        self._rewriter = rewriter
        self._on_synced = on_synced
        self._timer: IDelayedCall | None = None
        self._waiting: list[Deferred[None]] = []
        """Commits whose records are written and not synced."""
        self._blocked: list[Deferred[None]] = []
        """Commits that may not write before the mending is done."""
        self._packs: list[Deferred[None]] = []
        """Packs that must not be published before all that is written is synced."""
        self._pending_error: Exception | None = None
        self._unsynced_since_s: float | None = None
        """When the first record was written that a sync will make safe, and none has."""
        self.state = JournalSyncState.IDLE

    # What the storage tells.

    def written(self) -> Deferred[None] | None:
        """Records were written: None if they are as safe now as was promised, else fires when they are synced.

        Fails with `QueueFailed`, the queue then being dead.
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
        """Sync at once, whatever syncJournal is; fires when all that is written now is safe.

        Fails with `QueueFailed` when the queue is dead, or will be by the next commit.
        """
        if self._pending_error is not None:
            return fail(QueueFailed(reason_of(self._pending_error)))
        return succeed(None) if self._queue.writer.is_synced else self._wait_for_sync(self._packs)

    def _wait_for_sync(self, waiters: list[Deferred[None]]) -> Deferred[None]:
        done: Deferred[None] = Deferred()
        waiters.append(done)
        if self.state in (JournalSyncState.IDLE, JournalSyncState.DUE):
            self._begin()
        return done

    def settings_changed(self) -> None:
        """syncJournal may be another, or the queue was loaded: what is not synced is due accordingly."""
        period_ms = self._queue.settings.sync_journal_ms
        if period_ms is not None and not self._queue.writer.is_synced:
            self._schedule_within(period_ms / 1000)

    def when_writable(self) -> Deferred[None] | None:
        """None if a commit may write now; else fires when it may, or fails with `QueueFailed`."""
        if self.state is JournalSyncState.REWRITING:
            held: Deferred[None] = Deferred()
            self._blocked.append(held)
            return held
        if self._pending_error is not None:
            raise self._resources.kill(self._queue, self._pending_error)
        return None

    def sync_at_close(self) -> Deferred[Any]:
        """A sync at the stop, when nothing else runs; fails with the OSError."""
        return self._resources.sync_slots.run(self._run) if self._pending_error is None else fail(self._pending_error)

    def fail_next_commit(self, error: Exception) -> None:
        """The queue cannot go on: it is dead as soon as there is a commit that can be told.

        Else what was recorded since the last one would be answered as if nothing had been.
        """
        self.state, self._pending_error = JournalSyncState.FAILING, error
        self._queue.refusal = None  # a put is recorded, so that there is such a commit
        packs, self._packs = self._packs, []
        for done in packs:
            done.errback(QueueFailed(reason_of(error)))

    # One sync.

    def _schedule_within(self, seconds: float) -> None:
        if self.state not in (JournalSyncState.IDLE, JournalSyncState.DUE):
            return  # it is looked at again when that is over
        self.state = JournalSyncState.DUE
        self._timer = self._resources.jobs.within(seconds, self._timer, self._begin)

    def _begin(self) -> None:
        self._resources.jobs.cancel(self._timer)
        self._timer = None
        if self._queue.failure is not None:
            self._fire_waiting(None)
            return
        self.state = JournalSyncState.SYNCING
        commits, self._waiting = self._waiting, []
        packs, self._packs = self._packs, []
        since_s, self._unsynced_since_s = self._unsynced_since_s, None
        self._resources.sync_slots.run(self._run).addCallbacks(
            self._synced, self._failed, callbackArgs=(commits, packs, since_s), errbackArgs=(commits, packs)
        )

    def _run(self) -> Deferred[Sync | None]:
        writer = self._queue.writer
        if self._queue.failure is not None:
            return succeed(None)
        try:
            sync = writer.begin_sync()
        except OSError as error:
            raise CannotOpen(str(error)) from error
        return self._resources.jobs.run(self._sync, writer, sync).addCallback(lambda _: sync)

    def _sync(self, writer: JournalWriter, sync: Sync) -> None:
        """Runs in a thread."""
        try:
            writer.run_sync(sync)
        except OSError:
            self._resources.failed_syncs.add(current_name(self._queue.name))
            raise

    def _synced(
        self, sync: Sync | None, commits: list[Deferred[None]], packs: list[Deferred[None]], since_s: float | None
    ) -> None:
        queue = self._queue
        if sync is not None and since_s is not None:
            self._resources.record_duration(queue.name, "fsync_delay_usec", since_s)
        self.state = JournalSyncState.IDLE if self._pending_error is None else JournalSyncState.FAILING
        if sync is not None:
            queue.writer.synced(sync)
        if queue.failure is None:
            self._on_synced()
        for done in commits + packs:
            done.callback(None)
        if self._waiting or self._packs:
            self._begin()
        elif queue.failure is None and self.state is JournalSyncState.IDLE:
            self.settings_changed()

    def _failed(self, failure: Failure, commits: list[Deferred[None]], packs: list[Deferred[None]]) -> None:
        queue = self._queue
        self._waiting, self._packs = commits + self._waiting, packs + self._packs
        self.state = JournalSyncState.IDLE if self._pending_error is None else JournalSyncState.FAILING
        if queue.failure is not None:
            self._fire_waiting(None)  # deleted meanwhile: there is nothing left to be safe
        elif failure.check(CannotOpen):
            log.error("No file can be opened to sync queue {queue!r}: {reason}", queue=queue.name, reason=failure.value)
            self._schedule_within(RETRY_S)
        elif queue.writer.needs_sync:
            self._begin_rewrite(error_of(failure))
        else:
            queue.writer.sync_failed()
            self._fail_queue(error_of(failure))

    def _fail_queue(self, error: Exception) -> None:
        """A queue dies in a commit: of those that wait, or of the next."""
        if self._waiting or self._blocked:
            self._fire_waiting(self._resources.kill(self._queue, error))
        else:
            self.fail_next_commit(error)

    # The contents written anew.

    def rewrite_after_load(self) -> None:
        """The queue was loaded from files of which a sync has failed: another one of them would mean nothing."""
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
                writer.append(records)
            end = queue.rotate(queue.boundary(), is_kept=False)
            number = end.number
            await self._rewriter.replace(queue.replacement(end), is_urgent=True)
        except PublishIncomplete as error:  # what was to be safe is
            self._pending_error = error
        except Exception:
            if queue.failure is None:  # of what was pending nobody will be told that it is kept
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
        """Nothing is under way any more; whoever waited may go on, or has failed."""
        self.state = JournalSyncState.IDLE
        waiting = self._waiting + self._blocked + self._packs
        self._waiting, self._blocked, self._packs = [], [], []
        for done in waiting:
            done.callback(None) if failure is None else done.errback(failure)
