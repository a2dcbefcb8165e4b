"""The journal storage, which keeps each queue in Kestrel's journal files.

All changes of a queue in one tick are one write. With syncJournal = 0 their replies wait for an fsync in a thread. With
a period the fsync follows within the period. A queue whose disk fails accepts no calls until it is replayed from its
files. docs/storage.md describes the failures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from twisted.internet.defer import Deferred, DeferredList, fail, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import classImplements

from kestrel.config.model import QueueSettings
from kestrel.disk.file_numbers import FileNumbers
from kestrel.disk.files import Disk, check_distinct_when_folded, is_full
from kestrel.disk.folders import ERASE_FOLDER, PRIVATE_FOLDER
from kestrel.disk.lock import FolderLock
from kestrel.errors import BadQueueName, QueueFailed, StorageError
from kestrel.journal.deletion import erase_deleted, mark_deleted
from kestrel.journal.fileset import MAX_FILE_NAME_BYTES, QueueFiles, current_name, files_of, group_by_queue
from kestrel.journal.pack import finish_interrupted
from kestrel.journal.records import encode_item
from kestrel.journal.writer import JournalWriter
from kestrel.storage.disk_reserve import DiskReserve
from kestrel.storage.failures import error_of, reason_of
from kestrel.storage.folder_kind import claim_folder
from kestrel.storage.folder_resources import FolderResources
from kestrel.storage.interfaces import IMeasuring, InThread, IQueueStorage, IStorage, Measure, SettingsFor
from kestrel.storage.jobs import Jobs
from kestrel.storage.journal.load import load_queue
from kestrel.storage.journal.maintenance import JournalMaintenance
from kestrel.storage.journal.queue import JournalQueue
from kestrel.storage.open_files import OpenFiles
from kestrel.storage.total_memory import MemoryLimit

log = Logger(__name__)

RELOAD_INLINE_BYTES: Final = 1 << 20
"""Limit of the file size of a failed queue that its next use replays on the reactor thread, in a few ms."""

_IS_LOADING: Final = "the queue is being loaded again: try again in a moment"

RESERVE_BYTES: Final = 16 * 1024 * 1024


class JournalStorage:
    """A storage for all queues of one folder (`IStorage`)."""

    def __init__(
        self,
        folder: bytes,
        clock: IReactorTime,
        in_thread: InThread,
        *,
        reserve_bytes: int = RESERVE_BYTES,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
        disk: Disk | None = None,
        memory: MemoryLimit | None = None,
    ) -> None:
        self._folder = folder
        self._private = folder + b"/" + PRIVATE_FOLDER
        self._erase_folder = folder + b"/" + ERASE_FOLDER
        self._memory = memory or MemoryLimit()
        self._now_ms = now_ms
        self._numbers = FileNumbers(now_ms)
        self._disk = disk or Disk()
        self._jobs = Jobs(clock, in_thread)
        self._disk_reserve = DiskReserve(self._disk, self._private + b"/reserve", reserve_bytes, self._jobs)
        self._resources = FolderResources(
            self._disk, folder, self._jobs, self._kill, lambda: self._disk_reserve.refusal is not None
        )
        self._queues: dict[bytes, JournalQueue] = {}
        self._maintenance: dict[JournalQueue, JournalMaintenance] = {}
        self._publishing: dict[bytes, Deferred[None]] = {}
        """Failed queues whose files a thread still renames, each with a Deferred that fires when that has ended."""
        self._failed: dict[bytes, JournalWriter | None] = {}
        """Failed queues that may have files. The writer knows the valid part of the current file; it may be None."""
        self._loading: set[bytes] = set()
        """Failed queues that are being replayed in a thread."""
        self._open_files = OpenFiles()
        self.reload_inline_bytes = RELOAD_INLINE_BYTES
        self._lock: FolderLock | None = None
        self._folds_names = False

    @property
    def refusal(self) -> str | None:
        """Reason why puts are refused now, as a sentence, or None."""
        return self._disk_reserve.refusal

    @property
    def measure(self) -> Measure:
        """Function that is called with the durations of work (`IMeasuring`)."""
        return self._resources.measure

    @measure.setter
    def measure(self, measure: Measure) -> None:
        self._resources.measure = measure

    # Start and stop.

    def start(self, settings_for: SettingsFor) -> Deferred[dict[bytes, IQueueStorage | Failure]]:
        """Lock the folder, then replay every queue in a thread.

        Return a Deferred with a queue, or a Failure, for each name. Raise StorageError if the folder cannot be used.
        """
        try:
            for path in (self._folder, self._private):
                self._disk.make_folder(path)
            self._lock = FolderLock(self._private + b"/lock")
            claim_folder(self._disk, self._folder, "journal")
            self._folds_names = self._disk.folds_names(self._folder, PRIVATE_FOLDER)
            queues = group_by_queue(self._disk.list_files(self._folder))
            # Deleted files count too: a new file must have a greater number than every deletion mark.
            self._numbers.mark_used(number for files in queues.values() for number in files.numbers())
            deleted = [name for name, files in queues.items() if files.deleted]
            for name in [name for name, files in queues.items() if not files.has_items]:
                finish_interrupted(self._disk, self._folder, queues.pop(name))
            to_erase = self._disk.list_files(self._erase_folder) if self._disk.is_there(self._erase_folder) else []
            self._resources.failed_syncs.load()
        except (OSError, StorageError) as error:
            if self._lock is not None:
                self._lock.release()
            if isinstance(error, StorageError):
                raise
            folder = self._folder.decode("utf-8", "backslashreplace")
            raise StorageError(f"the queue folder {folder} cannot be used: {reason_of(error)}") from error
        for name in to_erase:
            self._erase(self._erase_folder + b"/" + name)
        for name in deleted:
            self._erase_deleted(name)
        self._disk_reserve.allocate_reserve()
        to_load = [(files, settings_for(name)) for name, files in queues.items()]
        return self._jobs.run(self._load_all, to_load).addCallback(self._loaded)

    def _load_all(self, to_load: Sequence[tuple[QueueFiles, QueueSettings]]) -> dict[bytes, IQueueStorage | Failure]:
        loaded: dict[bytes, IQueueStorage | Failure] = {}
        for files, settings in to_load:
            try:
                queue = loaded[files.queue] = self._load(files, settings)
                # The queues after this one may use only the memory that remains.
                queue.report_memory()
            except Exception as error:
                # A queue that cannot be loaded must not prevent the start.
                if not isinstance(error, OSError):
                    log.failure("Queue {queue!r} was not loaded because of a bug in Kestrel", queue=files.queue)
                failure = _load_failed(error)
                log.error("Queue {queue!r} is not served: {reason}", queue=files.queue, reason=str(failure))
                loaded[files.queue] = Failure(failure)
        return loaded

    def _load(self, files: QueueFiles, settings: QueueSettings) -> JournalQueue:
        writer = JournalWriter(self._disk, self._folder, files.queue, self._numbers.next)
        return load_queue(self._disk, self._folder, files, settings, writer, self._now_ms(), memory=self._memory)

    def _loaded(self, loaded: dict[bytes, IQueueStorage | Failure]) -> dict[bytes, IQueueStorage | Failure]:
        for name, queue in loaded.items():
            if isinstance(queue, JournalQueue):
                self._adopt(queue)
            else:
                self._failed[name] = None
        return loaded

    def close(self, compacts: bool = False) -> Deferred[None]:
        """Write pending records, sync all queues whose syncJournal is not "never", and unlock the folder.

        `compacts`: truncate the files of drained queues too.
        """
        for maintenance in self._maintenance.values():
            maintenance.rewriter.stop_unless_urgent()
        closing = self._jobs.close().addCallback(self._commit_last)
        if compacts:
            closing.addCallback(self._truncate_drained_files)
        return closing.addCallback(self._release)

    def _truncate_drained_files(self, syncs: Any) -> Any:
        """Truncate the file of each queue that has no items and no open reads."""
        for queue in self._queues.values():
            if queue.failure is None and queue.is_drained:
                try:
                    queue.writer.empty()
                except OSError as error:
                    log.error("Queue {queue!r}: {reason}", queue=queue.name, reason=reason_of(error))
        return syncs

    def _commit_last(self, _: object) -> Deferred[Any]:
        syncs = []
        for queue in list(self._queues.values()):
            is_written = self._write(queue) is None
            if is_written and queue.settings.sync_journal_ms is not None:
                syncs.append(self._maintenance[queue].sync.sync_at_close())
        return DeferredList(syncs, consumeErrors=True)

    def _release(self, syncs: list[tuple[bool, Any]]) -> None:
        for is_synced, result in syncs:
            if not is_synced:
                log.failure("A journal could not be synced when the server stopped", result)
        for queue in self._queues.values():
            queue.failure = "the server is stopping"
            queue.writer.close()
        if self._lock is not None:
            self._lock.release()

    # Queues.

    def queue(self, name: bytes, settings: QueueSettings) -> JournalQueue:
        """Return the live queue `name`, reload it from its files if it has failed, or create it.

        Raise `BadQueueName`, or `QueueFailed` if the queue cannot be loaded now.
        """
        queue = self._queues.get(name)
        if queue is not None:
            if queue.settings is not settings:
                queue.settings = settings
                self._maintenance[queue].sync.settings_changed()
            return queue
        if len(current_name(name)) > MAX_FILE_NAME_BYTES:
            raise BadQueueName("queue name is too long for a file name")
        if name in self._publishing:
            raise QueueFailed("the queue's files are being replaced: try again in a moment")
        if name in self._loading:
            raise QueueFailed(_IS_LOADING)
        try:
            if self._folds_names and name not in self._failed:
                on_disk = group_by_queue(self._disk.list_files(self._folder))
                check_distinct_when_folded(name, {*self._queues, *self._failed, *on_disk})
            files = self._remaining_files(name)
            if self._is_large(files):
                self._load_in_thread(files, settings)
                raise QueueFailed(_IS_LOADING)
            queue = self._disk_reserve.run_with_reserve(lambda: self._load(files, settings))
        except OSError as error:
            raise _load_failed(error) from error
        self._failed.pop(name, None)
        self._adopt(queue)
        return queue

    def _is_large(self, files: QueueFiles) -> bool:
        """Return whether the files of a failed queue are too large to be replayed on the reactor thread."""
        sizes = (self._disk.length(self._folder + b"/" + name) for name in files.in_replay_order())
        return sum(sizes) > self.reload_inline_bytes

    def _load_in_thread(self, files: QueueFiles, settings: QueueSettings) -> None:
        """Replay a failed queue in a thread. Until that is done, `queue` refuses it."""
        self._loading.add(files.queue)
        self._jobs.run(self._load, files, settings).addCallbacks(self._reloaded, self._reload_failed).addBoth(
            lambda _: self._loading.discard(files.queue)
        )

    def _reloaded(self, queue: JournalQueue) -> None:
        self._failed.pop(queue.name, None)
        self._adopt(queue)
        log.info("Queue {queue!r} is served again: {items} items", queue=queue.name, items=queue.items)

    def _reload_failed(self, failure: Failure) -> None:
        error = error_of(failure)
        log.error("A failed queue cannot be loaded again: {reason}; its next use tries again", reason=reason_of(error))
        if isinstance(error, OSError) and is_full(error):
            # The next use of the queue loads it again, and then has room.
            self._disk_reserve.release_reserve()

    def _remaining_files(self, name: bytes) -> QueueFiles:
        """Return the files of a queue that is not live, after cutting failed records. Only a failed queue has files."""
        if name not in self._failed:
            return QueueFiles(name)
        writer = self._failed[name]
        if writer is not None:
            self._truncate_failed_files(name, writer)
            writer.close()
        return self._files_of(name)

    def _files_of(self, name: bytes) -> QueueFiles:
        return files_of(name, self._disk.list_files(self._folder))

    def _adopt(self, queue: JournalQueue) -> None:
        """Make a loaded queue live. Schedule a sync, because an earlier process may have left its files unsynced."""
        self._queues[queue.name] = queue
        queue.disk_reserve = self._disk_reserve
        maintenance = self._maintenance[queue] = JournalMaintenance(queue, self._resources)
        if current_name(queue.name) in self._resources.failed_syncs:
            maintenance.sync.rewrite_after_load()
        maintenance.sync.settings_changed()
        queue.report_memory()
        if maintenance.is_due() and self._write(queue) is None:
            maintenance.begin_after_load()

    def _retire(self, queue: JournalQueue, why: str) -> None:
        """Make the queue object fail for the reason `why`, and release what it uses."""
        queue.failure = why
        if self._queues.get(queue.name) is queue:
            del self._queues[queue.name]
        self._open_files.close(queue.writer)
        queue.release_items()
        # The result of a read in progress is discarded.
        queue.behind_generation += 1
        queue.memory.set_bytes(0)
        maintenance = self._maintenance.pop(queue, None)
        if maintenance is not None:
            if maintenance.rewriter.is_publishing and not queue.is_deleted:
                self._publishing[queue.name] = maintenance.rewriter.published().addCallback(self._published, queue.name)
            maintenance.rewriter.stop()

    def _published(self, _: None, name: bytes) -> None:
        del self._publishing[name]

    def _kill(self, queue: JournalQueue, error: Exception) -> QueueFailed:
        """Fail a queue after a disk error, and return the error for its clients. Its next use replays its files."""
        failure = QueueFailed(f"queue storage failed: {reason_of(error)}")
        log.error("Queue {queue!r}: {reason}; it will be replayed", queue=queue.name, reason=str(failure))
        self._retire(queue, str(failure))
        try:
            self._truncate_failed_files(queue.name, queue.writer)
        except OSError:
            log.failure(
                "Queue {queue!r}: failed records were not cut from its files; its next use tries again",
                queue=queue.name,
            )
        queue.writer.close()
        self._failed[queue.name] = queue.writer
        return failure

    def _truncate_failed_files(self, name: bytes, writer: JournalWriter) -> None:
        """Cut the records of failed writes and syncs from the files of a failed queue. Raise OSError."""
        writer.truncate_failed_write()
        if not writer.needs_sync:
            self._resources.failed_syncs.discard(current_name(name))

    def delete(self, queue: JournalQueue) -> None:
        """Delete a queue. One rename marks its files as deleted, and a thread erases them. Raise StorageError."""
        if queue.is_deleted:
            return
        live = self._queues.get(queue.name)
        if live is not None and live is not queue:
            # `queue` has failed, and was replaced by a reloaded object that the caller has not seen.
            self.delete(live)
            queue.is_deleted = True
            return
        if queue.name in self._loading:
            raise StorageError(_IS_LOADING)
        maintenance = self._maintenance.get(queue)
        try:
            mark_deleted(self._disk, self._folder, queue.name, self._numbers.next)
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
        self._jobs.run(erase_deleted, self._disk, self._folder, name).addErrback(
            lambda failure: log.failure("A deleted queue's files could not be erased; the next start does it", failure)
        )

    def _erase(self, path: bytes) -> None:
        self._jobs.run(self._disk.erase, path).addErrback(
            lambda failure: log.failure("A deleted queue's file could not be erased", failure)
        )

    # Puts and commits.

    def put(self, queues: Sequence[JournalQueue], data: bytes, add_ms: int, expiry_ms: int) -> None:
        """Append one item to each queue. If one of them refuses it, raise a StorageError and change none."""
        for queue in queues:
            queue.check_put(len(data))
        record = encode_item(data, add_ms, expiry_ms)
        is_counted = self._memory.most_bytes is not None
        for queue in queues:
            queue.put(record)
            if is_counted:
                # The commit reports it too, but may be far away.
                queue.report_memory()

    def commit(self, queues: Sequence[JournalQueue]) -> Sequence[tuple[Sequence[IQueueStorage], Deferred[Any]]]:
        """Write each queue's records. Return the queues whose commits have not ended, each with its Deferred."""
        pending: list[tuple[Sequence[IQueueStorage], Deferred[Any]]] = []
        for queue in queues:
            outcome = self._commit_deletion(queue) if queue.is_deleted else self._commit(queue)
            if outcome is not None:
                pending.append(((queue,), outcome))
        return pending

    def _commit_deletion(self, queue: JournalQueue) -> Deferred[Any] | None:
        if queue.settings.sync_journal_ms is None:
            return None
        synced = self._jobs.run(self._disk.sync_folder, self._folder)
        if queue.settings.sync_journal_ms == 0:
            return synced
        synced.addErrback(lambda failure: log.failure("A deletion could not be synced", failure))
        return None

    def _commit(self, queue: JournalQueue) -> Deferred[Any] | None:
        """Write a queue's records, after its rewrite if one is in progress.

        Return None if the commit has ended, or a Deferred that fires or fails at its end.
        """
        maintenance = self._maintenance.get(queue)
        try:
            writable = None if maintenance is None else maintenance.sync.when_writable()
        except QueueFailed as failure:
            return fail(failure)
        if writable is None:
            return self._commit_now(None, queue)
        return writable.addCallback(self._commit_now, queue)

    def _commit_now(self, _: None, queue: JournalQueue) -> Deferred[Any] | None:
        if queue.is_deleted:
            return None
        failure = self._write(queue)
        return self._maintenance[queue].written() if failure is None else fail(failure)

    def _write(self, queue: JournalQueue) -> QueueFailed | None:
        """Write the pending records of a queue. Return the error if the queue has failed, or None."""
        if queue.failure is not None:
            return QueueFailed(queue.failure)
        records = queue.take_pending()
        if not records:
            return None
        writer = queue.writer
        try:
            try:
                writer.append(records)
            except OSError as error:
                if not is_full(error) or not self._disk_reserve.release_reserve():
                    raise
                writer.append(records)
        except OSError as error:
            return self._kill(queue, error)
        self._open_files.touch(writer)
        queue.report_memory()
        return None


# @implementer is not used, because mypyc does not compile a decorated class to a native class.
classImplements(JournalStorage, IStorage, IMeasuring)


def _load_failed(error: Exception) -> QueueFailed:
    return QueueFailed(f"the queue cannot be loaded: {reason_of(error)}")
