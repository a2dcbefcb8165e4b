"""Loading of a queue from its journal files, with replay and repair."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from twisted.logger import Logger

from kestrel.config.model import QueueSettings
from kestrel.disk import crash_points
from kestrel.disk.files import Disk
from kestrel.disk.reader import FileReader
from kestrel.disk.repair import ReadEnd, quarantine, repair
from kestrel.escaping import show_name
from kestrel.item import Item
from kestrel.journal.fileset import (
    JournalFile,
    JournalFileKind,
    QueueFiles,
    current_name,
    files_of,
    rotated_name,
    temporary_name,
)
from kestrel.journal.item_reader import DamagedJournalFile, read_items
from kestrel.journal.pack import finish_interrupted, write_temporary
from kestrel.journal.realign import (
    can_reach,
    count_removals,
    has_same_items,
    item_records,
    lost_items,
    max_growth_bytes,
    max_transition_bytes,
    transition_records,
)
from kestrel.journal.records import MAX_DATA_BYTES
from kestrel.journal.replay import replay
from kestrel.journal.rewrite import Boundary
from kestrel.journal.segments import Segment, SegmentLog
from kestrel.journal.writer import JournalWriter
from kestrel.scroll.records import WRITER_MAGIC
from kestrel.storage.failures import reason_of
from kestrel.storage.journal.known_files import OpenFile, find_items, known_files, sync_files
from kestrel.storage.journal.queue import MIN_CHECKPOINT_BYTES, JournalQueue
from kestrel.storage.total_memory import MemoryLimit

log = Logger(__name__)


def load_queue(
    disk: Disk,
    folder: bytes,
    files: QueueFiles,
    settings: QueueSettings,
    writer: JournalWriter,
    now_ms: int,
    open_file: OpenFile | None = None,
    memory: MemoryLimit | None = None,
    *,
    trusts_log: bool = False,
) -> JournalQueue:
    """Replay the files of a queue, repair them, and return the queue. May run in a thread.

    A queue without files is new and empty, and gets a current file. Open reads are returned to the head, the lowest xid
    first. `open_file` opens the files for the replay; the default reads them from the folder. Raise OSError if a file
    cannot be read.

    `trusts_log`: skip unchanged files that the segment log describes. Damage in them is then found when an item is
    read. They are synced first, because a failed sync could take records from the memory of the system that only a
    replay would have kept.
    """
    finish_interrupted(disk, folder, files)
    repaired_bytes = 0
    while True:
        queue = JournalQueue(files.queue, settings, writer, memory)
        queue.now_ms = now_ms
        queue.repaired_bytes = repaired_bytes
        target = QueueReplayTarget(queue, open_file or (lambda name: FileReader(disk, folder + b"/" + name)))
        loading = _Loading(disk, folder, files, target)
        try:
            if trusts_log:
                loading.skip_known_files()
            is_closed = loading.replay_all()
            if queue.behind_items and not queue.has_head:
                # The age of the head is then known without another read.
                target.read_on(1)
            break
        except DamagedJournalFile:
            if not trusts_log:
                raise
        except _RestartReplay:
            pass
        # At most once for each file, and once because of the segment log.
        trusts_log = False
        repaired_bytes = queue.repaired_bytes
        files = files_of(files.queue, disk.list_files(folder))
        writer.unsynced_files.clear()
    try:
        writer.open_existing()
        queue.history_loaded(queue.history.current_start + writer.size)
        # New records after a STATE_DUMP would not be found again. After damage in a skipped part they would be lost.
        is_closed = is_closed or loading.skipped_bytes > 0
        queue.segments = loading.segment_log(has_checkpoint=not is_closed)
        if is_closed:
            queue.rotate(queue.boundary(), begins_file=False)
        queue.has_failed_sync = loading.has_failed_sync
    finally:
        writer.close()
    # The first commit writes these records. After a crash before that, the next load makes them again.
    queue.put_back(queue.open_xids(), failed=False)
    queue.load_ended()
    return queue


class _RestartReplay(Exception):
    """The replay must start again, with all files.

    The removals of a damaged file were dropped, or the records after the skipped ones are not as expected.
    """


class _Loading:
    """The replay of one queue's files, in order.

    The segment log is used up to the first file that is missing in it. Nothing is known of that file and later ones.
    """

    def __init__(self, disk: Disk, folder: bytes, files: QueueFiles, target: QueueReplayTarget) -> None:
        self._disk = disk
        self._folder = folder
        self._files = files
        self._target = target
        self._queue = target.queue
        self._log = SegmentLog(disk, folder, files.queue)
        self._segments, self._checkpoint = self._log.read()
        """Segments of the files that are still to be replayed, and the last checkpoint."""
        self._is_log_used = True
        current = JournalFile(files.queue, JournalFileKind.CURRENT, 0, current_name(files.queue))
        self._rest = [*files.rotated, *([current] if files.has_current else [])]
        """Files that are still to be replayed."""
        self._has_skipped_files = False
        self.skipped_bytes = 0
        """Bytes at the start of the current file that are not replayed."""
        self.has_failed_sync = False
        """True if a sync of the files has failed."""
        self._ends: list[tuple[Boundary, int]] = []
        """Boundary and size of each rotated file."""

    def replay_all(self) -> bool:
        """Replay and repair all files. Return whether the current file ends with a STATE_DUMP, which closes it."""
        is_closed = False
        while self._rest:
            file = self._rest.pop(0)
            self._recreate_missing_files(file)
            segment = None if file.kind is JournalFileKind.CURRENT else self._segment_of(file)
            end = self._replay_file(file, segment)
            if file.kind is JournalFileKind.CURRENT:
                is_closed = end.is_closed
            else:
                self._add_rotated(file.number, file.file_name, end.offset, self._queue.boundary())
        return is_closed

    def segment_log(self, *, has_checkpoint: bool) -> SegmentLog:
        """Rewrite the segment log on disk with the boundary and size of each rotated file, and return it.

        With `has_checkpoint`, a large current file gets a checkpoint at its end. The log is erased if there is nothing
        to log, or if a record of an open read had no xid. Journal files do not change.
        """
        queue = self._queue
        if has_checkpoint and queue.writer.size >= MIN_CHECKPOINT_BYTES:
            queue.checkpoint_offset = queue.writer.size
            self._ends.append((queue.boundary(), queue.writer.size))
        self._log.replace([] if self._target.counts_xids else self._ends)
        return self._log

    # Known files.

    def skip_known_files(self) -> None:
        """Restore the last state of the segment log that describes unchanged files, so that these are not replayed.

        Do nothing if the log describes no file, or if an item that it names cannot be read.
        """
        disk, folder, queue = self._disk, self._folder, self._queue
        known = known_files(disk, folder, self._log, self._rest, [*self._segments, self._checkpoint])
        last = known[-1].segment.boundary if known else None
        if last is None or last.waiting_bytes < 0:
            return
        try:
            if queue.settings.sync_journal_ms is not None:
                sync_files(disk, folder, known)
        except OSError as error:
            self.has_failed_sync = True
            reason = reason_of(error)
            log.error(
                "Queue {queue}: a sync of its files has failed: {reason}", queue=show_name(queue.name), reason=reason
            )
            return
        try:
            taken, behind_offset = find_items(self._target.open_file, known, last, queue.now_ms)
        except (OSError, LookupError) as error:
            reason = reason_of(error) if isinstance(error, OSError) else "an item is missing"
            log.warn("Queue {queue}: all its files are replayed: {reason}", queue=show_name(queue.name), reason=reason)
            return
        self._has_skipped_files = True
        queue.restore(last, taken, behind_offset)
        for each in known:
            file, segment = each
            if each.is_current:
                self.skipped_bytes = segment.size
            else:
                self._add_rotated(file.number, file.file_name, segment.size, segment.boundary)
                del self._rest[0], self._segments[0]

    # Segments of the log.

    def _recreate_missing_files(self, next_file: JournalFile) -> None:
        """Create the files that are missing before `next_file`, with records that restore the states in the segment
        log.

        Do nothing if the log does not lead from these files to `next_file`. Stop early if a state cannot be reached or
        a file exists already. In both cases the log is not used any further.
        """
        missing = list(self._segments)
        if next_file.kind is not JournalFileKind.CURRENT:
            missing = [segment for segment in missing if segment.number < next_file.number]
        if not missing:
            return
        if self._has_skipped_files:
            raise _RestartReplay
        if missing[-1].next_inode != self._disk.identity(self._folder + b"/" + next_file.file_name).inode:
            self._stop_using_log(next_file.file_name)
            return
        del self._segments[: len(missing)]
        for segment in missing:
            name = rotated_name(self._files.queue, segment.number)
            # An existing file means that the log has the number twice.
            is_there = self._disk.is_there(self._folder + b"/" + name)
            if is_there or not can_reach(self._queue.boundary(), segment.boundary):
                self._stop_using_log(next_file.file_name)
                return
            end = self._realign(name, segment, None)
            self._add_rotated(segment.number, name, end.offset, self._queue.boundary())

    def _segment_of(self, file: JournalFile) -> Segment | None:
        """Return the segment of a file, or None. After None the log is not used for later files either."""
        if self._segments:
            segment = self._segments.pop(0)
            has_number = segment.number == file.number
            if has_number and segment.inode == self._disk.identity(self._folder + b"/" + file.file_name).inode:
                return segment
        self._stop_using_log(file.file_name)
        return None

    def _stop_using_log(self, file_name: bytes) -> None:
        """Use no segments for this file and later ones. Log that once for each load."""
        self._segments = []
        if self._is_log_used:
            self._is_log_used = False
            log.info(
                "Journal file {file!r}: the segment log does not know it; from this file on, the start notices neither"
                " a missing file nor one that was cut between two records",
                file=file_name,
            )

    def _add_rotated(self, number: int, file_name: bytes, size: int, boundary: Boundary) -> None:
        """Add a file with the state at its end to the queue's history."""
        queue = self._queue
        # The previous process may have left it unsynced.
        queue.writer.unsynced_files.append(file_name)
        queue.history.rotate(number, size, file_name)
        boundary = boundary._replace(number=number, end=queue.history.current_start)
        queue.add_boundary(boundary)
        # A file without valid records was moved away by the repair.
        if self._disk.is_there(self._folder + b"/" + file_name):
            self._ends.append((boundary, size))

    # Single files.

    def _replay_file(self, file: JournalFile, segment: Segment | None) -> ReadEnd:
        """Apply the records of a file to the queue, and repair the file if it is damaged."""
        queue = self._queue
        self._target.file_name = file.file_name
        with self._target.open_file(file.file_name) as reader:
            skipped_bytes = self.skipped_bytes if file.kind is JournalFileKind.CURRENT else 0
            end = replay(reader, self._target, queue.now_ms, queue.history.current_start, skipped_bytes)
            is_scroll = reader.read(0, len(WRITER_MAGIC)) == WRITER_MAGIC
        if end.problem is not None and not end.offset and is_scroll:
            raise OSError(errno.EINVAL, "its file is one of a scroll (--storage scroll:FOLDER)")
        state = queue.boundary()
        is_as_logged = segment is not None and has_same_items(state, segment.boundary)
        if self._has_skipped_files and (
            end.problem is not None or self._target.counts_xids or (segment is not None and not is_as_logged)
        ):
            raise _RestartReplay
        if is_as_logged:
            self._repair_file(file.file_name, end)
            return end
        if segment is not None and can_reach(state, segment.boundary) and not end.is_closed:
            is_there = self._repair_file(file.file_name, end)
            return self._realign(file.file_name, segment, end.offset if is_there else None)
        if segment is not None or end.problem is not None:
            # The file is cut afterwards: a start after a crash then finds the damage and does this again.
            self._drop_removals(file.file_name)
        is_there = self._repair_file(file.file_name, end)
        if segment is not None:
            self._drop_wrong_removals(file, is_there=is_there)
        return end

    def _drop_wrong_removals(self, file: JournalFile, *, is_there: bool) -> None:
        """Keep only the items of a file that removes items which, by the segment log, were in the queue at its end.

        Always raise `_RestartReplay`.
        """
        if is_there:
            kept = quarantine(self._disk, self._folder, file.file_name, ReadEnd(0), self._queue.now_ms)
            self._queue.repaired_bytes += kept.size
            log.warn(
                "Journal file {file!r} is damaged: it removes items that it did not remove before. It was copied to"
                " {copy!r} and keeps only its items; items may be delivered again",
                file=file.file_name,
                copy=kept.copy,
            )
            self._rewrite_items_only(file)
        raise _RestartReplay

    def _rewrite_items_only(self, file: JournalFile) -> None:
        """Rewrite a file with its items only, without its removals."""
        with FileReader(self._disk, self._folder + b"/" + file.file_name) as reader:
            runs = item_records(reader, self._queue.now_ms)
            self._write_file(file.number, runs, max_growth_bytes(reader), file.file_name)
        self._disk.crash_point(crash_points.REMOVALS_DROPPED)

    def _repair_file(self, file_name: bytes, end: ReadEnd) -> bool:
        """Repair the file if the replay ended at a problem. Return whether the file still exists."""
        if end.problem is None:
            return True
        repaired = repair(self._disk, self._folder, file_name, end, self._queue.now_ms)
        self._queue.repaired_bytes += repaired.size
        log.warn(
            "Journal file {file!r}: {problem} at offset {offset}; the {size} bytes from there on were set aside in"
            " {copy!r} and the {count} records before it were kept",
            file=file_name,
            problem=end.problem,
            offset=end.offset,
            size=repaired.size,
            copy=repaired.copy,
            count=end.records,
        )
        return bool(end.offset) or end.is_unfinished

    def _realign(self, file_name: bytes, segment: Segment, offset: int | None) -> ReadEnd:
        """Append records that bring the queue to the state at the end of `segment`, and apply them. Return where they
        end.

        `offset` is the size of the file, which was already replayed. None creates the file. Raises OSError.
        """
        queue, disk = self._queue, self._disk
        state = queue.boundary()
        runs, most_bytes = transition_records(state, segment.boundary), max_transition_bytes(state, segment.boundary)
        path = self._folder + b"/" + file_name
        if offset is not None:
            if disk.free_bytes(self._folder) < most_bytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            descriptor = disk.open_append(path)
            try:
                for run in runs:
                    disk.write(descriptor, run)
                    disk.crash_point(crash_points.REALIGNED)
                disk.sync(descriptor)
            finally:
                disk.close(descriptor)
        else:
            self._write_file(segment.number, runs, most_bytes, file_name)
            disk.crash_point(crash_points.REALIGNED)
        log.warn(
            "Journal file {file!r}, which had {size} bytes, lost {lost} items of the queue; records that keep the later"
            " files correct were appended to its {offset} good bytes",
            file=file_name,
            size=segment.size,
            lost=lost_items(state, segment.boundary),
            offset=offset or 0,
        )
        self._target.file_name = file_name
        with self._target.open_file(file_name) as reader:
            return replay(reader, self._target, queue.now_ms, queue.history.current_start, offset or 0)

    def _drop_removals(self, file_name: bytes) -> None:
        """Keep only the items of the files after a damaged one, because their removals may now mean other items."""
        self._segments = []
        self._is_log_used = False
        disk, folder = self._disk, self._folder
        dropped = 0
        for file in self._rest:
            path = folder + b"/" + file.file_name
            removals, end = count_removals(disk, path)
            if not self._repair_file(file.file_name, end) or not removals:
                continue
            dropped += removals
            self._rewrite_items_only(file)
        self._rest = [file for file in self._rest if disk.is_there(folder + b"/" + file.file_name)]
        if dropped:
            log.warn(
                "Journal file {file!r} is damaged and its lost records are not known: the {count} removals in later"
                " files were dropped, so that no item of these files is lost; items may be delivered again",
                file=file_name,
                count=dropped,
            )

    def _write_file(self, number: int, runs: Iterator[bytes], most_bytes: int, file_name: bytes) -> None:
        """Create or replace the journal file `file_name`, with `runs` of records of `most_bytes` bytes at most."""
        disk, folder, queue = self._disk, self._folder, self._files.queue
        write_temporary(disk, folder, queue, number, runs, most_bytes, lambda: False)
        disk.rename(folder + b"/" + temporary_name(queue, number), folder + b"/" + file_name)
        disk.sync_folder(folder)


