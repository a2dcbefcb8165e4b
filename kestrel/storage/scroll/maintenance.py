"""What goes on beside the operations of one scroll: its syncs, its reading, and files that no reader needs any more."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from kestrel.disk import crash_points
from kestrel.disk.copy import copy_range
from kestrel.disk.folders import DAMAGED_FOLDER
from kestrel.disk.reader import FileReader
from kestrel.scroll.fileset import archived_name
from kestrel.scroll.hints import MAX_HINT_BYTES, FileHint, encode_hint, hint_path
from kestrel.storage.failures import error_of, reason_of
from kestrel.storage.scroll.files import replace_file, sync_files
from kestrel.storage.scroll.journal import ScrollJournal
from kestrel.storage.scroll.queue import ScrollQueue
from kestrel.storage.scroll.read_behind import ScrollReadBehind
from kestrel.storage.scroll.scroll_resources import ScrollResources
from kestrel.storage.scroll.sync_scheduler import ScrollSyncScheduler

log = Logger(__name__)

LARGE_LAST_FILE_BYTES: Final = 1 << 20
"""The last writer file goes as well when nobody needs it and it is larger than that."""

HINTED_BYTES: Final = 256 * 1024
"""A journal that is smaller is read as fast without a hint."""

HINTED_ITEMS: Final = 10_000
"""A hint is written again when so many items more were put or done."""


HINTED_HOLES: Final = 1000
"""Of each reader the places of so many items are hinted that stand behind others that are done."""


class ScrollMaintenance:
    """The upkeep of one journal."""

    def __init__(self, journal: ScrollJournal, resources: ScrollResources) -> None:
        self._journal = journal
        self._resources = resources
        self.sync = ScrollSyncScheduler(journal, resources, self.drop_done_files)
        self._read_behinds: dict[ScrollQueue, ScrollReadBehind] = {}
        self._hinted = 0
        self._removing: set[bytes] = set()
        """Files that a thread is at."""
        self._is_dropping_last = False
        for queue in journal.readers.values():
            self.add_reader(queue)

    def add_reader(self, queue: ScrollQueue) -> None:
        """A queue is a reader of the journal from now on."""
        self._read_behinds[queue] = ScrollReadBehind(queue, self._journal, self._resources)
        self._journal.settings_changed()
        if queue.file.size > queue.file.synced_size:
            self._journal.unsynced_readers.add(queue)

    def remove_reader(self, queue: ScrollQueue) -> None:
        """It is no more."""
        del self._read_behinds[queue]
        self._journal.unsynced_readers.discard(queue)
        self._journal.settings_changed()

    def written(self, queues: Sequence[ScrollQueue]) -> Deferred[None] | None:
        """What was recorded on these queues was written just now; returns as `ScrollSyncScheduler.written`."""
        done = self.sync.written(queues)
        for queue in queues:
            if queue.behind_items:
                self._read_behinds[queue].read_ahead()
        return done

    def checkpoint(self) -> None:
        """Write reader files anew that have grown."""
        readers = list(self._journal.readers.values())
        for queue in readers:
            queue.skip_items_of_others()
        self.sync.checkpoint(readers)
        self.sync.start_due_work()
        for file_name in self._journal.obsolete_files:
            self._begin_to_remove(file_name)

    # Files that nobody needs.

    def drop_done_files(self) -> None:
        """Erase or archive the writer files that all readers have done with; the last one stays, unless it is large."""
        journal = self._journal
        files = journal.files
        if not files or journal.unserved or journal.unsynced_deletions or not journal.readers:
            return
        may_go_last = files[-1].size >= LARGE_LAST_FILE_BYTES or self._resources.is_disk_full()
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
        log.error("The last file of {stem!r} stays: {reason}", stem=self._journal.stem, reason=reason)

    async def _drop_last(self, last_id: int) -> None:
        """Then only the readers know which ids were given: that must be on the medium first."""
        journal, resources = self._journal, self._resources
        try:
            paths = [queue.file.path for queue in journal.readers.values()]
            await resources.jobs.run(sync_files, resources.disk, resources.folder, paths)
            if journal.last_id == last_id and len(journal.files) == 1 and journal.readers and not journal.unserved:
                journal.rotate()
                self._drop_first()
        finally:
            self._is_dropping_last = False

    def _not_removed(self, failure: Failure, file_name: bytes) -> None:
        """It is tried again with the next checkpoint."""
        self._removing.discard(file_name)
        log.error(
            "File {file!r}, which nobody needs any more, cannot be {what}: {reason}. It is tried again",
            file=file_name,
            what="erased" if self._resources.archive is None else f"moved to the archive {self._resources.archive!r}",
            reason=reason_of(error_of(failure)),
        )

    def _remove(self, file_name: bytes) -> None:
        """Erase it, or move it to the archive; one with a damaged end is set aside. Runs in a thread."""
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
            return  # its queue was deleted meanwhile
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            self._copy_to_archive(path, target)

    def _copy_to_archive(self, path: bytes, target: bytes) -> None:
        """The archive is on another file system."""
        disk = self._resources.disk
        temporary = target + b"~~"
        disk.erase(temporary)
        try:
            with FileReader(disk, path) as reader:
                copy_range(disk, reader, 0, reader.size, temporary)
            disk.rename(temporary, target)
        except OSError:
            with suppress(OSError):
                disk.erase(temporary)
            raise
        disk.sync_folder(os.path.dirname(target))
        disk.crash_point(crash_points.COPY_PUBLISHED)
        disk.erase(path)

    # Hints.

    @property
    def progress(self) -> int:
        """How much was put and done, in items."""
        return self._journal.written_id + sum(queue.done.head for queue in self._journal.readers.values())

    def due_hint(self, least_progress: int = HINTED_ITEMS) -> list[FileHint] | None:
        """What a hint is to say, if there is so much more to tell than the last one did."""
        journal = self._journal
        progress = self.progress
        if journal.bytes < HINTED_BYTES or progress - self._hinted < least_progress:
            return None
        self._hinted = progress
        next_ids = {first for queue in journal.readers.values() for first in queue.done.holes(HINTED_HOLES)}
        in_order = sorted(next_ids)
        return [FileHint.of(file, in_order) for file in journal.files if file.first_id]

    # The end.

    def closing(self, compacts: bool) -> Callable[[], None]:
        """What is to be done in a thread when nothing follows: a checkpoint of each reader, and a hint.

        `compacts`: of a journal that nobody needs anything of no writer file stays; its readers know the last id.
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
        spent = [file.file_name for file in journal.files] if compacts and is_drained else []

        def close() -> None:
            for path, data in checkpoints:
                replace_file(resources.disk, path, data, resources.numbers.next(), is_synced=True)
            if syncs_folder:
                resources.disk.sync_folder(resources.folder)
            for file_name in spent:
                self._remove(file_name)
            if hint is not None:
                self.write_hint(hint)

        return close

    def write_hint(self, hint: list[FileHint]) -> None:
        """Write a hint, or not: a start does without it. Runs in a thread."""
        resources = self._resources
        path = hint_path(resources.folder, self._journal.stem)
        contents = encode_hint(hint)
        if len(contents) <= MAX_HINT_BYTES:
            with suppress(OSError):
                replace_file(resources.disk, path, contents, resources.numbers.next(), is_synced=False)
