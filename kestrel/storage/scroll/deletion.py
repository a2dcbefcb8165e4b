"""Journals of a scroll folder whose last queue was deleted: marked, then erased; no crash brings a part of one back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from kestrel.scroll.fileset import parse_file_name
from kestrel.scroll.hints import hint_path
from kestrel.storage.failures import error_of, reason_of
from kestrel.storage.scroll.files import sync_files
from kestrel.storage.scroll.journal import ScrollJournal
from kestrel.storage.scroll.queue import ScrollQueue
from kestrel.storage.scroll.scroll_resources import ScrollResources

log = Logger(__name__)


class Deletions:
    """Journals and reader files that are being erased.

    `is_there` tells whether a journal of that stem is still there, or again. `erased` is called with the stems and
    reader parts of file names that have been erased.
    """

    def __init__(
        self,
        resources: ScrollResources,
        is_there: Callable[[bytes], bool],
        erased: Callable[[Collection[bytes]], None],
    ) -> None:
        self._resources = resources
        self._is_there = is_there
        self._parts_erased = erased
        self._erasing: dict[bytes, tuple[ScrollJournal, Sequence[bytes]]] = {}
        """By stem: the journal, and the paths of its files."""
        self._marking: dict[ScrollQueue, Deferred[Any]] = {}
        """Deleted queues of which no commit has told, with what fires when that is safe."""

    def next_id(self, stem: bytes) -> int:
        """The id of the first item of a new journal: of one that is being erased ids go on."""
        return self._erasing[stem][0].next_id if stem in self._erasing else 1

    def __contains__(self, stem: bytes) -> bool:
        return stem in self._erasing

    @property
    def journals(self) -> list[ScrollJournal]:
        """The journals that are being erased."""
        return [journal for journal, _ in self._erasing.values()]

    def erase_journal_of(self, queue: ScrollQueue) -> None:
        """Erase the journal whose last queue that was."""
        self._marking[queue] = self.erase(queue.journal)

    def erase_reader(self, queue: ScrollQueue) -> Deferred[Any]:
        """That queue is deleted, others of its journal are not: fires when no power failure brings it back."""
        resources = self._resources
        marked = resources.jobs.run(sync_files, resources.disk, resources.folder, [queue.file.path])
        self._marking[queue] = _copy_result(marked)
        return marked

    def sync_deletions(self, journal: ScrollJournal) -> Deferred[frozenset[bytes]]:
        """Fires with the readers that are leaving that journal now, when no power failure brings them back."""
        unsynced_deletions, resources = frozenset(journal.unsynced_deletions), self._resources
        synced = resources.jobs.run(resources.disk.sync_folder, resources.folder)
        return synced.addCallback(lambda _: unsynced_deletions)

    def transfer_commit(self, dead: ScrollQueue, live: ScrollQueue) -> None:
        """The queue was opened again in order to be deleted, and is committed by the name of the dead object."""
        if live in self._marking:
            self._marking[dead] = self._marking.pop(live)

    def erase(self, journal: ScrollJournal) -> Deferred[Any]:
        """Erase the writer files, then what says that they count no more, unless the journal is there again by then.

        Fires when no power failure brings it back.
        """
        resources, stem = self._resources, journal.stem
        paths = [resources.path(file_name) for file_name in journal.abandon()]
        paths.append(hint_path(resources.folder, stem))
        if stem in self._erasing:  # it was made again and deleted again meanwhile
            earlier, earlier_paths = self._erasing[stem]
            journal.deletion_marks += earlier.deletion_marks
            paths += earlier_paths
        self._erasing[stem] = journal, paths
        marked = resources.jobs.run(
            sync_files,
            resources.disk,
            resources.folder,
            [resources.path(file_name) for file_name in journal.deletion_marks],
        )
        _copy_result(marked).addCallback(lambda _: resources.jobs.run(self._erase_all, paths)).addCallback(
            self._erased, journal
        ).addErrback(self.not_erased)
        return marked

    def _erase_all(self, paths: Sequence[bytes]) -> None:
        """Runs in a thread."""
        for path in paths:
            self._resources.disk.erase(path)
        self._resources.disk.sync_folder(self._resources.folder)

    def _erased(self, _: object, journal: ScrollJournal) -> None:
        erasing = self._erasing.get(journal.stem)
        if erasing is None or erasing[0] is not journal:
            return  # it was made and deleted again meanwhile, which does the rest
        del self._erasing[journal.stem]
        if not self._is_there(journal.stem):
            self.erase_marks(journal)

    def erase_unneeded_marks(self, journal: ScrollJournal) -> None:
        """Another reader of the journal has its file now; first it must be on the medium that it has."""
        if journal.deletion_marks:
            synced = self._resources.jobs.run(self._resources.disk.sync_folder, self._resources.folder)
            synced.addCallback(lambda _: self.erase_marks(journal)).addErrback(self.not_erased)

    def erase_marks(self, journal: ScrollJournal) -> None:
        """Erase them now, because their names may be used again. The next start erases those that fail."""
        deleted = map(parse_file_name, journal.deletion_marks)
        parts = {journal.stem, *(file.part for file in deleted if file is not None)}
        in_use = {queue.file.path for queue in journal.readers.values()}
        for path in {self._resources.path(file_name) for file_name in journal.deletion_marks} - in_use:
            with suppress(OSError):
                self._resources.disk.erase(path)
        journal.deletion_marks.clear()
        self._parts_erased(parts)

    def not_erased(self, failure: Failure) -> None:
        """For the log."""
        log.error("A deleted queue's files stay until a start: {reason}", reason=reason_of(error_of(failure)))

    def commit(self, queue: ScrollQueue) -> Deferred[Any] | None:
        """Make safe that the queue is deleted: None if it is as safe as was promised, else fires when it is."""
        synced = self._marking.pop(queue, None)
        if queue.settings.sync_journal_ms == 0:
            return synced
        if synced is not None:
            synced.addErrback(lambda failure: log.failure("A deletion could not be synced", failure))
        return None


def _copy_result(deferred: Deferred[Any]) -> Deferred[Any]:
    """Fires as that one does, which others wait for as well."""
    other: Deferred[Any] = Deferred()

    def pass_on(result: Any) -> Any:
        other.callback(result)
        return result

    deferred.addBoth(pass_on)
    return other
