"""When the files of a scroll are synced, when they are written anew, and what becomes of its queues when that fails.

One thing at a time is done to the files of a journal beside appending: a sync, or a rewriting. If a sync fails, a
second one of the same file would succeed and mean nothing. So if nobody has been told that what lies beyond the last
sync is kept (syncJournal 0), it is given up: the queues are dead and opened at what was synced. Else the files that are
not known to be safe are written anew, under their names, and synced; until that is done commits wait and no put is
taken.
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

COMPACTED_BYTES: Final = 4096
"""A reader file is due to be written anew when it is larger than that, and twice as large as it was then,"""

LARGEST_BYTES: Final = 1 << 20
"""which is looked at from time to time, or as soon as it is larger than this,"""

COMPACTED_ON_A_FULL_DISK: Final = 512
"""or than this: to take items from a full disk must not come to an end."""


class ScrollSyncState(Enum):
    """What is being done to the files of one journal.

    From IDLE or DUE a sync begins (SYNCING) and ends in IDLE, or DUE if more was written meanwhile. One that fails
    kills the queues, or leads to REWRITING, as does a reader file that has grown large; from there it is IDLE, or dead.
    """

    IDLE = "idle"
    DUE = "due"
    SYNCING = "syncing"
    REWRITING = "rewriting"


class _Part(NamedTuple):
    """A file that a sync covers, up to that size; and of a reader file up to which id it needs nothing more."""

    of: WriterFile | ScrollQueue
    path: bytes
    size: int
    done_id: int
    descriptor: int | None


class _Sync(NamedTuple):
    """What one sync covers."""

    parts: Sequence[_Part]
    written_id: int
    names: int
    syncs_folder: bool


class ScrollSyncScheduler:
    """The syncs and rewritings of one journal. `on_safe` is called when more of it has become safe."""

    def __init__(self, journal: ScrollJournal, resources: ScrollResources, on_safe: Callable[[], None]) -> None:
        self._journal = journal
        self._resources = resources
        self._on_safe = on_safe
        self._rewriter = ScrollRewriter(journal, resources)
        self._timer: IDelayedCall | None = None
        self._waiting: list[Deferred[None]] = []
        """Commits whose records are written and not synced."""
        self._under_way: tuple[_Sync, list[Deferred[None]]] | None = None
        """What the sync covers that is being made, and the commits that it will make safe."""
        self._blocked: list[Deferred[None]] = []
        """Commits that may not write before the rewriting is done."""
        self._grown: dict[ScrollQueue, None] = {}
        """Readers whose files are due to be written anew."""
        self.pending_error: Exception | None = None
        """What the queues will be dead of as soon as there is a commit that can be told."""
        self._not_before_s = 0.0
        """When a reader file may be written anew after one that could not be."""
        self._unsynced_since_s: float | None = None
        """When the first record was written that a sync will make safe, and none has."""
        self._failure: QueueFailed | None = None
        self._is_over = False
        """Whether the journal's queues are dead of that, or deleted."""
        self.state = ScrollSyncState.IDLE

    # What the storage tells.

    def written(self, queues: Sequence[ScrollQueue]) -> Deferred[None] | None:
        """What was recorded on these queues was written: None if it is as safe now as was promised.

        Else a Deferred that fires when it is synced, or fails with `QueueFailed`, the queues then being dead.
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
        """Those of the reader files are written anew that have grown, or do not say how far their readers are."""
        for queue in queues:
            if not queue.file.size:
                continue  # it is being made
            if queue.has_changes or queue.file.size > max(COMPACTED_BYTES, 2 * queue.compacted_bytes):
                self._grown[queue] = None

    @property
    def is_synced(self) -> bool:
        """Whether all that is written is known to be safe."""
        journal = self._journal
        return not (journal.unsynced or journal.unsynced_readers) and journal.has_synced_names

    def _is_safe(self, queues: Sequence[ScrollQueue]) -> bool:
        """Whether syncs have reached all that was recorded on these queues, whatever there is of others: of an item the
        same must be told for all queues that have it."""
        journal = self._journal
        return journal.has_synced_names and all(
            queue.last_id <= journal.safe_id and queue not in journal.unsynced_readers for queue in queues
        )

    def _is_covered(self, sync: _Sync, queues: Sequence[ScrollQueue]) -> bool:
        """Whether that sync will have reached it."""
        journal = self._journal
        if sync.names != journal.names:
            return False
        files = {id(part.of): part.size for part in sync.parts}
        return all(
            queue.last_id <= max(journal.safe_id, sync.written_id)
            and (queue not in journal.unsynced_readers or files.get(id(queue)) == queue.file.size)
            for queue in queues
        )

    def settings_changed(self) -> None:
        """syncJournal may be another, or the journal was loaded: what is not synced is due accordingly."""
        period_ms = self._journal.sync_period_ms
        if period_ms is not None and not self.is_synced:
            self._schedule_within(period_ms / 1000)

    def when_writable(self) -> Deferred[None] | None:
        """None if a commit may write now; else fires when it may, or fails with `QueueFailed`."""
        if self.pending_error is not None:
            raise self._resources.kill(self._journal, self.pending_error)
        # What has grown under load can be written anew only when a sync has reached all of it.
        is_next = self.state is ScrollSyncState.SYNCING and bool(self._grown) and self._journal.sync_period_ms == 0
        if self.state is not ScrollSyncState.REWRITING and not is_next:
            return None
        held: Deferred[None] = Deferred()
        self._blocked.append(held)
        return held

    def sync_at_close(self) -> Deferred[Any]:
        """A sync at the stop, when nothing else runs; fails with the OSError. Whoever waits is told."""
        is_done = self._journal.sync_period_ms is None or self.is_synced
        syncing: Deferred[Any] = succeed(None) if is_done else self._resources.sync_slots.run(self._run, [])
        return syncing.addCallbacks(lambda _: self._fire_waiting(None), self._sync_at_close_failed)

    def _sync_at_close_failed(self, failure: Failure) -> Failure:
        self._fire_waiting(QueueFailed(f"queue storage failed: {reason_of(error_of(failure))}"))
        return failure

    def end(self, failure: QueueFailed | None) -> None:
        """The journal's queues are dead of that, or deleted."""
        self._is_over, self._failure = True, failure
        self._rewriter.is_over = True
        self._resources.jobs.cancel(self._timer)
        self._fire_waiting(failure)

    # One sync.

    def _schedule_within(self, seconds: float) -> None:
        if self.state not in (ScrollSyncState.IDLE, ScrollSyncState.DUE):
            return  # it is looked at again when that is over
        self.state = ScrollSyncState.DUE
        self._timer = self._resources.jobs.within(seconds, self._timer, self._begin)

    def _begin(self) -> None:
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
        try:
            sync = self._plan_sync()
        except OSError as error:
            raise CannotOpen(str(error)) from error
        self._under_way = sync, commits
        resources = self._resources
        return resources.jobs.run(self._sync, sync).addCallback(lambda _: sync)

    def _sync(self, sync: _Sync) -> None:
        """Runs in a thread."""
        resources = self._resources
        try:
            _sync(resources.disk, resources.folder, sync)
        except CannotOpen:
            raise
        except OSError:
            resources.failed_syncs.add(self._journal.stem)
            raise

    def _plan_sync(self) -> _Sync:
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
        self.state, self._under_way = ScrollSyncState.IDLE, None
        if since_s is not None:
            self._resources.record_duration(self._journal.queue_name, "fsync_delay_usec", since_s)
        if self._is_over:
            self._waiting += commits
            self._fire_waiting(self._failure)
            return
        journal, is_whole = self._journal, True
        for part in sync.parts:
            if isinstance(part.of, WriterFile):
                journal.synced(part.of, part.size)
            elif part.of.file.path == part.path:
                file = part.of.file
                file.synced_size, file.acknowledged_size = part.size, max(part.size, file.acknowledged_size)
                part.of.synced_done_id = part.done_id
                if file.size == part.size:
                    journal.unsynced_readers.discard(part.of)
            else:
                is_whole = is_whole and part.of.is_deleted  # it got another name while it was synced
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
        """Nothing is being done, or the timer runs: see what is due."""
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
        """Whoever was held may write."""
        held, self._blocked = self._blocked, []
        for done in held:
            done.callback(None)

    def _failed(self, failure: Failure, commits: list[Deferred[None]]) -> None:
        self.state, self._under_way = ScrollSyncState.IDLE, None
        self._waiting = commits + self._waiting
        if self._is_over:
            self._fire_waiting(self._failure)
        elif failure.check(CannotOpen):
            log.error("No file can be opened to sync {stem!r}: {reason}", stem=self._journal.stem, reason=failure.value)
            self._schedule_within(RETRY_S)
        elif self._journal.needs_sync:
            self._begin_rewrite(error_of(failure))
        else:
            self._fail_queues(error_of(failure))

    def _fail_queues(self, error: Exception) -> None:
        """The queues die in a commit: of those that wait, or of the next."""
        if self._waiting or self._blocked:
            self._resources.kill(self._journal, error)
        else:
            self._journal.journal_refusal = None  # a put is recorded, so that there is such a commit
            self.pending_error = error

    # Files written anew.

    def _begin_rewrite(self, error: Exception) -> None:
        journal = self._journal
        reason = reason_of(error)
        log.error("The journal of {stem!r} failed to sync ({reason}): rewriting it", stem=journal.stem, reason=reason)
        journal.journal_refusal = f"queue storage failed: {reason}; the queue is being rewritten"
        queues = [queue for queue in journal.unsynced_readers if not queue.is_deleted]
        self._rewrite(list(journal.unsynced), queues, why=error)

    def _rewrite(self, files: list[WriterFile], queues: list[ScrollQueue], why: Exception | None) -> None:
        """Write these files anew, because of that error, or because they have grown."""
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
            log.error("A reader file of {stem!r} is not rewritten: {reason}", stem=journal.stem, reason=reason)
            self._not_before_s = self._resources.jobs.seconds() + RETRY_S
            for queue in queues:
                queue.give_up_checkpoint()
            self._resume_blocked()
            self.start_due_work()

    def _fire_waiting(self, failure: QueueFailed | None) -> None:
        """Nothing is under way any more; whoever waited may go on, or has failed."""
        waiting = self._waiting + self._blocked
        self._waiting, self._blocked = [], []
        for done in waiting:
            done.callback(None) if failure is None else done.errback(failure)


def _sync(disk: Disk, folder: bytes, sync: _Sync) -> None:
    """Sync all of that, in this order. Runs in a thread."""
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
    except FileNotFoundError:  # it has another name by now, or nobody needs it any more
        return
    except OSError as error:
        raise CannotOpen(str(error)) from error
    try:
        disk.sync(descriptor)
    finally:
        disk.close(descriptor)
