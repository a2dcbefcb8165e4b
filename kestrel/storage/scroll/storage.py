"""The scroll backend: each fanout queue and its children share one of libkestrel's journals.

A tick's puts to a queue and its children are one write. The tick's reads from each queue are one write to its reader
file. If a file of a journal fails, all queues of the journal fail until it is reopened. docs/storage.md describes the
failures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from twisted.internet.defer import Deferred, DeferredList, fail
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from kestrel.config.model import QueueSettings
from kestrel.disk import crash_points
from kestrel.disk.append_file import AppendFile
from kestrel.disk.file_numbers import FileNumbers
from kestrel.disk.files import Disk, check_distinct_when_folded, is_full
from kestrel.disk.folders import PRIVATE_FOLDER
from kestrel.disk.lock import FolderLock
from kestrel.errors import QueueFailed, StorageError
from kestrel.journal.fileset import has_journal_files
from kestrel.scroll.done_set import DoneSet
from kestrel.scroll.fileset import ScrollFiles, group_by_stem, reader_name
from kestrel.scroll.hints import HINTS_FOLDER, FileHint
from kestrel.scroll.name_encoding import (
    DEFAULT_READER,
    OWN_READER,
    EscapedNames,
    NameEncoding,
    PlainNames,
    QueueLocation,
    is_hashed,
    location_of,
)
from kestrel.scroll.reader_file import DELETED_STATE, ReaderState, sealed
from kestrel.scroll.records import DELETED_RECORD, READER_MAGIC
from kestrel.scroll.writer_file import NO_ITEMS, WriterFile
from kestrel.storage.disk_reserve import DiskReserve
from kestrel.storage.failures import error_of, reason_of
from kestrel.storage.folder_kind import claim_folder
from kestrel.storage.interfaces import IMeasuring, InThread, IQueueStorage, IStorage, Measure, SettingsFor
from kestrel.storage.jobs import Jobs
from kestrel.storage.scroll.deletion import Deletions
from kestrel.storage.scroll.journal import ScrollJournal
from kestrel.storage.scroll.load import ScrollLoader
from kestrel.storage.scroll.maintenance import ScrollMaintenance
from kestrel.storage.scroll.queue import ScrollQueue
from kestrel.storage.scroll.reader_creation import ReaderFileCreation
from kestrel.storage.scroll.scroll_resources import ScrollResources
from kestrel.storage.total_memory import MemoryLimit

log = Logger(__name__)

RESERVE_BYTES: Final = 16 * 1024 * 1024

CHECKPOINTS_EVERY_S: Final = 10.0

RELOAD_INLINE_BYTES: Final = 1 << 20
"""Limit of bytes in writer files that are not indexed when a failed journal is reloaded in the reactor thread.

