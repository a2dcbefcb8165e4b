"""Background work on one scroll: checkpoints, hints, the removal of files that are done, and read-behind."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from twisted.internet.defer import Deferred, fail
from twisted.logger import Logger
from twisted.python.failure import Failure

from kestrel.disk import crash_points
from kestrel.disk.folders import DAMAGED_FOLDER
from kestrel.disk.reader import FileReader, copy_range, erased_on_error
from kestrel.escaping import show_name
from kestrel.scroll.fileset import archived_name
from kestrel.scroll.hints import MAX_HINT_BYTES, FileHint, encode_hint, hint_path
from kestrel.scroll.item_reader import DamagedScrollFile, ScrollItemsRead, read_items
from kestrel.scroll.writer_file import WriterFile
from kestrel.storage.failures import error_of, reason_of
from kestrel.storage.folder_resources import FolderResources
from kestrel.storage.log.read_ahead import ReadAhead
from kestrel.storage.scroll.files import replace_file, sync_files
from kestrel.storage.scroll.journal import ScrollJournal
from kestrel.storage.scroll.queue import WINDOW_BYTES, WINDOW_ITEMS, ScrollQueue
from kestrel.storage.scroll.rewriter import ScrollSyncScheduler

log = Logger(__name__)

LARGE_LAST_FILE_BYTES: Final = 1 << 20
"""Minimum size of a last writer file that is removed when all readers are done with it."""

HINTED_BYTES: Final = 256 * 1024
"""Smallest journal that gets a hint. A smaller one loads as fast without."""

HINTED_ITEMS: Final = 10_000
"""Number of puts and done items after which a new hint is written."""

HINTED_HOLES: Final = 1000
"""Maximum number of gaps between done items whose positions a hint stores, for each reader."""


class ScrollMaintenance:
    """The background work on one journal."""

    def __init__(self, journal: ScrollJournal, resources: FolderResources) -> None:
        self._journal = journal
        self._resources = resources
        self.sync = ScrollSyncScheduler(journal, resources, self.drop_done_files)
        self._read_behinds: dict[ScrollQueue, ScrollReadBehind] = {}
        self._hinted_progress = 0
        self._removing: set[bytes] = set()
        """Names of files that a thread is removing."""
        self._is_dropping_last = False
        for queue in journal.readers.values():
            self.add_reader(queue)

    def add_reader(self, queue: ScrollQueue) -> None:
        """Add a queue to the maintained readers of the journal."""
        self._read_behinds[queue] = ScrollReadBehind(queue, self._journal, self._resources)
        self._journal.settings_changed()
        if queue.file.size > queue.file.synced_size:
            self._journal.unsynced_readers.add(queue)

    def remove_reader(self, queue: ScrollQueue) -> None:
        """Remove a queue that is no longer a reader of the journal."""
        del self._read_behinds[queue]
        self._journal.unsynced_readers.discard(queue)
        self._journal.settings_changed()

    def written(self, queues: Sequence[ScrollQueue]) -> Deferred[None] | None:
        """Handle a write of the changes of `queues`: arrange the sync and start read-ahead.

        Return None if the changes are as durable as syncJournal requires. Otherwise return a Deferred that fires when
        they are synced, or fails with `QueueFailed`.
        """
        done = self.sync.written(queues)
        for queue in queues:
            if queue.behind_items:
                self._read_behinds[queue].read_ahead()
        return done

    def checkpoint(self) -> None:
        """Rewrite reader files that have grown or are out of date, and retry removals of files that failed."""
        readers = list(self._journal.readers.values())
        for queue in readers:
            queue.skip_items_of_others()
        self.sync.checkpoint(readers)
        for file_name in self._journal.obsolete_files:
            self._begin_to_remove(file_name)

    # Files that no reader needs.

    def drop_done_files(self) -> None:
        """Erase or archive the writer files that all readers are done with.

        The last file is kept unless it is large or the disk is full.
        """
        journal = self._journal
        files = journal.files
        if not files or journal.unserved or journal.unsynced_deletions or not journal.readers:
            return
        may_go_last = files[-1].size >= LARGE_LAST_FILE_BYTES or self._resources.disk_reserve.refusal is not None
        if len(files) == 1 and not may_go_last:
            return
        is_safe_when_synced = journal.sync_period_ms == 0
        head = files[-1].last_id
        for queue in journal.readers.values():
            head = min(head, queue.synced_done_id if is_safe_when_synced else queue.written_done_id)
            if head < files[0].last_id:
                return
        while len(files) > 1 and files[0].last_id <= head:
            self._drop_first()
        if may_go_last and head >= journal.last_id and not self._is_dropping_last:
            self._is_dropping_last = True
            Deferred.fromCoroutine(self._drop_last(journal.last_id)).addErrback(self._log_last_not_dropped)

    def _drop_first(self) -> None:
        """Drop the first writer file from the journal and start its removal."""
        file = self._journal.files.pop(0)
        self._journal.unsynced.pop(file, None)
        self._journal.obsolete_files[file.file_name] = file.size
        self._begin_to_remove(file.file_name)

    def _begin_to_remove(self, file_name: bytes) -> None:
        if file_name not in self._removing:
            self._removing.add(file_name)
            self._resources.jobs.run(self._remove, file_name).addCallbacks(
                self._removed, self._not_removed, callbackArgs=(file_name,), errbackArgs=(file_name,)
            )

    def _removed(self, _: object, file_name: bytes) -> None:
        self._removing.discard(file_name)
        self._journal.obsolete_files.pop(file_name, None)

    def _log_last_not_dropped(self, failure: Failure) -> None:
        reason = reason_of(error_of(failure))
        log.error(
            "The last file of scroll {stem} cannot be removed: {reason}. The next commit tries again",
            stem=show_name(self._journal.stem),
            reason=reason,
        )

    async def _drop_last(self, last_id: int) -> None:
        """Sync the reader files, then remove the last writer file if no item was put meanwhile."""
        journal, resources = self._journal, self._resources
        try:
            # Without a writer file only the reader files show which ids have been used.
            paths = [queue.file.path for queue in journal.readers.values()]
            await resources.jobs.run(sync_files, resources.disk, resources.folder, paths)
            if journal.last_id == last_id and len(journal.files) == 1 and journal.readers and not journal.unserved:
                journal.rotate()
                self._drop_first()
        finally:
            self._is_dropping_last = False

    def _not_removed(self, failure: Failure, file_name: bytes) -> None:
        """Log that a file could not be removed. The next checkpoint tries again."""
        self._removing.discard(file_name)
        log.error(
            "File {file!r}, which no queue needs any longer, cannot be {what}: {reason}. It is tried again",
            file=file_name,
            what="erased" if self._resources.archive is None else f"moved to the archive {self._resources.archive!r}",
            reason=reason_of(error_of(failure)),
        )

    def _remove(self, file_name: bytes) -> None:
        """Erase a file or move it to the archive. Runs in a thread.

        A file whose damaged end could not be set aside is moved to the folder of damaged files.
        """
        resources = self._resources
        path = resources.path(file_name)
        if file_name in self._journal.unrepaired:
            damaged = resources.path(DAMAGED_FOLDER)
            resources.disk.make_folder(damaged)
            resources.disk.rename(path, damaged + b"/" + file_name)
            return
        if resources.archive is None:
            resources.disk.erase(path)
            return
        resources.disk.make_folder(resources.archive)
        target = resources.archive + b"/" + archived_name(file_name)
        try:
            resources.disk.rename(path, target)
        except FileNotFoundError:
            return  # the journal was deleted meanwhile
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            self._copy_to_archive(path, target)

    def _copy_to_archive(self, path: bytes, target: bytes) -> None:
        """Copy the file `path` to `target` on another file system, then erase it."""
        disk = self._resources.disk
        temporary = target + b"~~"
        disk.erase(temporary)
        with erased_on_error(disk, [temporary]):
            with FileReader(disk, path) as reader:
                copy_range(disk, reader, 0, reader.size, temporary)
            disk.rename(temporary, target)
        disk.sync_folder(os.path.dirname(target))
        disk.crash_point(crash_points.COPY_PUBLISHED)
        disk.erase(path)

    # Hints.

    @property
    def progress(self) -> int:
        """The last written id, plus the heads of all readers."""
        return self._journal.written_id + sum(queue.done.head for queue in self._journal.readers.values())

    def due_hint(self, least_progress: int = HINTED_ITEMS) -> list[FileHint] | None:
        """Return the content of a new hint, or None if no hint is due.

        A hint is due if the journal has at least `HINTED_BYTES`, and `progress` has grown by `least_progress` since the
        last hint.
        """
        journal = self._journal
        progress = self.progress
        if journal.bytes < HINTED_BYTES or progress - self._hinted_progress < least_progress:
            return None
        self._hinted_progress = progress
        next_ids = {first for queue in journal.readers.values() for first in queue.done.holes(HINTED_HOLES)}
        in_order = sorted(next_ids)
        return [FileHint.of(file, in_order) for file in journal.files if file.first_id]

    # Closing.

    def closing(self, compacts: bool) -> Callable[[], None]:
        """Return a function that checkpoints the readers and writes a hint. It must run in a thread, after all commits.

        If `compacts` is true and all readers are drained, the function also removes all writer files. The reader files
        keep the last id.
        """
        journal, resources = self._journal, self._resources
        for queue in journal.readers.values():
            queue.skip_items_of_others()
        syncs_folder = self._journal.sync_period_ms is not None
        checkpoints = [
            (queue.file.path, queue.begin_checkpoint())
            for queue in journal.readers.values()
            if queue.file.size != len(queue.checkpoint()) or queue.has_changes
        ]
        hint = self.due_hint(1)
        is_drained = not journal.unserved and all(queue.is_drained for queue in journal.readers.values())
        drained_files = [file.file_name for file in journal.files] if compacts and is_drained else []

        def close() -> None:
            for path, data in checkpoints:
                replace_file(resources.disk, path, data, resources.numbers.next(), is_synced=True)
            if syncs_folder:
                resources.disk.sync_folder(resources.folder)
            for file_name in drained_files:
                self._remove(file_name)
            if hint is not None:
                self.write_hint(hint)

        return close

    def write_hint(self, hint: list[FileHint]) -> None:
        """Write a hint, and ignore errors because a start works without hints. Runs in a thread."""
        resources = self._resources
        path = hint_path(resources.folder, self._journal.stem)
        contents = encode_hint(hint)
        if len(contents) <= MAX_HINT_BYTES:
            with suppress(OSError):
                replace_file(resources.disk, path, contents, resources.numbers.next(), is_synced=False)


class ScrollReadBehind(ReadAhead[ScrollQueue]):
    """The reader of one queue's items that are only in its journal."""

    def __init__(self, queue: ScrollQueue, journal: ScrollJournal, resources: FolderResources) -> None:
        super().__init__(queue, resources)
        self._journal = journal
        self._file: WriterFile | None = None
        """File of the read that runs, or was the last."""

    def read_more(self) -> Deferred[None] | None:
        """Bring the next items into the window.

        Return None if they came from memory. Otherwise return a Deferred that fires when a read is done, or fails with
        `QueueFailed`.
        """
        if not self._is_next_unwritten:
            return super().read_more()
        self._journal.fill_from_pending(self._queue)
        return self._check_count()

    @property
    def _is_next_unwritten(self) -> bool:
        """True if the next item is not yet written to a file."""
        return self._journal.file_with(self._queue.next_id) is None

    def _check_count(self) -> Deferred[None] | None:
        """Return None, or fail the journal if the queue counts items that neither its files nor memory contain.

        All files of a failed journal are indexed again when it is reopened.
        """
        if self._queue.has_head or not self._queue.behind_items:
            return None
        for file in self._journal.files:
            self._journal.mark_untrusted(file)
        return fail(self._resources.kill(self._journal, DamagedScrollFile(errno.EIO, "its files lack items")))

    def read_ahead(self) -> None:
        """Start a read if at least half of the window is empty."""
        queue = self._queue
        is_low = 2 * queue.mem_bytes <= WINDOW_BYTES and 2 * queue.mem_items <= WINDOW_ITEMS
        if queue.behind_items and is_low and queue.has_room and not self._is_next_unwritten:
            self._begin_read()

    async def _next_read(self) -> Callable[[], ScrollItemsRead] | None:
        queue = self._queue
        if queue.failure is not None or not queue.behind_items:
            return None
        queue.next_id, last_id = queue.done.hole(queue.next_id)
        file = self._file = self._journal.file_with(queue.next_id)
        if file is None:
            return None  # the next item is not written yet, so it is in memory
        offset = file.before(queue.next_id).offset
        if queue.file_position[0] == file.file_name:
            offset = max(offset, queue.file_position[1])
        queue.file_position = file.file_name, offset
        most_items = max(1, WINDOW_ITEMS - queue.mem_items)
        if last_id is not None:
            most_items = min(most_items, last_id - queue.next_id + 1)
        span = offset, file.size, queue.next_id
        return partial(self._read_part, file.file_name, file.last_id, *span, most_items, queue.room_bytes)

    def _read_part(
        self, file_name: bytes, last_id: int, offset: int, end: int, first_id: int, *room: int
    ) -> ScrollItemsRead:
        """Read items from a file, which may grow meanwhile. Runs in a thread.

        Raise `DamagedScrollFile` if the file does not contain the ids that its index promises.
        """
        with self._journal.open_file(file_name) as reader:
            read = read_items(reader, offset, end, first_id, self._queue.reader, *room)
        if read.next_id > last_id + 1 or (not read.records and read.next_id <= last_id):
            raise DamagedScrollFile(errno.EIO, "the journal file is damaged")
        return read

    def _failed(self, error: Exception) -> None:
        if not isinstance(error, DamagedScrollFile):
            return
        if self._file is not None:
            self._journal.mark_untrusted(self._file)
        # A failed read-ahead has no caller. The next get repeats the read and reports the error.
        if self._waiting and self._queue.failure is None:
            self._resources.kill(self._journal, error)  # reopening repairs the file
