"""The scheduler of syncs and rewrites of a scroll's files.

Either a sync or a rewrite runs for a journal, never both. Reader files are compacted between syncs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from twisted.internet.defer import Deferred

from kestrel.disk.files import Disk
from kestrel.errors import QueueFailed
from kestrel.scroll.writer_file import WriterFile
from kestrel.storage.failures import CannotOpen
from kestrel.storage.folder_resources import FolderResources
from kestrel.storage.log.sync_scheduler import SyncScheduler, SyncState
from kestrel.storage.scroll.journal import ScrollJournal
from kestrel.storage.scroll.queue import ScrollQueue
from kestrel.storage.scroll.rewriter import ScrollRewriter


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


class _ScrollFiles:
    """The writer files and reader files of one journal (`kestrel.storage.log.sync_scheduler.SyncedFiles`)."""

    def __init__(self, journal: ScrollJournal, resources: FolderResources) -> None:
        self._journal = journal
        self._resources = resources

    @property
    def is_synced(self) -> bool:
        """True if all written data and all file names are synced."""
        journal = self._journal
        return not (journal.unsynced or journal.unsynced_readers) and journal.has_synced_names

    @property
    def needs_sync(self) -> bool:
        """True if acknowledged data are not synced."""
        return self._journal.needs_sync

    def is_safe(self, queues: Sequence[ScrollQueue]) -> bool:
        """Return whether all changes of `queues` are synced, regardless of other queues of the journal.

        So all queues that share an item report the same result.
        """
        journal = self._journal
        return journal.has_synced_names and all(
            queue.last_id <= journal.safe_id and queue not in journal.unsynced_readers for queue in queues
        )

    def is_covered(self, sync: _Sync | None, queues: Sequence[ScrollQueue]) -> bool:
        """Return whether all written changes of `queues` will be synced when `sync` is done."""
        journal = self._journal
        if sync is None or sync.names != journal.names:
            return False
        files = {id(part.owner): part.size for part in sync.parts}
        return all(
            queue.last_id <= max(journal.safe_id, sync.written_id)
            and (queue not in journal.unsynced_readers or files.get(id(queue)) == queue.file.size)
            for queue in queues
        )

    def begin_sync(self) -> _Sync:
        """Return a sync of all unsynced data. Raise OSError if a descriptor cannot be duplicated."""
        journal, parts = self._journal, []
        try:
            for file in journal.unsynced:
                descriptor = journal.current_descriptor(file)
                parts.append(_Part(file, self._resources.path(file.file_name), file.size, 0, descriptor))
        except OSError:
            _close(self._resources.disk, parts)
            raise
        for queue in journal.unsynced_readers:
            if not queue.is_deleted:
                parts.append(_Part(queue, queue.file.path, queue.file.size, queue.written_done_id, None))
        return _Sync(parts, journal.written_id, journal.names, not journal.has_synced_names)

    def run_sync(self, sync: _Sync) -> None:
        """Sync the files of `sync` in order, then the folder if required. Close all descriptors. Runs in a thread."""
        disk = self._resources.disk
        try:
            for part in sync.parts:
                _sync_part(disk, part)
            if sync.syncs_folder:
                disk.sync_folder(self._resources.folder)
        finally:
            _close(disk, sync.parts)

    def synced(self, sync: _Sync) -> bool:
        """Record that `sync` has succeeded. Return False if it must be repeated because a file was renamed."""
        journal, is_whole = self._journal, True
        for part in sync.parts:
            if isinstance(part.owner, WriterFile):
                journal.synced(part.owner, part.size)
            elif part.owner.file.path == part.path:
                part.owner.synced_done_id = part.done_id
                if part.owner.file.synced_to(part.size):
                    journal.unsynced_readers.discard(part.owner)
            else:
                is_whole = is_whole and part.owner.is_deleted
        journal.synced_names = sync.names
        if is_whole:
            journal.safe_id = max(journal.safe_id, sync.written_id)
        return is_whole

    def sync_failed(self) -> None:
        """Do nothing: the journal truncates its files when it fails."""


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


def _close(disk: Disk, parts: Sequence[_Part]) -> None:
    for part in parts:
        if part.descriptor is not None:
            disk.close(part.descriptor)


class ScrollSyncScheduler(SyncScheduler):
    """The scheduler of syncs and rewrites of one journal. It calls `on_safe` when more data have become durable."""

    def __init__(self, journal: ScrollJournal, resources: FolderResources, on_safe: Callable[[], None]) -> None:
        self._journal = journal
        self._journal_files = _ScrollFiles(journal, resources)
        self._rewriter = ScrollRewriter(journal, resources)
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
        if self._unsynced_since_s is None and period_ms is not None and not files.is_synced:
            self._unsynced_since_s = self._resources.jobs.seconds()
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
        may_begin = self._rewriter.is_compaction_due and (self._journal.sync_period_ms != 0 or self._files.is_synced)
        if not may_begin:
            return False
        self.state = SyncState.REWRITING
        Deferred.fromCoroutine(self._rewriter.compact()).addCallback(self._compacted)
        return True

    def _compacted(self, _: object) -> None:
        if self._journal.failure is None:
            self._on_synced()
        self._fire_waiting(self._failure)
        self.start_due_work()