A journal that exceeds this, or one of the next two limits, is reloaded in another thread.
"""
RELOAD_INLINE_READERS: Final = 8
"""Limit of reader files when a failed journal is reloaded in the reactor thread."""
RELOAD_INLINE_RANGES: Final = 100
"""Limit of ranges of done ids, of all readers, when a failed journal is reloaded in the reactor thread."""

_IS_LOADING: Final = "the queue is being loaded again: try again in a moment"


@implementer(IStorage, IMeasuring)
class ScrollStorage:
    """All queues of one folder (`IStorage`).

    Writer files that no reader needs are moved to the folder `archive`, or erased if it is None. If `as_library` is
    true, the folder has libkestrel's form: names are not encoded, and each item is for all readers of its journal.
    """

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
        archive: bytes | None = None,
        as_library: bool = False,
    ) -> None:
        self._folder = folder
        self._private = folder + b"/" + PRIVATE_FOLDER
        self._disk = disk or Disk()
        self._jobs = Jobs(clock, in_thread)
        self._disk_reserve = DiskReserve(self._disk, self._private + b"/reserve", reserve_bytes, self._jobs)
        self._numbers = FileNumbers(now_ms)
        self._resources = ScrollResources(
            self._disk,
            folder,
            self._jobs,
            self._kill,
            refusal=lambda: self._disk_reserve.refusal,
            numbers=self._numbers,
            memory_limit=memory or MemoryLimit(),
            archive=archive,
            is_all_shared=as_library,
        )
        self._names: NameEncoding = PlainNames() if as_library else EscapedNames(self._disk, folder)
        self._loader = ScrollLoader(self._resources, self._names, now_ms)
        self._journals: dict[bytes, ScrollJournal] = {}
        """Live journals, by stem."""
        self._maintenance: dict[ScrollJournal, ScrollMaintenance] = {}
        self._failed: dict[bytes, ScrollJournal | None] = {}
        """Failed journals by stem; None for a journal that has never been loaded."""
        self._loading: set[bytes] = set()
        """Stems of the failed journals that a thread is reloading."""
        self._deletions = Deletions(
            self._resources, lambda stem: stem in self._journals or stem in self._failed, self._erase_names
        )
        self._reader_files = ReaderFileCreation(
            self._resources, self._reader_file_created, self._reader_file_failed, self._disk_reserve.release_reserve
        )
        self._lock: FolderLock | None = None
        self._folds_names = False

    @property
    def refusal(self) -> str | None:
        """Reason why no puts are accepted now, or None."""
        return self._disk_reserve.refusal

    @property
    def measure(self) -> Measure:
        """Function that is called with the durations of the storage's work (`IMeasuring`)."""
        return self._resources.measure

    @measure.setter
    def measure(self, measure: Measure) -> None:
        self._resources.measure = measure

    # Start and stop.

    def start(self, settings_for: SettingsFor) -> Deferred[dict[bytes, IQueueStorage | Failure]]:
        """Lock the folder and load all journals in a thread.

        Return a Deferred that fires with the queues by name, or a Failure for a queue that cannot be loaded. Raise
        `StorageError` if the folder cannot be used.
        """
        try:
            for path in (self._folder, self._private, self._folder + b"/" + HINTS_FOLDER):
                self._disk.make_folder(path)
            self._lock = FolderLock(self._private + b"/lock")
            file_names = self._disk.list_files(self._folder)
            groups = group_by_stem(file_names)
            has_readers = any(files.readers for files in groups.values())
            has_journals = not has_readers and has_journal_files(self._disk, self._folder, file_names)
            claim_folder(self._disk, self._folder, "scroll", "journal" if has_journals else None)
            self._folds_names = self._disk.folds_names(self._folder, PRIVATE_FOLDER)
            self._make_archive()
            hints = self._disk.list_files(self._folder + b"/" + HINTS_FOLDER)
            self._resources.failed_syncs.load()
        except (OSError, StorageError) as error:
            if self._lock is not None:
                self._lock.release()
            if isinstance(error, StorageError):
                raise
            folder = self._folder.decode("utf-8", "backslashreplace")
            raise StorageError(f"the queue folder {folder} cannot be used: {reason_of(error)}") from error
        parts = {part for stem, files in groups.items() for part in (stem, *files.readers)}
        groups = {stem: files for stem, files in groups.items() if self._has_name(stem)}
        for name in hints:
            if b"~~" in name:  # a temporary file of an interrupted write
                self._jobs.run(self._disk.erase, b"%b/%b/%b" % (self._folder, HINTS_FOLDER, name))
        self._disk_reserve.allocate_reserve()
        self._numbers.mark_used(number for files in groups.values() for number in files.numbers())
        self._jobs.later(CHECKPOINTS_EVERY_S, self._checkpoint_all)
        return self._jobs.run(self._load_all, list(groups.values()), settings_for, parts).addCallback(self._loaded)

    def _make_archive(self) -> None:
        archive = self._resources.archive
        if archive is None:
            return
        try:
            self._disk.make_folder(archive)
        except OSError as error:
            shown = archive.decode("utf-8", "backslashreplace")
            raise StorageError(f"the archive folder {shown} cannot be used: {reason_of(error)}") from error
        if self._disk.is_same(archive, self._folder) or self._disk.is_same(archive, self._private):
            raise StorageError("the archive cannot be the queue folder itself: name another folder")

    def _has_name(self, stem: bytes) -> bool:
        """Return whether the queue name for a stem is known. Log an error if not, because its files are left alone."""
        try:
            name = self._names.name_of(stem)
        except OSError:
            name = None
        if name is None or self._names.stem_of(name) != stem:
            log.error("The files of scroll {stem!r} are left alone: the name of its queue is not known", stem=stem)
            self._failed[stem] = None
            return False
        return True

    def _load_all(
        self, groups: Sequence[ScrollFiles], settings_for: SettingsFor, parts: Collection[bytes]
    ) -> list[tuple[ScrollFiles, ScrollJournal | Exception]]:
        """Load all journals. Return each with its files, or the error of the load. Runs in a thread.

        Names of queues are erased if their stems or reader parts are not in `parts`.
        """
        try:
            self._names.forget_all_but(parts)
        except OSError as error:
            log.error("The names of deleted queues cannot be erased: {reason}", reason=reason_of(error))
        loaded: list[tuple[ScrollFiles, ScrollJournal | Exception]] = []
        for files in groups:
            try:
                loaded.append((files, self._loader.load(files, settings_for)))
            except Exception as error:  # one bad journal must not prevent the start
                if not isinstance(error, OSError):
                    log.failure("Scroll {stem!r} cannot be loaded because of a bug in the server", stem=files.stem)
                loaded.append((files, error))
        return loaded

    def _loaded(
        self, loaded: list[tuple[ScrollFiles, ScrollJournal | Exception]]
    ) -> dict[bytes, IQueueStorage | Failure]:
        queues: dict[bytes, IQueueStorage | Failure] = {}
        for files, journal in loaded:
            if isinstance(journal, ScrollJournal):
                queues |= {queue.name: queue for queue in journal.readers.values()}
                queues |= self._failures(files, journal.unserved.values(), _load_failed(OSError("unreadable")))
                self._adopt(journal)
            else:
                self._failed[files.stem] = None
                queues |= self._failures(files, files.readers or (DEFAULT_READER,), _load_failed(journal))
        return queues

    def _failures(self, files: ScrollFiles, parts: Any, failure: QueueFailed) -> dict[bytes, Failure]:
        """Log that the readers `parts` are not served. Return a Failure for each, by queue name."""
        each = (self._loader.name_of(files.stem, part) for part in parts)
        names = [name for name in each if name is not None]
        for name in names:
            log.error("Queue {queue!r} is not served: {reason}", queue=name, reason=str(failure))
        return {name: Failure(failure) for name in names}

    def close(self, compacts: bool = False) -> Deferred[None]:
        """Write pending changes, sync as syncJournal requires, checkpoint all readers, and unlock the folder.

        If `compacts` is true, journals whose readers are drained lose their writer files.
        """
        return self._jobs.close().addCallback(self._commit_last).addCallback(self._checkpoint, compacts)

    def _commit_last(self, _: object) -> Deferred[Any]:
        """Write all pending changes. Return a Deferred that fires with the results of the last syncs."""
        syncs = []
        for journal in list(self._journals.values()):
            if self._write(journal, list(journal.readers.values())) is None:
                syncs.append(self._maintenance[journal].sync.sync_at_close())
        return DeferredList(syncs, consumeErrors=True)

    def _checkpoint(self, syncs: list[tuple[bool, Any]], compacts: bool) -> Deferred[None]:
        """Log failed syncs, then checkpoint all journals in a thread and release the folder."""
        for is_synced, result in syncs:
            if not is_synced:
                log.failure("A scroll cannot be synced while the server stops", result)
        closing = [self._maintenance[journal].closing(compacts) for journal in self._journals.values()]
        return self._jobs.run(self._close_all, closing).addCallback(self._release)

    @staticmethod
    def _close_all(closing: Sequence[Callable[[], None]]) -> None:
        """Call the functions of `ScrollMaintenance.closing` for all journals. Runs in a thread."""
        for close in closing:
            try:
                close()
            except OSError as error:
                log.error("A scroll cannot be checkpointed while the server stops: {reason}", reason=reason_of(error))

    def _release(self, _: object) -> None:
        """Close all files, end all queues and unlock the folder."""
        for journal in self._journals.values():
            journal.close_files()
            for queue in journal.readers.values():
                queue.failure = "the server is stopping"
                queue.memory.set_bytes(0)
        if self._lock is not None:
            self._lock.release()

    # Queues.

    def queue(self, name: bytes, settings: QueueSettings) -> ScrollQueue:
        """Return the live queue, create an empty queue, or reopen a failed queue from its files.

        Raises `QueueFailed` if the queue cannot be loaded or created.
        """
        location = location_of(name)
        stem = self._names.stem_of(location.journal)
        reader = self._names.reader_of(stem, location.child)
        try:
            if stem not in self._journals:
                self._names.remember(stem, location.journal)
            journal = self._journal(stem)
            queue = journal.readers.get(reader)
            if queue is None and reader in journal.unserved:
                if location.child is not None:
                    self._names.remember(reader, location.child)
                self._disk_reserve.run_with_reserve(
                    lambda: self._loader.load_unserved(journal, reader, lambda _: settings)
                )
                queue = self._serve(journal, journal.readers[reader])
        except (OSError, KeyError) as error:
            raise _load_failed(error) from error
        if queue is None:
            return self._make_queue(journal, name, location, reader, settings)
        if queue.settings is not settings:
            queue.settings = settings
            journal.settings_changed()
            self._maintenance[journal].sync.settings_changed()
        return queue

    def _journal(self, stem: bytes) -> ScrollJournal:
        """Return the live journal, create one, or reopen a failed one from its files.

        Raises OSError, or `QueueFailed` while the journal is reloaded in a thread.
        """
        journal = self._journals.get(stem)
        if journal is not None:
            return journal
        if stem in self._loading:
            raise QueueFailed(_IS_LOADING)
        if stem in self._failed:
            return self._reopen(stem)
        if self._folds_names:
            on_disk = group_by_stem(self._disk.list_files(self._folder))
            check_distinct_when_folded(stem, {*self._journals, *self._failed, *self._loading, *on_disk})
        journal = ScrollJournal(stem, self._resources, [], self._deletions.next_id(stem))
        self._adopt(journal)
        return journal

    def _reopen(self, stem: bytes) -> ScrollJournal:
        """Reload a failed journal. A large one is reloaded in a thread, and `QueueFailed` is raised meanwhile."""
        failed_journal = self._failed[stem]
        known: Mapping[bytes, WriterFile] = {}
        settings: dict[bytes, QueueSettings] = {}
        if failed_journal is not None:
            failed_journal.truncate_to_acknowledged()
            known = failed_journal.known()
            settings = {queue.name: queue.settings for queue in failed_journal.readers.values()}
        group = group_by_stem(self._disk.list_files(self._folder)).get(stem, ScrollFiles(stem))
        unknown = [file.file_name for file in group.writers if file.file_name not in known]
        unknown_bytes = sum(self._disk.length(self._resources.path(file_name)) for file_name in unknown)

        def load() -> ScrollJournal:
            settings_of = lambda name: settings.get(name) or QueueSettings()  # noqa: E731
            return self._loader.load(
                group, settings_of, known, is_copied=failed_journal is not None and failed_journal.is_copied
            )

        ranges = 0 if failed_journal is None else sum(len(queue.done) for queue in failed_journal.readers.values())
        is_small = unknown_bytes <= RELOAD_INLINE_BYTES and ranges <= RELOAD_INLINE_RANGES
        if not is_small or len(group.readers) > RELOAD_INLINE_READERS:
            self._loading.add(stem)
            self._jobs.run(load).addCallbacks(self._reloaded, self._reload_failed).addBoth(
                lambda _: self._loading.discard(stem)
            )
            raise QueueFailed(_IS_LOADING)
        journal = self._disk_reserve.run_with_reserve(load)
        self._reloaded(journal)
        return journal

    def _reloaded(self, journal: ScrollJournal) -> None:
        """Serve a failed journal that has been reloaded."""
        self._adopt(journal)
        self._failed.pop(journal.stem, None)
        log.info("Scroll {stem!r} is served again", stem=journal.stem)

    def _reload_failed(self, failure: Failure) -> None:
        error = error_of(failure)
        log.error("A scroll that failed cannot be loaded again: {reason}", reason=reason_of(error))
        if isinstance(error, OSError) and is_full(error):
            self._disk_reserve.release_reserve()  # so that the next reload of the scroll has space

    def _adopt(self, journal: ScrollJournal) -> None:
        """Make a journal live, or finish the deletion of a journal whose readers are all marked as deleted."""
        if journal.readers or journal.unserved:
            self._deletions.erase_marks(journal)
        elif journal.deletion_marks:
            self._deletions.erase(journal).addErrback(lambda _: None)  # Deletions logs the failure
            return
        self._journals[journal.stem] = journal
        maintenance = self._maintenance[journal] = ScrollMaintenance(journal, self._resources)
        maintenance.sync.settings_changed()
        maintenance.drop_done_files()

    def _make_queue(
        self, journal: ScrollJournal, name: bytes, location: QueueLocation, reader: bytes, settings: QueueSettings
    ) -> ScrollQueue:
        """Return a new queue that begins after the last item of the journal. Raises `QueueFailed`."""
        if self._folds_names:
            check_distinct_when_folded(reader, {*journal.readers, *journal.unserved})
        part = reader
        is_alone = not journal.readers and not journal.unserved
        if location.child is None and is_alone and not self._is_journal_deleted(journal.stem):
            part = DEFAULT_READER
        state = ReaderState(DoneSet(journal.last_id))
        file = AppendFile(self._disk, self._resources.path(reader_name(journal.stem, part)))
        queue = ScrollQueue(name, reader, settings, journal, state, file, NO_ITEMS)
        try:
            if location.child is not None:
                self._names.remember(reader, location.child)
                self._rename_default(journal)
            if not journal.last_id:
                self._reader_files.create_now_unless_full(queue)
        except OSError as error:
            raise QueueFailed(f"the queue cannot be created: {reason_of(error)}") from error
        journal.readers[reader] = queue
        self._serve(journal, queue)
        if journal.last_id:
            self._reader_files.begin(queue)
        return queue

    def _is_journal_deleted(self, stem: bytes) -> bool:
        """Return whether the journal is being erased, or its reader file `:own` exists as a deletion mark."""
        own = self._resources.path(reader_name(stem, OWN_READER))
        return stem in self._deletions or self._disk.is_there(own)

    def _reader_file_created(self, queue: ScrollQueue) -> None:
        """Handle the creation of a queue's reader file: the journal's deletion marks are no longer needed."""
        queue.journal.names += 1
        self._deletions.erase_unneeded_marks(queue.journal)

    def _reader_file_failed(self, queue: ScrollQueue, failure: QueueFailed) -> None:
        self._remove_reader(queue, str(failure))

    def _serve(self, journal: ScrollJournal, queue: ScrollQueue) -> ScrollQueue:
        """Start the background work for a new reader of a journal. Return the queue."""
        journal.names += 1
        self._maintenance[journal].add_reader(queue)
        return queue

    def _rename_default(self, journal: ScrollJournal) -> None:
        """Rename the reader file of a parent that gets its first child to the name for a parent with children."""
        default = self._resources.path(reader_name(journal.stem, DEFAULT_READER))
        own = journal.readers.get(OWN_READER)
        if own is not None and own.file.path == default:
            path = self._resources.path(reader_name(journal.stem, OWN_READER))
            if own.file.size:
                self._disk.rename(default, path)
            own.file.path = path

    def rename(self, queue: ScrollQueue, name: bytes) -> None:
        """Rename a live queue to an unused name of the same family. Its items, open reads and state do not change.

        The next commit makes the name durable. If `QueueFailed` is raised, the queue keeps its name.
        """
        journal, child = queue.journal, location_of(name).child
        reader = self._names.reader_of(journal.stem, child)
        path = self._resources.path(reader_name(journal.stem, DEFAULT_READER if child is None else reader))
        try:
            if child is not None:
                self._names.remember(reader, child)
            if queue.file.size:  # a file that does not exist yet is created with the new name
                self._disk.rename(queue.file.path, path)
        except OSError as error:
            raise QueueFailed(f"the queue cannot be renamed: {reason_of(error)}") from error
        queue.file.path = path
        del journal.readers[queue.reader]
        old_reader = queue.reader
        queue.name, queue.reader = name, reader
        journal.readers[reader] = queue
        journal.names += 1
        self._erase_names([old_reader])

    # Deleting.

    def delete(self, queue: ScrollQueue) -> None:
        """Delete a queue. The journal of the last queue is erased in a thread.

        The commit of the queue waits for the sync of the deletion if syncJournal is 0. Raises `StorageError` if a file
        cannot be changed.
        """
        journal = queue.journal
        if queue.failure is not None or journal.readers.get(queue.reader) is not queue:
            if not queue.is_deleted:
                self._delete_failed(queue)
            return
        others = [other for other in journal.readers.values() if other is not queue]
        try:
            if queue.file.size and not journal.unserved and not any(other.file.size for other in others):
                # A journal without any reader file would be loaded as a queue that holds all its items.
                self._append_deleted(queue)
                journal.deletion_marks.append(queue.file.path[len(self._folder) + 1 :])
            elif queue.file.size:
                self._disk.erase(queue.file.path)
        except OSError as error:
            raise StorageError(f"the queue's files could not be removed: {reason_of(error)}") from error
        queue.is_deleted = True
        self._remove_reader(queue, "the queue was deleted")
        if not others and not journal.unserved:
            del self._journals[journal.stem]
            self._maintenance.pop(journal).sync.end(None)
            self._deletions.erase_journal_of(queue)
        else:
            journal.unsynced_deletions.add(queue.reader)
            self._deletions.erase_reader(queue).addCallbacks(
                lambda _: self._deletions_synced({queue.reader}, journal), lambda _: None
            )

    def _append_deleted(self, queue: ScrollQueue) -> None:
        """Mark the queue as deleted in its reader file. Raises OSError."""
        try:
            self._disk_reserve.run_with_reserve(lambda: queue.file.append(sealed(DELETED_RECORD)))
        except OSError as error:
            if not is_full(error):
                raise
            # Overwriting needs no space, and the rest of the file is no longer needed.
            queue.file.cut(len(READER_MAGIC))
            queue.file.append(DELETED_STATE[len(READER_MAGIC) :])

    def _deletions_synced(self, readers: Collection[bytes], journal: ScrollJournal) -> None:
        """Remove the writer files and names that only the deleted `readers` needed. Called after a sync."""
        journal.unsynced_deletions.difference_update(readers)
        maintenance = self._maintenance.get(journal)
        if maintenance is not None:
            maintenance.drop_done_files()
        self._erase_names(readers)

    def _erase_names(self, parts: Collection[bytes]) -> None:
        """Erase the name files of the hashed names in `parts` that are unused, after a sync of the folder."""
        hashed = [part for part in parts if is_hashed(part)]
        if hashed:
            self._jobs.run(self._disk.sync_folder, self._folder).addCallback(
                self._erase_unused_names, hashed
            ).addErrback(self._deletions.not_erased)

    def _erase_unused_names(self, _: object, hashed: Sequence[bytes]) -> None:
        """Erase name files that no queue uses. Runs in the reactor thread, so that no queue is created meanwhile."""
        self._disk.crash_point(crash_points.QUEUE_ERASED)
        for part in hashed:
            if not self._is_part_in_use(part):
                self._names.forget(part)

    def _is_part_in_use(self, part: bytes) -> bool:
        """Return whether a file of a journal may have this stem or reader part in its name."""
        failed = self._failed.values()
        if part in self._journals or part in self._failed or part in self._loading or part in self._deletions:
            return True
        if self._loading or None in failed:  # the readers of these journals are not known
            return True
        journals = [*self._journals.values(), *self._deletions.journals, *(each for each in failed if each is not None)]
        return any(
            part in journal.readers
            or part in journal.unserved
            or reader_name(journal.stem, part) in journal.deletion_marks
            for journal in journals
        )

    def _remove_reader(self, queue: ScrollQueue, why: str) -> None:
        """Remove a queue from its journal's readers and end its object."""
        self._end_queue(queue, why)
        del queue.journal.readers[queue.reader]
        self._maintenance[queue.journal].remove_reader(queue)

    def _delete_failed(self, queue: ScrollQueue) -> None:
        """Reopen a failed queue and delete it. Raises `StorageError`."""
        try:
            live = self.queue(queue.name, queue.settings)
        except QueueFailed as failure:
            raise StorageError(str(failure)) from failure
        self.delete(live)
        queue.is_deleted = True
        self._deletions.transfer_commit(queue, live)

    def _end_queue(self, queue: ScrollQueue, why: str) -> None:
        """Let all further calls to the queue object fail with the reason `why`. Free its items and descriptor."""
        queue.failure = why
        queue.generation += 1  # the result of a running read is ignored
        queue.release_items()
        queue.memory.set_bytes(0)
        self._resources.open_files.close(queue.file)

    def _kill(self, journal: ScrollJournal, error: Exception) -> QueueFailed:
        """Fail all queues of a journal after an error of one of its files. Return the failure for clients.

        The files are truncated to the acknowledged data. The next use of a queue reloads the journal from its files.
        """
        failure = QueueFailed(f"queue storage failed: {reason_of(error)}")
        if self._journals.get(journal.stem) is not journal:
            return failure
        log.error("Scroll {stem!r}: {reason}; it will be reopened", stem=journal.stem, reason=str(failure))
        del self._journals[journal.stem]
        self._failed[journal.stem] = journal
        for queue in journal.readers.values():
            self._end_queue(queue, str(failure))
        journal.close_files()
        try:
            journal.truncate_to_acknowledged()
        except OSError:
            log.failure(
                "Scroll {stem!r}: the failed changes cannot be removed from its files. Each use tries again",
                stem=journal.stem,
            )
        self._maintenance.pop(journal).sync.end(failure)
        return failure

    # Puts and commits.

    def put(self, queues: Sequence[ScrollQueue], data: bytes, add_ms: int, expiry_ms: int) -> None:
        """Append an item to all `queues`, as one record in each of their journals.

        Raises `StorageError` before anything has changed if a queue or journal cannot accept the item.
        """
        size = len(data)
        by_journal: dict[ScrollJournal, list[ScrollQueue]] = {}
        for queue in queues:
            queue.check()
            by_journal.setdefault(queue.journal, []).append(queue)
        for journal in by_journal:
            journal.check_put(size)
        for journal, readers in by_journal.items():
            journal.put(readers, data, add_ms, expiry_ms)
        if self._resources.memory_limit.most_bytes is not None:  # the commit reports too, but may be late
            for queue in queues:
                queue.report_memory()

    def commit(self, queues: Sequence[ScrollQueue]) -> Sequence[tuple[Sequence[IQueueStorage], Deferred[Any]]]:
        """Write the changes of `queues`.

        Return the queues whose commits are not complete or have failed, each group with the Deferred of its result.
        Queues of a journal that waits for a sync form one group.
        """
        pending: list[tuple[Sequence[IQueueStorage], Deferred[Any]]] = []
        by_journal: dict[ScrollJournal, list[ScrollQueue]] = {}
        for queue in queues:
            if queue.is_deleted:
                outcome = self._deletions.commit(queue)
            else:
                outcome = self._reader_files.wait_for(queue)
                if outcome is not None:
                    outcome.addCallback(self._commit_created, queue)
                elif queue.failure is not None:
                    outcome = fail(QueueFailed(queue.failure))
                else:
                    by_journal.setdefault(queue.journal, []).append(queue)
            if outcome is not None:
                pending.append(((queue,), outcome))
        for journal, group in by_journal.items():
            outcome = self._commit(journal, group)
            if outcome is not None:
                pending.append((group, outcome))
        return pending

    def _commit(self, journal: ScrollJournal, queues: Sequence[ScrollQueue]) -> Deferred[Any] | None:
        """Write the changes of a journal's queues as soon as the journal is writable.

        Return None if they are as durable as syncJournal requires, or a Deferred that fires when they are.
        """
        maintenance = self._maintenance.get(journal)
        if maintenance is None:
            return fail(QueueFailed(queues[0].failure or "the queue has failed"))
        try:
            writable = maintenance.sync.when_writable()
        except QueueFailed as failure:
            return fail(failure)
        if writable is None:
            return self._commit_now(None, journal, queues)
        return writable.addCallback(self._commit_now, journal, queues)

    def _commit_created(self, _: None, queue: ScrollQueue) -> Deferred[Any] | None:
        return None if queue.is_deleted else self._commit(queue.journal, [queue])

    def _commit_now(self, _: None, journal: ScrollJournal, queues: Sequence[ScrollQueue]) -> Deferred[Any] | None:
        live = [queue for queue in queues if not queue.is_deleted]
        failure = self._write(journal, live) if live else None
        return fail(failure) if failure is not None else self._maintenance[journal].written(live) if live else None

    def _write(self, journal: ScrollJournal, queues: Sequence[ScrollQueue]) -> QueueFailed | None:
        """Write a journal's pending items and the changes of `queues`.

        Return None, or the failure of the queues if a write failed.
        """
        if self._journals.get(journal.stem) is not journal:
            return QueueFailed(queues[0].failure or "the queue has failed")
        try:
            self._disk_reserve.run_with_reserve(journal.write)
            for queue in queues:
                if queue.has_unwritten or queue.done.head != queue.written_head:
                    if not queue.file.size:
                        self._disk_reserve.run_with_reserve(lambda: self._reader_files.create_now(queue))  # noqa: B023
                    changes = queue.take_changes()
                    self._disk_reserve.run_with_reserve(lambda: queue.file.append(changes))  # noqa: B023
                    journal.unsynced_readers.add(queue)
                    self._resources.open_files.touch(queue.file)
                queue.report_memory()
        except OSError as error:
            return self._kill(journal, error)
        return None

    # Checkpoints and hints.

    def _checkpoint_all(self) -> None:
        """Checkpoint the readers of all journals, retry unsynced deletions, and write the hints that are due."""
        self._jobs.later(CHECKPOINTS_EVERY_S, self._checkpoint_all)
        for journal, maintenance in list(self._maintenance.items()):
            maintenance.checkpoint()
            if journal.unsynced_deletions:  # their first sync is running or has failed
                self._deletions.sync_deletions(journal).addCallbacks(
                    self._deletions_synced, lambda _: None, callbackArgs=(journal,)
                )
        hints = [
            (maintenance, hint)
            for maintenance in self._maintenance.values()
            if (hint := maintenance.due_hint()) is not None
        ]
        if hints:
            self._jobs.run(self._write_all_hints, hints)

    @staticmethod
    def _write_all_hints(hints: Sequence[tuple[ScrollMaintenance, list[FileHint]]]) -> None:
        for maintenance, hint in hints:
            maintenance.write_hint(hint)


def _load_failed(error: Exception) -> QueueFailed:
    return QueueFailed(f"the queue cannot be loaded: {reason_of(error)}")
