"""The maintenance of a queue's journal: rotation, rewrites and packs, as the compaction policy decides. Read-behind."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from typing import Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from kestrel.disk.files import is_full
from kestrel.disk.reader import FileReader
from kestrel.errors import QueueFailed
from kestrel.escaping import show_name
from kestrel.journal.compaction_policy import (
    Compaction,
    CompactionLimits,
    JournalSizes,
    choose_compaction,
    should_rotate,
)
from kestrel.journal.fileset import erase_deleted
from kestrel.journal.item_reader import DamagedJournalFile, JournalItemsRead, read_items
from kestrel.journal.pack import PublishIncomplete, WriteStopped
from kestrel.journal.rewrite import Boundary, ReplacementRecords
from kestrel.storage.failures import reason_of
from kestrel.storage.folder_resources import FolderResources
from kestrel.storage.journal.queue import JournalQueue
from kestrel.storage.journal.rewriter import JournalRewriter, JournalSyncScheduler
from kestrel.storage.log.read_ahead import ReadAhead
from kestrel.storage.log.sync_scheduler import SyncState
from kestrel.storage.window import ChunkedDeque

log = Logger(__name__)

RETRY_S: Final = 10.0

FREE_INLINE_RECORDS: Final = 10_000
"""Largest number of records that are freed without a thread, which takes about 0.2 ms."""


CHECKPOINT_BYTES: Final = 16 << 20
"""Bytes of the current file from one checkpoint to the next: a start replays at most so many."""


class _Plan:
    """A rotation, compaction or checkpoint that begins when all written records are acknowledged."""

    def __init__(
        self, end: Boundary, compaction: Compaction, replacement: ReplacementRecords | None, *, rotates: bool
    ) -> None:
        self.end = end
        self.compaction = compaction
        self.replacement = replacement
        self.rotates = rotates


class JournalMaintenance:
    """The background work of one queue: syncs, rotation, compaction and read-behind."""

    def __init__(self, queue: JournalQueue, resources: FolderResources) -> None:
        self._queue = queue
        self._resources = resources
        self._jobs = resources.jobs
        self.rewriter = JournalRewriter(queue, resources)
        self.sync = JournalSyncScheduler(queue, resources, self.rewriter, self._execute_plan)
        self.read_behind = JournalReadBehind(queue, resources, self.rewriter, self.sync.fail_next_commit)
        self._plan: _Plan | None = None
        self._rewritten_s: float | None = None
        self._not_before_s = 0.0
        """Time before which no compaction begins, because one has failed."""
        self._no_rotation_before_s = 0.0
        """Time before which no rotation begins, because one has failed."""
        queue.free = self._free

    def written(self, _: object) -> Deferred[None] | None:
        """Start the work that is due after a write: sync, compaction, read-behind.

        Return None if the reply need not wait for a sync. Otherwise return a Deferred that fires when the records are
        synced, or fails with `QueueFailed`.
        """
        self._plan = self._make_plan()
        done = self.sync.written()
        if self._plan is not None:
            self._execute_plan()
        if self._queue.behind_items:
            self.read_behind.read_ahead()
        return done

    def begin_after_load(self) -> None:
        """Start the work that is due after a load. The records that the load wrote count as acknowledged."""
        self._queue.writer.acknowledged_size = self._queue.writer.size
        self.sync.settings_changed()
        self._replan()

    def _replan(self) -> None:
        """Plan the next step, because the next write may be far away. If records are pending, their commit plans it."""
        queue = self._queue
        if queue.failure is None and not queue.has_pending:
            self._plan = self._make_plan()
            self._execute_plan()

    def is_due(self) -> bool:
        """Return whether a rotation or a compaction is due."""
        limits = self._limits()
        is_due = choose_compaction(self._sizes(), limits) is not Compaction.NONE
        return is_due or should_rotate(self._queue.writer.size, limits)

    def _limits(self) -> CompactionLimits:
        settings = self._queue.settings
        return CompactionLimits(
            settings.default_journal_size_bytes,
            settings.max_memory_size_bytes,
            settings.max_journal_size_bytes,
            settings.min_journal_compact_delay_ms,
            settings.disable_aggressive_rewrites,
        )

    def _make_plan(self) -> _Plan | None:
        """Return the rotation, compaction or checkpoint that is due, or None."""
        queue = self._queue
        settings = queue.settings
        current_bytes = queue.writer.size
        most_bytes = min(settings.default_journal_size_bytes, settings.max_journal_size_bytes)
        is_disk_full = self._resources.disk_reserve.refusal is not None
        is_small = current_bytes < most_bytes and current_bytes <= settings.max_memory_size_bytes
        if is_small and not queue.history.rotated and not is_disk_full:
            # Fast path: the current file is the only one, and most writes need no work.
            return None
        limits = self._limits()
        may_begin = not self.rewriter.is_running and self._jobs.seconds() >= self._not_before_s
        compaction = choose_compaction(self._sizes(), limits) if may_begin else Compaction.NONE
        if compaction is Compaction.NONE and may_begin and is_disk_full:
            return self._make_full_disk_plan(limits)
        if compaction is Compaction.NONE:
            unlogged_bytes = current_bytes - queue.checkpoint_offset
            is_checkpoint_due = queue.needs_checkpoint or unlogged_bytes >= CHECKPOINT_BYTES
            rotates = self._may_rotate(limits)
            return _Plan(queue.boundary(), compaction, None, rotates=rotates) if rotates or is_checkpoint_due else None
        end, is_pack = queue.boundary(), compaction is Compaction.PACK
        replaced = queue.last_read_boundary() if is_pack else end
        replacement = None if replaced is None else queue.replacement(replaced)
        return _Plan(end, compaction, replacement, rotates=not is_pack)

    def _make_full_disk_plan(self, limits: CompactionLimits) -> _Plan | None:
        """Return the smallest step that frees space, or None, so that items can be taken from a full disk."""
        queue = self._queue
        end = queue.boundary()
        try:
            room_bytes = self._resources.disk.free_bytes(self._resources.folder)
        except OSError:
            room_bytes = 0
        smallest = queue.smallest_pack(room_bytes) if queue.behind_items else None
        if smallest is not None:
            return _Plan(end, Compaction.PACK, queue.replacement(smallest), rotates=False)
        if queue.disk_bytes > 2 * queue.live_bytes and queue.live_bytes <= room_bytes:
            return _Plan(end, Compaction.REWRITE, queue.replacement(end), rotates=True)
        return _Plan(end, Compaction.NONE, None, rotates=True) if self._may_rotate(limits) else None

    def _may_rotate(self, limits: CompactionLimits) -> bool:
        """Return whether a rotation is due, and none has just failed."""
        may_begin = self._jobs.seconds() >= self._no_rotation_before_s
        return may_begin and should_rotate(self._queue.writer.size, limits)

    def _sizes(self) -> JournalSizes:
        waited_ms = None if self._rewritten_s is None else int((self._jobs.seconds() - self._rewritten_s) * 1000)
        return self._queue.journal_state(waited_ms)

    def _execute_plan(self) -> None:
        """Execute the plan if all written records are acknowledged. Drop it if records were written meanwhile."""
        plan, queue = self._plan, self._queue
        if (
            plan is None
            or queue.writer.acknowledged_size != queue.writer.size
            or self.sync.state is SyncState.REWRITING
        ):
            return
        self._plan = None
        if plan.end.end != queue.written_end or queue.failure is not None:
            return
        replacement = plan.replacement
        if plan.rotates:
            began_s = self._jobs.seconds()
            try:
                end = queue.rotate(plan.end)
            except OSError as error:
                if not (is_full(error) and self._drop_files()):
                    log.error(
                        "Queue {queue} cannot be rotated: {reason}", queue=show_name(queue.name), reason=error.strerror
                    )
                    self._no_rotation_before_s = self._jobs.seconds() + RETRY_S
                    self._jobs.later(RETRY_S, self._replan)
                return
            self._resources.record_duration(queue.name, "journal_rotation_usec", began_s)
            if replacement is not None:
                replacement.boundary = end
            queue.rotations += replacement is None
        elif replacement is None:
            queue.add_checkpoint(plan.end)
        if replacement is not None:
            self._rewritten_s = self._jobs.seconds()
            Deferred.fromCoroutine(self._replace(replacement, plan.compaction)).addErrback(self._log_failure)

    async def _replace(self, replacement: ReplacementRecords, compaction: Compaction) -> None:
        """Replace the journal's older files by one file. If they became smaller, plan the next step.

        Expected errors are not raised. An OSError is logged and the step is planned again after `RETRY_S`; on a full
        disk the files of an empty queue are deleted instead. If the old files cannot be moved away, the next commit
        fails and the queue is replayed. A stopped replacement is ignored.
        """
        queue = self._queue
        before_bytes, began_s = queue.disk_bytes, self._jobs.seconds()
        is_pack = compaction is Compaction.PACK
        try:
            # A placeholder replaces a removed item, so the removal must be synced before the pack is published.
            await self.rewriter.replace(replacement, before_publishing=self.sync.sync_for_pack if is_pack else None)
        except (WriteStopped, QueueFailed):
            return
        except PublishIncomplete as error:
            reason = reason_of(error)
            log.error(
                "The journal of {queue} was replaced, but its old files cannot be moved: {reason}; it is replayed",
                queue=show_name(queue.name),
                reason=reason,
            )
            self.sync.fail_next_commit(error)
            return
        except OSError as error:
            if is_full(error) and self._drop_files():
                return
            log.error(
                "The journal of {queue} is not rewritten: {reason}",
                queue=show_name(queue.name),
                reason=reason_of(error),
            )
            self._not_before_s = self._jobs.seconds() + RETRY_S
            self._jobs.later(RETRY_S, self._replan)
            return
        self._resources.record_duration(queue.name, "journal_rewrite_usec", began_s)
        queue.packs += is_pack
        queue.rewrites += not is_pack
        log.debug(
            "The journal of {queue} was {before} bytes and is {after}",
            queue=show_name(queue.name),
            before=before_bytes,
            after=queue.disk_bytes,
        )
        if queue.disk_bytes < before_bytes:
            self._replan()

    def _drop_files(self) -> bool:
        """Delete the files of an empty queue on a full disk. Return whether that was done.

        A rewrite would need an inode, which the disk may not have. Nothing is deleted if the queue has items or open
        reads, if its records may yet be discarded, or if it is being rewritten after a failed sync.
        """
        queue, resources = self._queue, self._resources
        is_kept = (
            queue.items or queue.open_reads or queue.has_pending or queue.writer.acknowledged_size != queue.writer.size
        )
        if is_kept or queue.failure is not None or self.sync.state is SyncState.REWRITING:
            return False
        try:
            queue.drop_files()
        except OSError as error:
            log.error(
                "The files of empty queue {queue} were not deleted: {reason}",
                queue=show_name(queue.name),
                reason=reason_of(error),
            )
            return False
        queue.rewrites += 1
        resources.erase_later(erase_deleted, resources.disk, resources.folder, queue.name)
        return True

    def _free(self, records: ChunkedDeque) -> None:
        """Free the memory of records, in a thread if there are many."""
        if len(records) > FREE_INLINE_RECORDS:
            self._jobs.run(records.free)

    def _log_failure(self, failure: Failure) -> None:
        log.failure(
            "Queue {queue} was not rewritten because of a bug in Kestrel", failure, queue=show_name(self._queue.name)
        )


class JournalReadBehind(ReadAhead[JournalQueue]):
    """The reader of one queue's items that are only on disk."""

    def __init__(
        self,
        queue: JournalQueue,
        resources: FolderResources,
        rewriter: JournalRewriter,
        fail_next_commit: Callable[[Exception], None],
    ) -> None:
        super().__init__(queue, resources)
        self._rewriter = rewriter
        self._fail_next_commit = fail_next_commit

    def read_more(self) -> Deferred[None] | None:
        """Bring the next items into the window. Return None if they came from memory, or a Deferred as `ReadAhead`."""
        queue = self._queue
        if queue.behind_offset < queue.written_end:
            return super().read_more()
        queue.read_pending()
        if not queue.has_head and not queue.has_pending:
            # A skipped file has fewer items than the segment log says.
            self._failed(DamagedJournalFile(errno.EIO, "the journal files have too few items"))
        return None

    def read_ahead(self) -> None:
        """Read the next items, before a client needs them, if half of the memory is free. There must be some."""
        queue = self._queue
        if queue.room_bytes and 2 * queue.mem_bytes <= queue.settings.max_memory_size_bytes:
            self._begin_read()

    async def _next_read(self) -> Callable[[], JournalItemsRead] | None:
        queue, resources = self._queue, self._resources
        await self._rewriter.published()
        if queue.failure is not None or not queue.behind_items or queue.behind_offset >= queue.written_end:
            return None
        name, start, end = queue.history.file_at(queue.behind_offset)
        reader = FileReader(resources.disk, resources.path(name))
        end = queue.written_end if end is None else end
        span = start, queue.behind_offset, end, queue.behind_skip
        return partial(_read, reader, *span, queue.behind_items, queue.room_bytes, queue.now_ms)

    def _failed(self, error: Exception) -> None:
        if isinstance(error, DamagedJournalFile):
            # The queue is then replayed, which repairs the file.
            self._fail_next_commit(error)


def _read(reader: FileReader, *args: int) -> JournalItemsRead:
    with reader:
        return read_items(reader, *args)
