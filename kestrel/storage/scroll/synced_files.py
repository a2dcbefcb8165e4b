"""The files of a scroll journal, as the sync scheduler sees them: what is unsynced, and one sync of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kestrel.disk.files import Disk
from kestrel.scroll.writer_file import WriterFile
from kestrel.storage.failures import CannotOpen
from kestrel.storage.scroll.journal import ScrollJournal
from kestrel.storage.scroll.queue import ScrollQueue
from kestrel.storage.scroll.scroll_resources import ScrollResources


class SyncedPart(NamedTuple):
    """A file that a sync covers, up to `size`.

    `done_id` is the queue's `written_done_id`, and 0 for a writer file. `descriptor` is None for a file that the sync
    must open.
    """

    owner: WriterFile | ScrollQueue
    path: bytes
    size: int
    done_id: int
    descriptor: int | None


class ScrollSync(NamedTuple):
    """The files, the last item and the number of names that one sync covers."""

    parts: Sequence[SyncedPart]
    written_id: int
    names: int
    syncs_folder: bool


class ScrollSyncedFiles:
    """The writer files and reader files of one journal (`kestrel.storage.log.sync_scheduler.SyncedFiles`)."""

    def __init__(self, journal: ScrollJournal, resources: ScrollResources) -> None:
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

    def is_covered(self, sync: ScrollSync | None, queues: Sequence[ScrollQueue]) -> bool:
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

    def begin_sync(self) -> ScrollSync:
        """Return a sync of all unsynced data. Raise OSError if a descriptor cannot be duplicated."""
        journal, parts = self._journal, []
        try:
            for file in journal.unsynced:
                descriptor = journal.current_descriptor(file)
                parts.append(SyncedPart(file, self._resources.path(file.file_name), file.size, 0, descriptor))
        except OSError:
            _close(self._resources.disk, parts)
            raise
        for queue in journal.unsynced_readers:
            if not queue.is_deleted:
                parts.append(SyncedPart(queue, queue.file.path, queue.file.size, queue.written_done_id, None))
        return ScrollSync(parts, journal.written_id, journal.names, not journal.has_synced_names)

    def run_sync(self, sync: ScrollSync) -> None:
        """Sync the files of `sync` in order, then the folder if required. Close all descriptors. Runs in a thread."""
        disk = self._resources.disk
        try:
            for part in sync.parts:
                _sync_part(disk, part)
            if sync.syncs_folder:
                disk.sync_folder(self._resources.folder)
        finally:
            _close(disk, sync.parts)

    def synced(self, sync: ScrollSync) -> bool:
        """Record that `sync` has succeeded. Return False if it must be repeated because a file was renamed."""
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
                is_whole = is_whole and part.owner.is_deleted
        journal.synced_names = sync.names
        if is_whole:
            journal.safe_id = max(journal.safe_id, sync.written_id)
        return is_whole

    def sync_failed(self) -> None:
        """Do nothing: the journal truncates its files when it fails."""


def _sync_part(disk: Disk, part: SyncedPart) -> None:
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


def _close(disk: Disk, parts: Sequence[SyncedPart]) -> None:
    for part in parts:
        if part.descriptor is not None:
            disk.close(part.descriptor)
