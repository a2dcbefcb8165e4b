"""The scroll backend: each fanout queue and its children share one of libkestrel's journals.

A tick's puts to a queue and its children are one write. The tick's reads from each queue are one write to its reader
file. If a file of a journal fails, all queues of the journal fail until it is reopened. docs/storage.md describes the
failures.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from twisted.internet.defer import Deferred, fail
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from kestrel.config.model import QueueSettings
from kestrel.disk import crash_points
from kestrel.disk.files import AppendFile, Disk, check_distinct_when_folded, is_full
from kestrel.errors import QueueFailed, StorageError
from kestrel.escaping import show_name
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
from kestrel.storage.failures import reason_of
from kestrel.storage.folder_resources import RESERVE_BYTES, claim_folder, wall_clock_ms
from kestrel.storage.interfaces import InThread, IQueueStorage, IStorage, SettingsFor
from kestrel.storage.log.folder_storage import FolderStorage, UnitLoad, load_failed
from kestrel.storage.scroll.journal import ScrollJournal
from kestrel.storage.scroll.load import ScrollLoader
from kestrel.storage.scroll.maintenance import ScrollMaintenance
from kestrel.storage.scroll.queue import ScrollQueue
from kestrel.storage.scroll.reader_files import Deletions, ReaderFileCreation
from kestrel.storage.total_memory import MemoryLimit

log = Logger(__name__)

CHECKPOINTS_EVERY_S: Final = 10.0

RELOAD_INLINE_READERS: Final = 8
"""Limit of reader files when a failed journal is reloaded in the reactor thread."""
RELOAD_INLINE_RANGES: Final = 100
"""Limit of ranges of done ids, of all readers, when a failed journal is reloaded in the reactor thread."""


@implementer(IStorage)
class ScrollStorage(FolderStorage[ScrollJournal, ScrollMaintenance]):
    """All queues of one folder (`IStorage`). Each scroll journal is a unit.

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
        now_ms: Callable[[], int] = wall_clock_ms,
        disk: Disk | None = None,
        memory: MemoryLimit | None = None,
        archive: bytes | None = None,
        as_library: bool = False,
    ) -> None:
        super().__init__(
            folder,
            clock,
            in_thread,
            reserve_bytes=reserve_bytes,
            now_ms=now_ms,
            disk=disk,
            memory=memory,
            kind="Scroll",
        )
        resources = self._resources
        resources.archive, resources.is_all_shared = archive, as_library
        self._names: NameEncoding = PlainNames() if as_library else EscapedNames(self._disk, folder)
        self._loader = ScrollLoader(resources, self._names)
        self._deletions = Deletions(
            resources, lambda stem: stem in self._units or stem in self._failed, self._erase_names
        )
        self._reader_files = ReaderFileCreation(resources, self._reader_file_created, self._creation_failed)

    # Start and stop.

    def _find_units(self, settings_for: SettingsFor) -> Iterator[UnitLoad]:
        hints_folder = self._resources.path(HINTS_FOLDER)
        file_names = self._disk.list_files(self._folder)
        groups = group_by_stem(file_names)
        has_readers = any(files.readers for files in groups.values())
        has_journals = not has_readers and has_journal_files(self._disk, self._folder, file_names)
        claim_folder(self._disk, self._folder, "scroll", "journal" if has_journals else None)
        self._make_archive()
        self._disk.make_folder(hints_folder)
        for name in self._disk.list_files(hints_folder):
            if b"~~" in name:  # a temporary file of an interrupted write
                self._resources.erase_later(self._disk.erase, b"%b/%b" % (hints_folder, name))
        parts = {part for stem, files in groups.items() for part in (stem, *files.readers)}
        groups = {stem: files for stem, files in groups.items() if self._has_name(stem)}
        self._resources.numbers.mark_used(number for files in groups.values() for number in files.numbers())
        self._jobs.later(CHECKPOINTS_EVERY_S, self._checkpoint_all)
        return self._loads(groups, parts, settings_for)

    def _loads(
        self, groups: Mapping[bytes, ScrollFiles], parts: Collection[bytes], settings_for: SettingsFor
    ) -> Iterator[UnitLoad]:
        """Erase the names of queues whose stems or reader parts are not in `parts`, then yield the loads of `groups`.

        Runs in a thread.
        """
        try:
            self._names.forget_all_but(parts)
        except OSError as error:
            log.error("The names of deleted queues cannot be erased: {reason}", reason=reason_of(error))
        for stem, files in groups.items():
            names = partial(self._names_of, stem, files.readers or (DEFAULT_READER,))
            yield UnitLoad(stem, partial(self._loader.load, files, settings_for), names)

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
            log.error(
                "The files of scroll {stem} are left alone: the name of its queue is not known", stem=show_name(stem)
            )
            self._failed[stem] = None
            return False
        return True

    def _loaded(
        self, loaded: Sequence[tuple[UnitLoad, ScrollJournal | Exception]]
    ) -> dict[bytes, IQueueStorage | Failure]:
        queues = super()._loaded(loaded)
        for _, journal in loaded:
            if isinstance(journal, ScrollJournal):
                names = self._names_of(journal.stem, journal.unserved.values())
                queues |= self._not_served(names, OSError("unreadable"))
        return queues

    def _names_of(self, stem: bytes, parts: Collection[bytes]) -> list[bytes]:
        """Return the known names of the queues of a journal whose reader files have `parts` in their names."""
        names = (self._loader.name_of(stem, part) for part in parts)
        return [name for name in names if name is not None]

    def _finish(self, compacts: bool) -> Deferred[Any]:
        """Checkpoint all journals in a thread. If `compacts`, drained journals lose their writer files."""
        closing = [self._maintenance[journal].closing(compacts) for journal in self._units.values()]
        return self._jobs.run(self._close_all, closing)

    @staticmethod
    def _close_all(closing: Sequence[Callable[[], None]]) -> None:
        """Call the functions of `ScrollMaintenance.closing` for all journals. Runs in a thread."""
        for close in closing:
            try:
                close()
            except OSError as error:
                log.error("A scroll cannot be checkpointed while the server stops: {reason}", reason=reason_of(error))

    # Queues.

    def queue(self, name: bytes, settings: QueueSettings) -> ScrollQueue:
        """Return the live queue, create an empty queue, or reopen a failed queue from its files.

        Raises `QueueFailed` if the queue cannot be loaded or created.
        """
        location = location_of(name)
        stem = self._names.stem_of(location.journal)
        reader = self._names.reader_of(stem, location.child)
        try:
            if stem not in self._units:
                self._names.remember(stem, location.journal)
            journal = self._journal(stem)
            queue = journal.readers.get(reader)
            if queue is None and reader in journal.unserved:
                if location.child is not None:
                    self._names.remember(reader, location.child)
                self._disk_reserve.run_with_reserve(self._loader.load_unserved, journal, reader, lambda _: settings)
                queue = self._serve(journal, journal.readers[reader])
        except (OSError, KeyError) as error:
            raise load_failed(error) from error
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
        journal = self._units.get(stem)
        if journal is not None:
            return journal
        self._check_free(stem, group_by_stem)
        if stem in self._failed:
            return self._reopen(stem)
        journal = ScrollJournal(stem, self._resources, [], self._deletions.next_id(stem))
        self._adopt(journal)
        return journal

    def _reopen(self, stem: bytes) -> ScrollJournal:
        """Reload a failed journal. A large one is reloaded in a thread, and `QueueFailed` is raised meanwhile."""
        failed_journal = self._failed[stem]
        known: Mapping[bytes, WriterFile] = {}
        settings: dict[bytes, QueueSettings] = {}
        ranges = 0
        if failed_journal is not None:
            failed_journal.truncate_to_acknowledged()
            known = failed_journal.known()
            settings = {queue.name: queue.settings for queue in failed_journal.queues}
            ranges = sum(len(queue.done) for queue in failed_journal.queues)
        group = group_by_stem(self._disk.list_files(self._folder)).get(stem, ScrollFiles(stem))
        unknown = [file.file_name for file in group.writers if file.file_name not in known]
        unknown_bytes = sum(self._disk.length(self._resources.path(file_name)) for file_name in unknown)

        def load() -> ScrollJournal:
            settings_of = lambda name: settings.get(name) or QueueSettings()  # noqa: E731
            return self._loader.load(
                group, settings_of, known, is_copied=failed_journal is not None and failed_journal.is_copied
            )

        is_small = unknown_bytes <= self.reload_inline_bytes and ranges <= RELOAD_INLINE_RANGES
        return self._open(stem, load, is_small=is_small and len(group.readers) <= RELOAD_INLINE_READERS)

    def _adopt(self, journal: ScrollJournal) -> None:
        """Make a journal live, or finish the deletion of a journal whose readers are all marked as deleted."""
        has_readers = journal.readers or journal.unserved
        if journal.deletion_marks and not has_readers:
            self._deletions.erase(journal).addErrback(lambda _: None)  # Deletions logs the failure
            return
        self._units[journal.stem] = journal
        if has_readers:
            self._deletions.erase_marks(journal)
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

    def _creation_failed(self, queue: ScrollQueue, error: QueueFailed) -> None:
        """Remove a queue whose reader file cannot be created. If it has got items, the whole family fails with it.

        These items may be in other queues, too, and their puts are refused.
        """
        if queue.last_id:
            self._kill(queue.journal, error)
        else:
            self._remove_reader(queue, str(error))

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
            del self._units[journal.stem]
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
            self._disk_reserve.run_with_reserve(queue.file.append, sealed(DELETED_RECORD))
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
            ).addErrback(self._resources.not_erased)

    def _erase_unused_names(self, _: object, hashed: Sequence[bytes]) -> None:
        """Erase name files that no queue uses. Runs in the reactor thread, so that no queue is created meanwhile."""
        self._disk.crash_point(crash_points.QUEUE_ERASED)
        for part in hashed:
            if not self._is_part_in_use(part):
                self._names.forget(part)

    def _is_part_in_use(self, part: bytes) -> bool:
        """Return whether a file of a journal may have this stem or reader part in its name."""
        failed = self._failed.values()
        if part in self._units or part in self._failed or part in self._busy or part in self._deletions:
            return True
        if self._busy or None in failed:  # the readers of these journals are not known
            return True
        journals = [*self._units.values(), *self._deletions.journals, *(each for each in failed if each is not None)]
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
        queue.end(why)
        self._resources.open_files.close(queue.file)

    def _fail_unit(self, journal: ScrollJournal, failure: QueueFailed) -> None:
        for queue in journal.queues:
            self._end_queue(queue, str(failure))
        journal.close_files()
        try:
            journal.truncate_to_acknowledged()
        finally:
            self._maintenance.pop(journal).sync.end(failure)

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
                outcome = self._commit_deletion(queue, self._deletions.take_sync(queue))
            else:
                outcome = self._reader_files.wait_for(queue.journal)
                if outcome is not None:
                    outcome.addCallback(self._commit_created, queue)
                elif queue.failure is not None:
                    outcome = fail(QueueFailed(queue.failure))
                else:
                    by_journal.setdefault(queue.journal, []).append(queue)
            if outcome is not None:
                pending.append(((queue,), outcome))
        for journal, group in by_journal.items():
            outcome = self._commit_unit(journal, group)
            if outcome is not None:
                pending.append((group, outcome))
        return pending

    def _commit_created(self, _: object, queue: ScrollQueue) -> Deferred[Any] | None:
        if queue.is_deleted:
            return None
        if queue.failure is not None:
            return fail(QueueFailed(queue.failure))
        return self._commit_unit(queue.journal, [queue])

    def _write_changes(self, journal: ScrollJournal, queues: Sequence[ScrollQueue]) -> None:
        self._disk_reserve.run_with_reserve(journal.write)
        for queue in queues:
            if queue.has_unwritten or queue.done.head != queue.written_head:
                if not queue.file.size:
                    self._disk_reserve.run_with_reserve(self._reader_files.create_now, queue)
                self._disk_reserve.run_with_reserve(queue.file.append, queue.take_changes())
                journal.unsynced_readers.add(queue)
                self._resources.open_files.touch(queue.file)
            queue.report_memory()

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
