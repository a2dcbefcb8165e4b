"""The scheduler of syncs and rewrites of a scroll's files.

Either a sync or a rewrite runs for a journal, never both. Reader files are compacted between syncs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure

from kestrel.errors import QueueFailed
from kestrel.storage.failures import error_of, reason_of
from kestrel.storage.log.sync_scheduler import RETRY_S, SyncScheduler, SyncState
from kestrel.storage.scroll.journal import ScrollJournal
from kestrel.storage.scroll.queue import ScrollQueue
from kestrel.storage.scroll.rewriter import ScrollRewriter
from kestrel.storage.scroll.scroll_resources import ScrollResources
from kestrel.storage.scroll.synced_files import ScrollSyncedFiles

log = Logger(__name__)


class ScrollSyncScheduler(SyncScheduler):
    """The scheduler of syncs and rewrites of one journal. It calls `on_safe` when more data have become durable."""

    def __init__(self, journal: ScrollJournal, resources: ScrollResources, on_safe: Callable[[], None]) -> None:
        self._journal = journal
        self._journal_files = ScrollSyncedFiles(journal, resources)
        self._rewriter = ScrollRewriter(journal, resources)
        self._not_before_s = 0.0
        """Time before which no reader file is compacted, because the last attempt failed."""
        super().__init__(journal, self._journal_files, journal.stem, resources, on_safe)

    # Calls of the storage.

    def written(self, queues: Sequence[ScrollQueue]) -> Deferred[None] | None:
        """Begin or schedule a sync after a write of the changes of `queues`, as syncJournal requires.

        Return None if the changes are as durable as syncJournal requires. Otherwise return a Deferred that fires when
        they are synced, or fails with `QueueFailed` if the queues have failed.
        """
        journal, files = self._journal, self._journal_files
        self._rewriter.note_growth(queues)
        period_ms = journal.sync_period_ms
        done: Deferred[None] | None = None
        if period_ms is not None and not files.is_synced:
            self._note_write()
        if period_ms == 0:
            if not files.is_safe(queues):
                is_covered = files.is_covered(self._scope, queues)
                done = self._wait(self._syncing) if is_covered else self._wait_for_sync(self._waiting)
        else:
            journal.acknowledge(queues)
            journal.safe_id = journal.written_id
            self.settings_changed()
            self._on_synced()
        self.start_due_work()
        return done

    def checkpoint(self, queues: Sequence[ScrollQueue]) -> None:
        """Compact the reader files that have grown or do not record their readers' current state."""
        self._rewriter.note_checkpoint(queues)
        self.start_due_work()

    def when_writable(self) -> Deferred[None] | None:
        """Return None if a commit may write now, or a Deferred that fires when it may.

        The Deferred fails with `QueueFailed` if the queues fail. If an error is pending, fail the queues and raise
        `QueueFailed`.
        """
        # With syncJournal 0, a reader file can be compacted only when it is completely synced. So commits wait.
        is_next = self.state is SyncState.SYNCING and self._rewriter.has_grown and self._journal.sync_period_ms == 0
        return self._wait(self._blocked) if is_next else super().when_writable()

    def sync_at_close(self) -> Deferred[Any]:
        """Make the last sync, if syncJournal requires one, and answer all waiting commits."""
        if self._journal.sync_period_ms is None or self._files.is_synced:
            self._fire_waiting(None)
            return succeed(None)
        return super().sync_at_close()

    def end(self, failure: QueueFailed | None) -> None:
        """Stop all work because the journal's queues failed with `failure`, or were deleted if it is None."""
        self._journal.failure = "the queue was deleted" if failure is None else str(failure)
        self._failure = failure
        self._resources.jobs.cancel(self._timer)
        self._fire_waiting(failure)

    # Rewrites.

    async def _rewrite(self) -> None:
        journal = self._journal
        if journal.unsynced:
            journal.rotate()
        queues = [queue for queue in journal.unsynced_readers if not queue.is_deleted]
        await self._rewriter.write_anew(list(journal.unsynced), queues, is_exact=True)
        if journal.failure is None:
            journal.safe_id = journal.written_id
            self._on_synced()

    def _begin_compaction(self) -> bool:
        """Begin to compact the reader files that have grown. Return False if there are none, or they must wait."""
        is_late = self._resources.jobs.seconds() >= self._not_before_s
        may_begin = self._journal.sync_period_ms != 0 or self._files.is_synced
        if not (self._rewriter.has_grown and is_late and may_begin):
            return False
        self.state = SyncState.REWRITING
        queues = self._rewriter.take_grown()
        Deferred.fromCoroutine(self._rewriter.write_anew([], queues, is_exact=False)).addCallbacks(
            self._compacted, self._not_compacted, errbackArgs=(queues,)
        )
        return True

    def _compacted(self, _: object) -> None:
        self.state = SyncState.IDLE
        if self._journal.failure is not None:
            self._fire_waiting(self._failure)
            return
        self._on_synced()
        self._resume_blocked()
        self.start_due_work()

    def _not_compacted(self, failure: Failure, queues: Sequence[ScrollQueue]) -> None:
        self.state = SyncState.IDLE
        if self._journal.failure is not None:
            self._fire_waiting(self._failure)
            return
        reason = reason_of(error_of(failure))
        log.error(
            "The reader files of scroll {stem!r} are not rewritten: {reason}", stem=self._journal.stem, reason=reason
        )
        self._not_before_s = self._resources.jobs.seconds() + RETRY_S
        for queue in queues:
            queue.give_up_checkpoint()
        self._resume_blocked()
        self.start_due_work()
