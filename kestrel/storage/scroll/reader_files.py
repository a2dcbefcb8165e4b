"""The reader files of a scroll folder: the creation of files, and the deletion of queues.

A queue's reader file must record where the queue begins before its items are durable. A journal that loses its last
queue is first marked as deleted, then erased. A crash in between cannot restore a part.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred, DeferredList
from twisted.logger import Logger
from twisted.python.failure import Failure

from kestrel.disk.files import is_full
from kestrel.disk.reader import erased_on_error
from kestrel.errors import QueueFailed
from kestrel.escaping import show_name
from kestrel.scroll.fileset import parse_file_name
from kestrel.scroll.hints import hint_path
from kestrel.scroll.reader_file import ReaderState, encode_state
from kestrel.storage.failures import error_of, reason_of
from kestrel.storage.folder_resources import FolderResources
from kestrel.storage.jobs import fire_all
from kestrel.storage.scroll.files import replace_file, sync_files, write_file
from kestrel.storage.scroll.journal import ScrollJournal
from kestrel.storage.scroll.queue import ScrollQueue

log = Logger(__name__)


class ReaderFileCreation:
    """The queues whose reader files are being created, and the commits that wait for these files.

    All commits of the journal wait, because an item of a new queue may also be for other queues, and is refused if the
    file cannot be created. `created` is called when a file exists, and `creation_failed` when it cannot be created.
    """

    def __init__(
        self,
        resources: FolderResources,
        created: Callable[[ScrollQueue], None],
        creation_failed: Callable[[ScrollQueue, QueueFailed], None],
    ) -> None:
        self._resources = resources
        self._created = created
        self._creation_failed = creation_failed
        self._waiting: dict[ScrollQueue, list[Deferred[None]]] = {}

    def create_now(self, queue: ScrollQueue) -> None:
        """Create the reader file of a queue that begins at the first item of its journal. Raises OSError.

        The file is not synced, because a queue without a file begins there too.
        """
        contents = encode_state(ReaderState())
        resources = self._resources
        replace_file(resources.disk, queue.file.path, contents, resources.numbers.next(), is_synced=False)
        queue.file.replaced(len(contents))

    def create_now_unless_full(self, queue: ScrollQueue) -> None:
        """Create the reader file as `create_now`, but ignore a full disk. Raises OSError.

        On a full disk, the first commit that writes to the file creates it.
        """
        try:
            self.create_now(queue)
        except OSError as error:
            if not is_full(error):
                raise

    def begin(self, queue: ScrollQueue) -> None:
        """Create and sync the reader file of a queue whose journal has items, in a thread.

        Without a synced file, a power failure would give the queue items that are older than the queue.
        """
        self._waiting[queue] = []
        self._write(queue)

    def _write(self, queue: ScrollQueue) -> None:
        """Write a temporary reader file in a thread, then publish it."""
        resources, contents = self._resources, queue.checkpoint()
        write = partial(write_file, is_synced=True)
        writing = resources.jobs.run(write, resources.disk, queue.file.path, contents, resources.numbers.next())
        writing.addCallback(self._publish, queue, len(contents)).addErrback(self._failed, queue)

    def wait_for(self, journal: ScrollJournal) -> Deferred[Any] | None:
        """Return None, or a Deferred that fires when the reader files of the journal that are now being created exist,
        or cannot be created.
        """
        created: list[Deferred[None]] = []
        for queue, waiting in self._waiting.items():
            if queue.journal is journal:
                created.append(Deferred())
                waiting.append(created[-1])
        return DeferredList(created) if created else None

    def _publish(self, temporary: bytes, queue: ScrollQueue, size: int) -> None:
        """Rename a temporary reader file to its final name. Raises OSError."""
        disk = self._resources.disk
        with erased_on_error(disk, [temporary]):
            if queue.failure is None:
                disk.rename(temporary, queue.file.path)
                queue.end_checkpoint(size)
                self._created(queue)
            else:
                disk.erase(temporary)
        fire_all(self._waiting.pop(queue))

    def _failed(self, failure: Failure, queue: ScrollQueue) -> None:
        cause, release_reserve = error_of(failure), self._resources.disk_reserve.release_reserve
        if queue.failure is None and isinstance(cause, OSError) and is_full(cause) and release_reserve():
            self._write(queue)
            return
        error = QueueFailed(f"the queue cannot be created: {reason_of(cause)}")
        log.error("Queue {queue}: {reason}", queue=show_name(queue.name), reason=str(error))
        if queue.failure is None:
            self._creation_failed(queue, error)
        fire_all(self._waiting.pop(queue))


class Deletions:
    """The journals and reader files that are being erased.

    `is_there` returns whether a journal with the given stem is live or failed. `erased` is called with the stems and
    reader parts whose files have been erased.
    """

    def __init__(
        self,
        resources: FolderResources,
        is_there: Callable[[bytes], bool],
        erased: Callable[[Collection[bytes]], None],
    ) -> None:
        self._resources = resources
        self._is_there = is_there
        self._parts_erased = erased
        self._erasing: dict[bytes, tuple[ScrollJournal, Sequence[bytes]]] = {}
        """Journals and the paths of their files, by stem."""
        self._marking: dict[ScrollQueue, Deferred[Any]] = {}
        """Deferreds that fire when a deletion is on disk, by deleted queue. `take_sync` removes them."""

    def next_id(self, stem: bytes) -> int:
        """Return the first item id for a new journal. Ids continue those of a journal that is still being erased."""
        return self._erasing[stem][0].next_id if stem in self._erasing else 1

    def __contains__(self, stem: bytes) -> bool:
        return stem in self._erasing

    @property
    def journals(self) -> list[ScrollJournal]:
        """The journals that are being erased."""
        return [journal for journal, _ in self._erasing.values()]

    def erase_journal_of(self, queue: ScrollQueue) -> None:
        """Erase the journal of its last queue."""
        self._marking[queue] = self.erase(queue.journal)

    def erase_reader(self, queue: ScrollQueue) -> Deferred[Any]:
        """Sync the deletion of a queue whose journal has other queues.

        Return a Deferred that fires when a power failure cannot restore the queue.
        """
        resources = self._resources
        marked = resources.jobs.run(sync_files, resources.disk, resources.folder, [queue.file.path])
        self._marking[queue] = _copy_result(marked)
        return marked

    def sync_deletions(self, journal: ScrollJournal) -> Deferred[frozenset[bytes]]:
        """Sync all unsynced deletions of readers of a journal.

        Return a Deferred that fires with the readers' names when a power failure cannot restore them.
        """
        unsynced_deletions, resources = frozenset(journal.unsynced_deletions), self._resources
        synced = resources.jobs.run(resources.disk.sync_folder, resources.folder)
        return synced.addCallback(lambda _: unsynced_deletions)

    def transfer_commit(self, dead: ScrollQueue, live: ScrollQueue) -> None:
        """Let the commit of `dead` wait for the deletion of `live`.

        `live` is the same queue, reopened only to be deleted. The caller commits the failed object `dead`.
        """
        if live in self._marking:
            self._marking[dead] = self._marking.pop(live)

    def erase(self, journal: ScrollJournal) -> Deferred[Any]:
        """Erase the writer files of a journal, then its deletion marks if no new journal has its stem by then.

        Return a Deferred that fires when a power failure cannot restore the journal.
        """
        resources, stem = self._resources, journal.stem
        paths = [resources.path(file_name) for file_name in journal.abandon()]
        paths.append(hint_path(resources.folder, stem))
        if stem in self._erasing:  # the journal was created and deleted again
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
        ).addErrback(self._resources.not_erased)
        return marked

    def _erase_all(self, paths: Sequence[bytes]) -> None:
        """Erase the files and sync the folder. Runs in a thread."""
        for path in paths:
            self._resources.disk.erase(path)
        self._resources.disk.sync_folder(self._resources.folder)

    def _erased(self, _: object, journal: ScrollJournal) -> None:
        erasing = self._erasing.get(journal.stem)
        if erasing is None or erasing[0] is not journal:
            return  # a later deletion of the same stem erases the marks
        del self._erasing[journal.stem]
        if not self._is_there(journal.stem):
            self.erase_marks(journal)

    def erase_unneeded_marks(self, journal: ScrollJournal) -> None:
        """Erase the deletion marks of a journal that has a new reader file, after a sync of the folder."""
        if journal.deletion_marks:
            synced = self._resources.jobs.run(self._resources.disk.sync_folder, self._resources.folder)
            synced.addCallback(lambda _: self.erase_marks(journal)).addErrback(self._resources.not_erased)

    def erase_marks(self, journal: ScrollJournal) -> None:
        """Erase the reader files that mark a journal's readers as deleted, except files that are in use again.

        The next start erases the files that cannot be erased now.
        """
        deleted = map(parse_file_name, journal.deletion_marks)
        parts = {journal.stem, *(file.part for file in deleted if file is not None)}
        in_use = {queue.file.path for queue in journal.readers.values()}
        for path in {self._resources.path(file_name) for file_name in journal.deletion_marks} - in_use:
            with suppress(OSError):
                self._resources.disk.erase(path)
        journal.deletion_marks.clear()
        self._parts_erased(parts)

    def take_sync(self, queue: ScrollQueue) -> Deferred[Any] | None:
        """Return the Deferred that fires when the deletion of a queue is on disk, once."""
        return self._marking.pop(queue, None)


def _copy_result(deferred: Deferred[Any]) -> Deferred[Any]:
    """Return a Deferred that fires with the result of `deferred`, which can still get other callbacks."""
    other: Deferred[Any] = Deferred()

    def pass_on(result: Any) -> Any:
        other.callback(result)
        return result

    deferred.addBoth(pass_on)
    return other
