"""The syncs of a scroll's files, exact copies after a failed sync, and compaction of reader files that have grown.

Either a sync or a rewrite runs for a journal, never both. Reader files are compacted between syncs.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from kestrel.disk import crash_points
from kestrel.disk.files import Disk
from kestrel.disk.reader import FileReader, erased_on_error
from kestrel.errors import QueueFailed
from kestrel.escaping import show_name
from kestrel.scroll.reader_file import encode_state, read_state
from kestrel.scroll.writer_file import WriterFile
from kestrel.storage.failures import CannotOpen, reason_of
from kestrel.storage.folder_resources import FolderResources
from kestrel.storage.log.sync_scheduler import RETRY_S, SyncScheduler, SyncState
from kestrel.storage.scroll.files import copy_file, write_file
from kestrel.storage.scroll.journal import ScrollJournal
from kestrel.storage.scroll.queue import ScrollQueue

log = Logger(__name__)

# A reader file is compacted when it exceeds one of these sizes and is twice as large as after its last rewrite.

COMPACTED_BYTES: Final = 4096
"""Size that is checked at each checkpoint."""

LARGEST_BYTES: Final = 1 << 20
"""Size that is checked after each write."""

COMPACTED_ON_A_FULL_DISK: Final = 512
"""Size that is checked after each write on a full disk, so that gets and confirms do not run out of space."""


class _Copy(NamedTuple):
    """A file to rewrite: an exact copy of its first `size` bytes, or a compacted reader file."""

    owner: WriterFile | ScrollQueue
    """The writer file, or the queue whose reader file is rewritten."""
    path: bytes
    size: int
    is_compacted: bool
    contents: bytes | None
    """Content of a compacted reader file, or None to compact what the file contains."""


class ScrollRewriter:
    """A rewriter for the files of one journal. Nothing may be written to the files while it runs."""

    def __init__(self, journal: ScrollJournal, resources: FolderResources) -> None:
        self._journal = journal
        self._resources = resources
        self._grown: dict[ScrollQueue, None] = {}
        """Readers whose files must be compacted, in order. The values are unused."""
        self._not_before_s = 0.0
        """Time before which no reader file is compacted, because the last attempt failed."""

    # Compaction of reader files.

    @property
    def has_grown(self) -> bool:
        """True if there are reader files to compact."""
        return bool(self._grown)

    @property
    def is_compaction_due(self) -> bool:
        """True if there are reader files to compact, and no attempt has just failed."""
        return bool(self._grown) and self._resources.jobs.seconds() >= self._not_before_s

    def note_growth(self, queues: Sequence[ScrollQueue]) -> None:
        """Note which of the reader files just written to must be compacted."""
        for queue in queues:
            least = COMPACTED_ON_A_FULL_DISK if self._resources.disk_reserve.refusal is not None else LARGEST_BYTES
            if queue.file.size > max(least, 2 * queue.compacted_bytes):
                self._grown[queue] = None

    def note_checkpoint(self, queues: Sequence[ScrollQueue]) -> None:
        """Note which reader files have grown or do not record their readers' current state."""
        for queue in queues:
            if not queue.file.size:
                continue  # the file is being created
            if queue.has_changes or queue.file.size > max(COMPACTED_BYTES, 2 * queue.compacted_bytes):
                self._grown[queue] = None

    async def compact(self) -> None:
        """Compact the reader files that have grown. Log an error, and try again later."""
        queues, self._grown = [queue for queue in self._grown if queue.failure is None], {}
        try:
            await self.write_anew([], queues, is_exact=False)
        except Exception as error:
            if self._journal.failure is not None:
                return
            log.error(
                "The reader files of scroll {stem} are not rewritten: {reason}",
                stem=show_name(self._journal.stem),
                reason=reason_of(error),
            )
            self._not_before_s = self._resources.jobs.seconds() + RETRY_S
            for queue in queues:
                queue.give_up_checkpoint()

    # Rewriting.

    async def write_anew(self, files: list[WriterFile], queues: list[ScrollQueue], *, is_exact: bool) -> None:
        """Rewrite the writer files in `files` and the reader files of `queues`. Raises OSError.

        Each new file is synced before it replaces the old one. If `is_exact` is true, files are copied unchanged, and
        their data and names are durable when this returns. Otherwise reader files are compacted.
        """
        journal, resources = self._journal, self._resources
        began_s = resources.jobs.seconds()
        copies = [_Copy(file, resources.path(file.file_name), file.size, False, None) for file in files]
        for queue in queues:
            # A checkpoint is durable, so it must not include changes whose commit has not written them.
            checkpoint = None if is_exact or queue.has_unwritten else queue.begin_checkpoint()
            copies.append(_Copy(queue, queue.file.path, queue.file.size, not is_exact, checkpoint))
        written = await resources.jobs.run(self._write_temporary, copies)
        with erased_on_error(resources.disk, [path for path, _ in written]):
            for copy, temporary in zip(copies, written, strict=True):
                self._publish(copy, *temporary)
        resources.record_duration(journal.name, "journal_rewrite_usec", began_s)
        if journal.sync_period_ms is None and not is_exact:
            return
        names = journal.names
        await resources.jobs.run(resources.disk.sync_folder, resources.folder)
        journal.synced_names = names
        for copy in copies if is_exact else ():
            if isinstance(copy.owner, WriterFile):
                journal.synced(copy.owner, copy.size)
            else:
                copy.owner.file.replaced(copy.size)
                journal.unsynced_readers.discard(copy.owner)

    def _write_temporary(self, copies: Sequence[_Copy]) -> list[tuple[bytes, int]]:
        """Write and sync temporary files. Return their paths and sizes. Runs in a thread and raises OSError."""
        disk, next_number = self._resources.disk, self._resources.numbers.next
        paths: list[bytes] = []
        sizes: list[int] = []
        with erased_on_error(disk, paths):
            for copy in copies:
                if copy.is_compacted:
                    contents = copy.contents or _compacted(disk, copy.path)
                    paths.append(write_file(disk, copy.path, contents, next_number(), is_synced=True))
                    sizes.append(len(contents))
                else:
                    paths.append(copy_file(disk, copy.path, copy.size, next_number()))
                    sizes.append(copy.size)
        disk.crash_point(crash_points.COPY_WRITTEN)
        return list(zip(paths, sizes, strict=True))

    def _publish(self, copy: _Copy, temporary: bytes, size: int) -> None:
        """Rename a temporary file to the file that it replaces, or erase it if that file is no longer needed."""
        disk, owner = self._resources.disk, copy.owner
        if self._journal.failure is not None:
            is_needed, path = False, b""
        elif isinstance(owner, WriterFile):
            is_needed, path = owner in self._journal.files, copy.path
        else:
            is_needed, path = not owner.is_deleted, owner.file.path
        if not is_needed:
            disk.erase(temporary)
            return
        self._journal.names += 1
        disk.rename(temporary, path)
        disk.crash_point(crash_points.COPY_PUBLISHED)
        if isinstance(owner, ScrollQueue):
            self._resources.open_files.close(owner.file)
            if copy.is_compacted:
                owner.end_compaction(size) if copy.contents is None else owner.end_checkpoint(size)
                self._journal.unsynced_readers.discard(owner)


def _compacted(disk: Disk, path: bytes) -> bytes:
    """Return the compacted content of a reader file. Raises OSError, also if the file is damaged."""
    with FileReader(disk, path) as reader:
        state, end = read_state(reader)
    if end.problem is not None:
        raise OSError(errno.EIO, f"the reader file is damaged: {end.problem}")
    return encode_state(state)


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
        files = (*self._journal.unsynced.values(), *(queue.file for queue in self._journal.unsynced_readers))
        return any(file.acknowledged_size > file.synced_size for file in files)

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

    def when_writable(self) -> Deferred[bool] | None:
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
