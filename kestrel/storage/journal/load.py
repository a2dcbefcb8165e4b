"""Loading a queue from its journal files: replay, repair, and the open reads of the last run."""

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
from kestrel.journal.fileset import (
    JournalFile,
    JournalFileKind,
    QueueFiles,
    current_name,
    files_of,
    rotated_name,
    temporary_name,
)
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
from kestrel.journal.record_cursor import ReplayEnd
from kestrel.journal.replay import replay
from kestrel.journal.rewrite import Boundary
from kestrel.journal.segments import Segment, SegmentLog
from kestrel.journal.writer import JournalWriter
from kestrel.scroll.records import WRITER_MAGIC
from kestrel.storage.journal.queue import JournalQueue
from kestrel.storage.journal.replay_target import OpenFile, QueueReplayTarget
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
) -> JournalQueue:
    """Replay all files of a queue. A queue without files is new and empty, and gets its current file.

    Open reads go back to the head, the lowest xid first in line, and are recorded as such. Raises OSError when
    a file cannot be read. May run in a thread. `open_file` opens the files to be replayed; without it they are read
    from the folder.
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
            is_closed = loading.replay_all()
            break
        except _RestartReplay:  # at most once for each file
            repaired_bytes = queue.repaired_bytes
            files = files_of(files.queue, disk.list_files(folder))
            writer.unsynced_files.clear()
    try:
        writer.open_existing()
        queue.history_loaded(queue.history.current_start + writer.size)
        queue.segments = loading.segment_log()
        if is_closed:
            # Records behind the one that closes a file would not be read.
            queue.rotate(queue.boundary(), begins_file=False)
    finally:
        writer.close()
    queue.put_back(queue.open_xids(), failed=False)  # written with the first commit; a crash before does it again
    queue.replayed_items = queue.items
    return queue


class _RestartReplay(Exception):
    """A file was replayed whose removals are wrong. It has none any more."""


class _Loading:
    """The replay of one queue's files, one after the other.

    The segments of the log are used as long as each file is the one that the log means. From the first other file on
    nothing is known of the files.
    """

    def __init__(self, disk: Disk, folder: bytes, files: QueueFiles, target: QueueReplayTarget) -> None:
        self._disk = disk
        self._folder = folder
        self._files = files
        self._target = target
        self._queue = target.queue
        self._log = SegmentLog(disk, folder, files.queue)
        self._segments = self._log.read()
        """Those that are known of the files that are still to be replayed."""
        self._is_log_used = True
        self._rest: list[JournalFile] = []
        """The files that are still to be replayed."""
        self._ends: list[tuple[Boundary, int]] = []
        """The boundary and the size of each rotated file that was replayed."""

    def replay_all(self) -> bool:
        """Replay and repair all files. Return whether the current one ends with a record that closes it."""
        files = self._files
        current = JournalFile(files.queue, JournalFileKind.CURRENT, 0, current_name(files.queue))
        self._rest = [*files.rotated, *([current] if files.has_current else [])]
        is_closed = False
        while self._rest:
            file = self._rest.pop(0)
            self._recreate_missing_files(file)
            segment = None if file.kind is JournalFileKind.CURRENT else self._segment_of(file)
            end = self._replay(file, segment)
            if file.kind is JournalFileKind.CURRENT:
                is_closed = end.is_closed
            else:
                self._add_rotated(file.number, file.file_name, end.offset)
        return is_closed

    def segment_log(self) -> SegmentLog:
        """Return the log, which knows these files from now on."""
        self._log.replace([] if self._target.counts_xids else self._ends)
        return self._log

    # Which segment of the log means which file.

    def _recreate_missing_files(self, next_file: JournalFile) -> None:
        """Make the files that are missing in front of that one, if the log knows them and that it followed them."""
        missing = list(self._segments)
        if next_file.kind is not JournalFileKind.CURRENT:
            missing = [segment for segment in missing if segment.number < next_file.number]
        if not missing:
            return
        if missing[-1].next_inode != self._disk.inode(self._folder + b"/" + next_file.file_name):
            self._stop_using_log(next_file.file_name)
            return
        del self._segments[: len(missing)]
        for segment in missing:
            name = rotated_name(self._files.queue, segment.number)
            is_there = self._disk.is_there(self._folder + b"/" + name)  # the log has it twice
            if is_there or not can_reach(self._queue.boundary(), segment.boundary):
                self._stop_using_log(next_file.file_name)
                return
            end = self._realign(name, segment, None)
            self._add_rotated(segment.number, name, end.offset)

    def _segment_of(self, file: JournalFile) -> Segment | None:
        """Return the segment that means this file, or None; then nothing is known of later files either."""
        if self._segments:
            segment = self._segments.pop(0)
            is_it = segment.number == file.number
            if is_it and segment.inode == self._disk.inode(self._folder + b"/" + file.file_name):
                return segment
        self._stop_using_log(file.file_name)
        return None

    def _stop_using_log(self, file_name: bytes) -> None:
        """Use no segment for this file and those behind it. Write one log line for each load."""
        self._segments = []
        if self._is_log_used:
            self._is_log_used = False
            log.info(
                "Journal file {file!r}: the segment log does not know it; from there on the start notices neither a"
                " missing file nor a cut between two records",
                file=file_name,
            )

    def _add_rotated(self, number: int, file_name: bytes, size: int) -> None:
        queue = self._queue
        queue.writer.unsynced_files.append(file_name)  # whether it is synced is not known
        queue.history.rotate(number, size, file_name)
        boundary = queue.boundary()._replace(number=number, end=queue.history.current_start)
        queue.add_boundary(boundary)
        if self._disk.is_there(self._folder + b"/" + file_name):  # else it was set aside whole
            self._ends.append((boundary, size))

    # One file.

    def _replay(self, file: JournalFile, segment: Segment | None) -> ReplayEnd:
        """Do the records of a file, and repair it where that is needed."""
        queue = self._queue
        self._target.file_name = file.file_name
        with self._target.open_file(file.file_name) as reader:
            end = replay(reader, self._target, queue.now_ms, queue.history.current_start)
            is_scroll = reader.read(0, len(WRITER_MAGIC)) == WRITER_MAGIC
        if end.problem is not None and not end.offset and is_scroll:
            raise OSError(errno.EINVAL, "its file is one of a scroll (--storage scroll:FOLDER)")
        now = queue.boundary()
        if segment is not None and has_same_items(now, segment.boundary):
            self._cut(file.file_name, end)
            return end
        if segment is not None and can_reach(now, segment.boundary) and not end.is_closed:
            is_there = self._cut(file.file_name, end)
            return self._realign(file.file_name, segment, end.offset if is_there else None)
        if segment is not None or end.problem is not None:
            self._drop_removals(file.file_name)  # first: as long as this file is damaged a start does it again
        is_there = self._cut(file.file_name, end)
        if segment is not None:
            self._drop_wrong_removals(file, is_there=is_there)
        return end

    def _drop_wrong_removals(self, file: JournalFile, *, is_there: bool) -> None:
        """Leave only the items in a file that removes items which the segment log says were in the queue behind it.

        Raises `_RestartReplay`.
        """
        if is_there:
            kept = quarantine(self._disk, self._folder, file.file_name, ReadEnd(0), self._queue.now_ms)
            self._queue.repaired_bytes += kept.size
            log.warn(
                "Journal file {file!r} is damaged: it removes items that it did not remove before. It was copied to"
                " {copy!r} and keeps its items alone; items may be delivered again",
                file=file.file_name,
                copy=kept.copy,
            )
            self._rewrite_items_only(file)
        raise _RestartReplay

    def _rewrite_items_only(self, file: JournalFile) -> None:
        with FileReader(self._disk, self._folder + b"/" + file.file_name) as reader:
            runs = item_records(reader, self._queue.now_ms)
            self._write(file.number, runs, max_growth_bytes(reader), file.file_name)
        self._disk.crash_point(crash_points.REMOVALS_DROPPED)

    def _cut(self, file_name: bytes, end: ReplayEnd) -> bool:
        """Set aside what is no record. Return whether there still is such a file."""
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

    def _realign(self, file_name: bytes, segment: Segment, offset: int | None) -> ReplayEnd:
        """Append the records that lead to the segment's end, and do them.

        The file was replayed and ends at that offset. None: there is no such file, and it is made.
        """
        queue, disk = self._queue, self._disk
        now = queue.boundary()
        runs, most_bytes = transition_records(now, segment.boundary), max_transition_bytes(now, segment.boundary)
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
            self._write(segment.number, runs, most_bytes, file_name)
            disk.crash_point(crash_points.REALIGNED)
        log.warn(
            "Journal file {file!r}, which had {size} bytes, lost {lost} items of the queue; records that keep the later"
            " files right were appended to its {offset} good bytes",
            file=file_name,
            size=segment.size,
            lost=lost_items(now, segment.boundary),
            offset=offset or 0,
        )
        self._target.file_name = file_name
        with self._target.open_file(file_name) as reader:
            return replay(reader, self._target, queue.now_ms, queue.history.current_start, offset or 0)

    def _drop_removals(self, file_name: bytes) -> None:
        """Leave only the items in the files behind a damaged one: it is not known what their removals mean."""
        self._segments = []
        self._is_log_used = False
        disk, folder = self._disk, self._folder
        dropped = 0
        for file in self._rest:
            path = folder + b"/" + file.file_name
            removals, end = count_removals(disk, path)
            if not self._cut(file.file_name, end) or not removals:
                continue
            dropped += removals
            self._rewrite_items_only(file)
        self._rest = [file for file in self._rest if disk.is_there(folder + b"/" + file.file_name)]
        if dropped:
            log.warn(
                "Journal file {file!r} is damaged and nothing is known of its lost records: the {count} removals in"
                " later files were dropped, so that no item of theirs is lost; items may be delivered again",
                file=file_name,
                count=dropped,
            )

    def _write(self, number: int, runs: Iterator[bytes], most_bytes: int, file_name: bytes) -> None:
        """Let these records be the file of that name."""
        disk, folder, queue = self._disk, self._folder, self._files.queue
        write_temporary(disk, folder, queue, number, runs, most_bytes, lambda: False)
        disk.rename(folder + b"/" + temporary_name(queue, number), folder + b"/" + file_name)
        disk.sync_folder(folder)