class QueueReplayTarget:
    """A queue that a replay rebuilds (`kestrel.journal.replay.ReplayTarget`).

    It reads items from the files when its window is empty and the head is only on disk. So the memory of a replay is
    limited to the window and the open reads, whatever the size of the files.
    """

    def __init__(self, queue: JournalQueue, open_file: OpenFile) -> None:
        self.queue = queue
        self.open_file = open_file
        self.file_name = b""
        """Name of the file that is being replayed."""
        self.counts_xids = False
        """True if a record of an open read had no xid, so that earlier records determine it."""
        self.append = queue.append
        self.extend = queue.extend
        self.next_xid = queue.next_xid
        self.open_as = queue.open_as
        self.finish = queue.finish
        self.push_back = queue.push_back

    @property
    def last_xid(self) -> int:
        """Xid of the read that was opened last."""
        return self.queue.last_xid

    @last_xid.setter
    def last_xid(self, xid: int) -> None:
        self.queue.last_xid = xid

    def drop_head(self) -> None:
        """Remove the head, if there is one."""
        queue = self.queue
        if queue.behind_items and not queue.has_head:
            self.read_on()
        queue.drop_head()

    def pop_head(self) -> Item | None:
        """Remove and return the head, or None if the queue is empty."""
        if self.queue.behind_items and not self.queue.has_head:
            self.read_on()
        return self.queue.pop_head()

    def expect_implicit_xid(self) -> None:
        """Forget all boundaries, because a pack of earlier files would change the xids that later records imply."""
        self.counts_xids = True
        self.queue.boundaries.clear()

    def read_on(self, most_bytes: int = MAX_DATA_BYTES) -> None:
        """Read the next items from behind the window: about `most_bytes` of data, but at least one item."""
        queue = self.queue
        while not queue.has_head:
            name, start, end = queue.history.file_at(queue.behind_offset)
            with self.open_file(self.file_name if end is None else name) as reader:
                read = read_items(
                    reader,
                    start,
                    queue.behind_offset,
                    start + reader.size if end is None else end,
                    queue.behind_skip,
                    queue.behind_items,
                    min(queue.room_bytes, most_bytes),
                    queue.now_ms,
                )
            if not read.records and end is None:
                raise DamagedJournalFile(errno.EIO, "the journal files have too few items")
            queue.append_read_items(read)
