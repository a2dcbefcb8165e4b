"""The journal storage, which keeps each queue in Kestrel's journal files.

All changes of a queue in one tick are one write. With syncJournal = 0 their replies wait for an fsync in a thread. With
a period the fsync follows within the period. A queue whose disk fails accepts no calls until it is replayed from its
files. docs/storage.md describes the failures.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from twisted.internet.defer import Deferred, DeferredList, succeed
from twisted.logger import Logger
from zope.interface import classImplements

from kestrel.config.model import QueueSettings
from kestrel.disk.folders import ERASE_FOLDER
from kestrel.errors import BadQueueName, QueueFailed, StorageError
from kestrel.escaping import show_name
from kestrel.journal.fileset import (
    MAX_FILE_NAME_BYTES,
    QueueFiles,
    current_name,
    erase_deleted,
    files_of,
    group_by_queue,
    mark_deleted,
)
from kestrel.journal.pack import finish_interrupted
from kestrel.journal.writer import JournalWriter
from kestrel.storage.failures import reason_of
from kestrel.storage.folder_resources import claim_folder
from kestrel.storage.interfaces import IQueueStorage, IStorage, SettingsFor
from kestrel.storage.journal.load import load_queue
from kestrel.storage.journal.maintenance import JournalMaintenance
from kestrel.storage.journal.queue import JournalQueue
from kestrel.storage.log.folder_storage import IS_LOADING, FolderStorage, UnitLoad, load_failed

log = Logger(__name__)

IS_ENDING: Final = "the queue's files are being replaced or synced: try again in a moment"


class JournalStorage(FolderStorage[JournalQueue, JournalMaintenance]):
    """A storage for all queues of one folder (`IStorage`). Each queue is a unit."""

    trusts_logs = True
    """Whether a start skips unchanged files that a segment log describes. Their items are then only on disk."""

    # Start and stop.

    def _find_units(self, settings_for: SettingsFor) -> Sequence[UnitLoad]:
        claim_folder(self._disk, self._folder, "journal")
        queues = group_by_queue(self._disk.list_files(self._folder))
        # Deleted files count too: a new file must have a greater number than every deletion mark.
        self._resources.numbers.mark_used(number for files in queues.values() for number in files.numbers())
        deleted = [name for name, files in queues.items() if files.deleted]
        for name in [name for name, files in queues.items() if not files.has_items]:
            finish_interrupted(self._disk, self._folder, queues.pop(name))
        erase_folder = self._resources.path(ERASE_FOLDER)
        to_erase = self._disk.list_files(erase_folder) if self._disk.is_there(erase_folder) else []
        for name in to_erase:
            self._resources.erase_later(self._disk.erase, erase_folder + b"/" + name)
        for name in deleted:
            self._erase_deleted(name)
        return [
            UnitLoad(name, partial(self._load_at_start, files, settings_for(name)), partial(list, [name]))
            for name, files in queues.items()
        ]

    def _load_at_start(self, files: QueueFiles, settings: QueueSettings) -> JournalQueue:
        trusts_log = self.trusts_logs and current_name(files.queue) not in self._resources.failed_syncs
        queue = self._load(files, settings, trusts_log=trusts_log)
        # The queues after this one may use only the memory that remains.
        queue.report_memory()
        return queue

    def _load(self, files: QueueFiles, settings: QueueSettings, *, trusts_log: bool = False) -> JournalQueue:
        resources = self._resources
        writer = JournalWriter(self._disk, self._folder, files.queue, resources.numbers.next)
        return load_queue(
            self._disk,
            self._folder,
            files,
            settings,
            writer,
            resources.now_ms(),
            memory=resources.memory_limit,
            trusts_log=trusts_log,
        )

    def close(self, compacts: bool = False) -> Deferred[None]:
        """Write pending records, sync all queues whose syncJournal is not "never", and unlock the folder.

        `compacts`: truncate the files of drained queues too.
        """
        for maintenance in self._maintenance.values():
            maintenance.rewriter.stop_unless_urgent()
        return super().close(compacts)

    def _finish(self, compacts: bool) -> None:
        """Write the last checkpoints. If `compacts`, truncate the files of queues without items and open reads."""
        for queue in self._units.values():
            if compacts and queue.is_drained:
                try:
                    queue.writer.empty()
                    if queue.segments is not None:
                        queue.segments.erase()
                except OSError as error:
                    log.error("Queue {queue}: {reason}", queue=show_name(queue.name), reason=reason_of(error))
            elif queue.needs_last_checkpoint:
                queue.add_checkpoint(queue.boundary())

    # Queues.

    def queue(self, name: bytes, settings: QueueSettings) -> JournalQueue:
        """Return the live queue `name`, reload it from its files if it has failed, or create it.

        Raise `BadQueueName`, or `QueueFailed` if the queue cannot be loaded now.
        """
        queue = self._units.get(name)
        if queue is not None:
            if queue.settings is not settings:
                queue.settings = settings
                self._maintenance[queue].sync.settings_changed()
            return queue
        if len(current_name(name)) > MAX_FILE_NAME_BYTES:
            raise BadQueueName("queue name is too long for a file name")
        try:
            self._check_free(name, group_by_queue)
            files = self._remaining_files(name)
            size = sum(self._disk.length(self._resources.path(file_name)) for file_name in files.in_replay_order())
            return self._open(name, lambda: self._load(files, settings), is_small=size <= self.reload_inline_bytes)
        except OSError as error:
            raise load_failed(error) from error

    def _remaining_files(self, name: bytes) -> QueueFiles:
        """Return the files of a queue that is not live, after cutting failed records. Only a failed queue has files."""
        if name not in self._failed:
            return QueueFiles(name)
        failed = self._failed[name]
        if failed is not None:
            self._truncate_failed_files(failed)
            failed.writer.close()
        return files_of(name, self._disk.list_files(self._folder))

    def _adopt(self, queue: JournalQueue) -> None:
        """Make a loaded queue live. Schedule a sync, because an earlier process may have left its files unsynced."""
        self._units[queue.name] = queue
        queue.disk_reserve = self._disk_reserve
        maintenance = self._maintenance[queue] = JournalMaintenance(queue, self._resources)
        if queue.has_failed_sync or current_name(queue.name) in self._resources.failed_syncs:
            maintenance.sync.rewrite_after_load()
        maintenance.sync.settings_changed()
        queue.report_memory()
        if maintenance.is_due() and self._write(queue, (queue,)) is None:
            maintenance.begin_after_load()

    def _retire(self, queue: JournalQueue, why: str) -> None:
        """Make the queue object fail for the reason `why`, and release what it uses."""
        self._units.pop(queue.name, None)
        self._resources.open_files.close(queue.writer)
        queue.end(why)
        maintenance = self._maintenance.pop(queue, None)
        if maintenance is not None:
            if not queue.is_deleted:
                # A sync that fails later proves that the files must be rewritten after the load.
                threads_end = DeferredList([maintenance.rewriter.published(), maintenance.sync.ended()])
                if not threads_end.called:
                    self._busy[queue.name] = IS_ENDING
                    threads_end.addCallback(lambda _: self._busy.pop(queue.name))
            maintenance.rewriter.stop()
            maintenance.sync.end()

    def _fail_unit(self, queue: JournalQueue, failure: QueueFailed) -> None:
        self._retire(queue, str(failure))
        self._truncate_failed_files(queue)

    def _truncate_failed_files(self, queue: JournalQueue) -> None:
        """Cut the records of failed writes and syncs from the files of a failed queue. Raise OSError."""
        queue.writer.truncate_failed_write()
        if not queue.writer.needs_sync:
            self._resources.failed_syncs.discard(current_name(queue.name))

    def delete(self, queue: JournalQueue) -> None:
        """Delete a queue. One rename marks its files as deleted, and a thread erases them. Raise StorageError."""
        if queue.is_deleted:
            return
        live = self._units.get(queue.name)
        if live is not None and live is not queue:
            # `queue` has failed, and was replaced by a reloaded object that the caller has not seen.
            self.delete(live)
            queue.is_deleted = True
            return
        if self._busy.get(queue.name) == IS_LOADING:
            raise StorageError(IS_LOADING)
        maintenance = self._maintenance.get(queue)
        try:
            mark_deleted(self._disk, self._folder, queue.name, self._resources.numbers.next)
        except OSError as error:
            raise StorageError(f"the queue's files could not be removed: {reason_of(error)}") from error
        queue.is_deleted = True
        if queue.segments is not None:
            queue.segments.erase()
        self._retire(queue, "the queue was deleted")
        self._failed.pop(queue.name, None)
        published = succeed(None) if maintenance is None else maintenance.rewriter.published()
        published.addCallback(lambda _: self._erase_deleted(queue.name))
        self._resources.failed_syncs.discard(current_name(queue.name))

    def _erase_deleted(self, name: bytes) -> None:
        self._resources.erase_later(erase_deleted, self._disk, self._folder, name)

    # Puts and commits.

    def put(self, queues: Sequence[JournalQueue], data: bytes, add_ms: int, expiry_ms: int) -> None:
        """Append one item to each queue. If one of them refuses it, raise a StorageError and change none."""
        for queue in queues:
            queue.check_put(len(data))
        record = queues[0].encoder.encode(data, add_ms, expiry_ms)
        is_counted = self._resources.memory_limit.most_bytes is not None
        for queue in queues:
            queue.put(record)
            if is_counted:
                # The commit reports it too, but may be far away.
                queue.report_memory()

    def commit(self, queues: Sequence[JournalQueue]) -> Sequence[tuple[Sequence[IQueueStorage], Deferred[Any]]]:
        """Write each queue's records. Return the queues whose commits have not ended, each with its Deferred."""
        pending: list[tuple[Sequence[IQueueStorage], Deferred[Any]]] = []
        for queue in queues:
            if queue.is_deleted:
                is_synced = queue.settings.sync_journal_ms is not None
                synced = self._jobs.run(self._disk.sync_folder, self._folder) if is_synced else None
                outcome = self._commit_deletion(queue, synced)
            else:
                outcome = self._commit_unit(queue, (queue,))
            if outcome is not None:
                pending.append(((queue,), outcome))
        return pending

    def _write_changes(self, queue: JournalQueue, queues: Sequence[JournalQueue]) -> None:
        records = queue.take_pending()
        if records:
            # Without `run_with_reserve`, because each commit calls this.
            try:
                queue.writer.append(records)
            except OSError as error:
                self._disk_reserve.release_if_full(error)
                queue.writer.append(records)
            self._resources.open_files.touch(queue.writer)
            queue.report_memory()


# @implementer is not used, because mypyc does not compile a decorated class to a native class.
classImplements(JournalStorage, IStorage)
