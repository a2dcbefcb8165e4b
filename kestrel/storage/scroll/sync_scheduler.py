"""Scheduling of syncs and rewrites of a scroll's files, and the handling of failed syncs.

Either a sync or a rewrite runs for a journal, never both. Appends may run during a sync. After a failed sync, a second
sync of the same file proves nothing. If no unsynced data have been acknowledged (syncJournal 0), the queues fail and
are reopened with the synced data. Otherwise the unsynced files are replaced by synced copies. Until that is done,
commits wait and puts are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from kestrel.disk.files import Disk
from kestrel.errors import QueueFailed
from kestrel.scroll.writer_file import WriterFile
from kestrel.storage.failures import CannotOpen, error_of, reason_of
from kestrel.storage.scroll.journal import ScrollJournal
from kestrel.storage.scroll.queue import ScrollQueue
from kestrel.storage.scroll.rewriter import ScrollRewriter
from kestrel.storage.scroll.scroll_resources import ScrollResources

log = Logger(__name__)

RETRY_S: Final = 1.0

# A reader file is compacted when it exceeds one of these sizes and is twice as large as after its last rewrite.

COMPACTED_BYTES: Final = 4096
"""Size that is checked at each checkpoint."""

LARGEST_BYTES: Final = 1 << 20
"""Size that is checked after each write."""

COMPACTED_ON_A_FULL_DISK: Final = 512
"""Size that is checked after each write on a full disk, so that gets and confirms do not run out of space."""


class ScrollSyncState(Enum):
    """The current work on the files of one journal.

    A sync begins in IDLE or DUE. It is SYNCING, and ends in IDLE, or in DUE if more was written meanwhile. A failed
    sync fails the queues or leads to REWRITING. A reader file that has grown also leads to REWRITING, which ends in
    IDLE or fails the queues.
    """

    IDLE = "idle"
    DUE = "due"
    SYNCING = "syncing"
    REWRITING = "rewriting"


class _Part(NamedTuple):
    """A file that a sync covers, up to `size`.

    `done_id` is the queue's `written_done_id`, and 0 for a writer file. `descriptor` is None for a file that the sync
    must open.
    """

    owner: WriterFile | ScrollQueue
    path: bytes
    size: int
    done_id: int
    descriptor: int | None


class _Sync(NamedTuple):
    """The files, the last item and the number of names that one sync covers."""

    parts: Sequence[_Part]
    written_id: int
    names: int
    syncs_folder: bool


class ScrollSyncScheduler:
    """The scheduler for syncs and rewrites of one journal. It calls `on_safe` when more data have become durable."""

    def __init__(self, journal: ScrollJournal, resources: ScrollResources, on_safe: Callable[[], None]) -> None:
        self._journal = journal
        self._resources = resources
        self._on_safe = on_safe
        self._rewriter = ScrollRewriter(journal, resources)
        self._timer: IDelayedCall | None = None
        self._waiting: list[Deferred[None]] = []
        """Commits whose records are written but not synced."""
        self._under_way: tuple[_Sync, list[Deferred[None]]] | None = None
        """The running sync, and the commits that it will complete."""
        self._blocked: list[Deferred[None]] = []
        """Commits that must wait for a rewrite before they write."""
        self._grown: dict[ScrollQueue, None] = {}
        """Readers whose files must be compacted, in order. The values are unused."""
        self.pending_error: Exception | None = None
        """Error that the next commit reports and that then fails the queues, or None."""
        self._not_before_s = 0.0
        """Time before which no reader file is compacted, because the last attempt failed."""
        self._unsynced_since_s: float | None = None
        """Time when the oldest unsynced record was written, or None."""
        self._failure: QueueFailed | None = None
        """Failure of the journal's queues. None if they are live, or were deleted."""
        self._is_over = False
        """True if the journal's queues have failed or were deleted."""
        self.state = ScrollSyncState.IDLE

    # Calls from the storage.

    def written(self, queues: Sequence[ScrollQueue]) -> Deferred[None] | None:
        """Arrange a sync after a write of the changes of `queues`.

        Return None if the changes are as durable as syncJournal requires. Otherwise return a Deferred that fires when
        they are synced, or fails with `QueueFailed` if the queues have failed.
        """
        for queue in queues:
            least = COMPACTED_ON_A_FULL_DISK if self._resources.is_disk_full() else LARGEST_BYTES
            if queue.file.size > max(least, 2 * queue.compacted_bytes):
                self._grown[queue] = None
        period_ms = self._journal.sync_period_ms
        done: Deferred[None] | None = None
        if self._unsynced_since_s is None and period_ms is not None and not self.is_synced:
            self._unsynced_since_s = self._resources.jobs.seconds()
        if period_ms == 0:
            if not self._is_safe(queues):
                done = Deferred()
                if self._under_way is not None and self._is_covered(self._under_way[0], queues):
                    self._under_way[1].append(done)
                else:
                    self._waiting.append(done)
                    if self.state in (ScrollSyncState.IDLE, ScrollSyncState.DUE):
                        self._begin()
        else:
            self._journal.acknowledge(queues)
            self._journal.safe_id = self._journal.written_id
            self.settings_changed()
            self._on_safe()
        self.start_due_work()
        return done

    def checkpoint(self, queues: Sequence[ScrollQueue]) -> None:
        """Schedule a rewrite of the reader files that have grown or do not record their readers' current state."""
        for queue in queues:
            if not queue.file.size:
                continue  # the file is being created
            if queue.has_changes or queue.file.size > max(COMPACTED_BYTES, 2 * queue.compacted_bytes):
                self._grown[queue] = None

    @property
    def is_synced(self) -> bool:
        """True if all written data and all file names are synced."""
        journal = self._journal
        return not (journal.unsynced or journal.unsynced_readers) and journal.has_synced_names

    def _is_safe(self, queues: Sequence[ScrollQueue]) -> bool:
        """Return whether all changes of `queues` are synced, regardless of other queues of the journal.

        So all queues that share an item report the same result.
        """
        journal = self._journal
        return journal.has_synced_names and all(
            queue.last_id <= journal.safe_id and queue not in journal.unsynced_readers for queue in queues
        )

    def _is_covered(self, sync: _Sync, queues: Sequence[ScrollQueue]) -> bool:
        """Return whether all written changes of `queues` will be synced when `sync` is done."""
        journal = self._journal
        if sync.names != journal.names:
            return False
        files = {id(part.owner): part.size for part in sync.parts}
        return all(
            queue.last_id <= max(journal.safe_id, sync.written_id)
            and (queue not in journal.unsynced_readers or files.get(id(queue)) == queue.file.size)
            for queue in queues
        )

    def settings_changed(self) -> None:
        """Schedule a sync of unsynced data. Called when syncJournal may have changed or the journal was loaded."""
        period_ms = self._journal.sync_period_ms
        if period_ms is not None and not self.is_synced:
            self._schedule_within(period_ms / 1000)

    def when_writable(self) -> Deferred[None] | None:
        """Return None if a commit may write now, or a Deferred that fires when it may.

        The Deferred fails with `QueueFailed` if the queues fail. If an earlier error is pending, fail the queues and
        raise `QueueFailed`.
        """
        if self.pending_error is not None:
            raise self._resources.kill(self._journal, self.pending_error)
        # With syncJournal 0, a reader file can be compacted only when it is completely synced. So commits wait.
        is_next = self.state is ScrollSyncState.SYNCING and bool(self._grown) and self._journal.sync_period_ms == 0
        if self.state is not ScrollSyncState.REWRITING and not is_next:
            return None
        blocked: Deferred[None] = Deferred()
        self._blocked.append(blocked)
        return blocked

    def sync_at_close(self) -> Deferred[Any]:
        """Make the last sync, when no other work runs, and answer all waiting commits.

        Return a Deferred that fires when it is done, or fails with the OSError.
        """
        is_done = self._journal.sync_period_ms is None or self.is_synced
        syncing: Deferred[Any] = succeed(None) if is_done else self._resources.sync_slots.run(self._run, [])
        return syncing.addCallbacks(lambda _: self._fire_waiting(None), self._sync_at_close_failed)

    def _sync_at_close_failed(self, failure: Failure) -> Failure:
        self._fire_waiting(QueueFailed(f"queue storage failed: {reason_of(error_of(failure))}"))
        return failure

    def end(self, failure: QueueFailed | None) -> None:
        """Stop all work because the journal's queues failed with `failure`, or were deleted if it is None."""
        self._is_over, self._failure = True, failure
        self._rewriter.is_over = True
        self._resources.jobs.cancel(self._timer)
        self._fire_waiting(failure)

    # One sync.

    def _schedule_within(self, seconds: float) -> None:
        """Start a sync after `seconds`, or earlier if one is already due."""
        if self.state not in (ScrollSyncState.IDLE, ScrollSyncState.DUE):
            return  # start_due_work schedules it when the current work is done
        self.state = ScrollSyncState.DUE
        self._timer = self._resources.jobs.within(seconds, self._timer, self._begin)

    def _begin(self) -> None:
        """Start a sync of all unsynced data, unless a rewrite runs."""
        self._resources.jobs.cancel(self._timer)
        self._timer = None
        if self._is_over or self.state is ScrollSyncState.REWRITING:
            return
        self.state = ScrollSyncState.SYNCING
        commits, self._waiting = self._waiting, []
        since_s, self._unsynced_since_s = self._unsynced_since_s, None
        self._resources.sync_slots.run(self._run, commits).addCallbacks(
            self._synced, self._failed, callbackArgs=(commits, since_s), errbackArgs=(commits,)
        )

    def _run(self, commits: list[Deferred[None]]) -> Deferred[_Sync]:
        """Plan a sync and make it in a thread. It completes `commits`."""
        try:
            sync = self._plan_sync()
        except OSError as error:
            raise CannotOpen(str(error)) from error
        self._under_way = sync, commits
        resources = self._resources
        return resources.jobs.run(self._sync, sync).addCallback(lambda _: sync)

    def _sync(self, sync: _Sync) -> None:
        """Make a sync, and record a failure in the folder. Runs in a thread."""
        resources = self._resources
        try:
            _sync(resources.disk, resources.folder, sync)
        except CannotOpen:
            raise
        except OSError:
            resources.failed_syncs.add(self._journal.stem)
            raise

    def _plan_sync(self) -> _Sync:
        """Return a sync of all unsynced data. Raises OSError if a descriptor cannot be duplicated."""
        journal, parts = self._journal, []
        try:
            for file in journal.unsynced:
                descriptor = journal.current_descriptor(file)
                parts.append(_Part(file, self._resources.path(file.file_name), file.size, 0, descriptor))
        except OSError:
            for part in parts:
                if part.descriptor is not None:
                    self._resources.disk.close(part.descriptor)
            raise
        for queue in journal.unsynced_readers:
            if not queue.is_deleted:
                parts.append(_Part(queue, queue.file.path, queue.file.size, queue.written_done_id, None))
        return _Sync(parts, journal.written_id, journal.names, not journal.has_synced_names)

    def _synced(self, sync: _Sync, commits: list[Deferred[None]], since_s: float | None) -> None:
        """Record the result of a sync and complete its commits. Repeat the sync if a file was renamed meanwhile."""
        self.state, self._under_way = ScrollSyncState.IDLE, None
        if since_s is not None:
            self._resources.record_duration(self._journal.queue_name, "fsync_delay_usec", since_s)
        if self._is_over:
            self._waiting += commits
            self._fire_waiting(self._failure)
            return
        journal, is_whole = self._journal, True
        for part in sync.parts:
            if isinstance(part.owner, WriterFile):
                journal.synced(part.owner, part.size)
            elif part.owner.file.path == part.path:
                file = part.owner.file
                file.synced_size, file.acknowledged_size = part.size, max(part.size, file.acknowledged_size)
                part.owner.synced_done_id = part.done_id
                if file.size == part.size:
                    journal.unsynced_readers.discard(part.owner)
            else:
                is_whole = is_whole and part.owner.is_deleted  # else the file was renamed during the sync
        journal.synced_names = sync.names
        if not is_whole:
            self._waiting = commits + self._waiting
            self._begin()
            return
        journal.safe_id = max(journal.safe_id, sync.written_id)
        self._on_safe()
        for done in commits:
            done.callback(None)
        self.start_due_work()

    def start_due_work(self) -> None:
        """Start the sync or rewrite that is due, unless one is running."""
        if (
            self.state not in (ScrollSyncState.IDLE, ScrollSyncState.DUE)
            or self._is_over
            or self.pending_error is not None
        ):
            return
        is_late = self._resources.jobs.seconds() >= self._not_before_s
        if self._waiting:
            self._begin()
        elif self._grown and is_late and (self._journal.sync_period_ms != 0 or self.is_synced):
            grown, self._grown = [queue for queue in self._grown if queue.failure is None], {}
            self._rewrite([], grown, why=None)
        else:
            self._resume_blocked()
            self.settings_changed()

    def _resume_blocked(self) -> None:
        """Let the blocked commits write."""
        blocked, self._blocked = self._blocked, []
        for done in blocked:
            done.callback(None)

    def _failed(self, failure: Failure, commits: list[Deferred[None]]) -> None:
        """Handle a failed sync: try again, rewrite the files, or fail the queues."""
        self.state, self._under_way = ScrollSyncState.IDLE, None
        self._waiting = commits + self._waiting
        if self._is_over:
            self._fire_waiting(self._failure)
        elif failure.check(CannotOpen):
            log.error(
                "A file of scroll {stem!r} cannot be opened for a sync: {reason}. It is tried again",
                stem=self._journal.stem,
                reason=failure.value,
            )
            self._schedule_within(RETRY_S)
        elif self._journal.needs_sync:
            self._begin_rewrite(error_of(failure))
        else:
            self._fail_queues(error_of(failure))

    def _fail_queues(self, error: Exception) -> None:
        """Fail the queues now if a commit is waiting, or else in the next commit."""
        if self._waiting or self._blocked:
            self._resources.kill(self._journal, error)
        else:
            self._journal.journal_refusal = None  # accepted puts lead to a commit, which reports the error
            self.pending_error = error

    # Rewrites.

    def _begin_rewrite(self, error: Exception) -> None:
        """Refuse puts and replace all unsynced files with synced copies after a failed sync."""
        journal = self._journal
        reason = reason_of(error)
        log.error("The journal of {stem!r} failed to sync ({reason}): rewriting it", stem=journal.stem, reason=reason)
        journal.journal_refusal = f"queue storage failed: {reason}; the queue is being rewritten"
        queues = [queue for queue in journal.unsynced_readers if not queue.is_deleted]
        self._rewrite(list(journal.unsynced), queues, why=error)

    def _rewrite(self, files: list[WriterFile], queues: list[ScrollQueue], why: Exception | None) -> None:
        """Rewrite files after the failed sync `why`, or compact reader files if `why` is None."""
        self.state = ScrollSyncState.REWRITING
        if files:
            self._journal.rotate()
        Deferred.fromCoroutine(self._rewriter.write_anew(files, queues, is_exact=why is not None)).addCallbacks(
            self._rewritten, self._not_rewritten, callbackArgs=(why,), errbackArgs=(queues, why)
        )

    def _rewritten(self, _: object, why: Exception | None) -> None:
        self.state = ScrollSyncState.IDLE
        journal = self._journal
        if self._is_over:
            self._fire_waiting(self._failure)
            return
        if why is not None:
            self._blocked, self._waiting = self._waiting + self._blocked, []
            journal.journal_refusal = None
            self._resources.failed_syncs.discard(journal.stem)
            journal.safe_id = journal.written_id
            log.info("The journal of {stem!r} is rewritten and safe", stem=journal.stem)
        self._on_safe()
        self._resume_blocked()
        self.start_due_work()

    def _not_rewritten(self, failure: Failure, queues: list[ScrollQueue], why: Exception | None) -> None:
        self.state = ScrollSyncState.IDLE
        journal = self._journal
        if self._is_over:
            self._fire_waiting(self._failure)
        elif why is not None:
            self._fail_queues(why)
        else:
            reason = reason_of(error_of(failure))
            log.error(
                "The reader files of scroll {stem!r} are not rewritten: {reason}", stem=journal.stem, reason=reason
            )
            self._not_before_s = self._resources.jobs.seconds() + RETRY_S
            for queue in queues:
                queue.give_up_checkpoint()
            self._resume_blocked()
            self.start_due_work()

    def _fire_waiting(self, failure: QueueFailed | None) -> None:
        """Fire the Deferreds of all waiting and blocked commits, with `failure` unless it is None."""
        waiting = self._waiting + self._blocked
        self._waiting, self._blocked = [], []
        for done in waiting:
            done.callback(None) if failure is None else done.errback(failure)


def _sync(disk: Disk, folder: bytes, sync: _Sync) -> None:
    """Sync the files of `sync` in order, then the folder if required. Close all descriptors. Runs in a thread."""
    try:
        for part in sync.parts:
            _sync_part(disk, part)
        if sync.syncs_folder:
            disk.sync_folder(folder)
    finally:
        for part in sync.parts:
            if part.descriptor is not None:
                disk.close(part.descriptor)


def _sync_part(disk: Disk, part: _Part) -> None:
    if part.descriptor is not None:
        disk.sync(part.descriptor)
        return
    try:
        descriptor = disk.open_read(part.path)
    except FileNotFoundError:  # the file was renamed or erased
        return
    except OSError as error:
        raise CannotOpen(str(error)) from error
    try:
        disk.sync(descriptor)
    finally:
        disk.close(descriptor)
