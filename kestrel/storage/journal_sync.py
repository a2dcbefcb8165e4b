"""When a journal is synced, and what becomes of it when that fails.

syncJournal = 0: nobody was told that the records are safe, so the files go back to the last sync and the queue
is replayed. A period: earlier replies stand, so the queue's contents, which are in memory, are written to a
new file; until that is safe the queue takes no put and its replies wait.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from kestrel.disk.files import Disk
from kestrel.errors import QueueFailed
from kestrel.journal.fileset import group_by_queue, temporary_name
from kestrel.journal.pack import publish, write_temporary
from kestrel.storage.jobs import Jobs
from kestrel.storage.journal_queue import JournalQueue

log = Logger()


class JournalSync:
    """Syncs the journals of one folder in threads.

    `kill` makes a queue's object dead and returns the failure to tell.
    """

    def __init__(
        self,
        disk: Disk,
        folder: bytes,
        jobs: Jobs,
        kill: Callable[[JournalQueue, Exception], QueueFailed],
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._jobs = jobs
        self._kill = kill

    def is_busy(self, queue: JournalQueue) -> bool:
        """Whether a commit of the queue must wait: its contents are rewritten, or with syncJournal = 0 a sync of
        what it was loaded with is not done. (If that failed, a later sync would succeed and mean nothing.)"""
        return queue.is_mending or (queue.settings.sync_journal_ms == 0 and (queue.is_sync_due or queue.is_syncing))

    def when_idle(self, queue: JournalQueue) -> Deferred[None]:
        """Fires when a commit may begin; fails with `QueueFailed`, the queue then being dead. One at a time."""
        queue.waiting_commit = Deferred()
        return queue.waiting_commit

    def now(self, queue: JournalQueue) -> Deferred[Any]:
        """One sync of all that is written; fails with `QueueFailed`, the queue then being dead."""
        return self.once(queue).addErrback(partial(self._failed, queue))

    def once(self, queue: JournalQueue) -> Deferred[Any]:
        """One sync of all that is written; fails with the OSError."""
        writer = queue.writer
        size, files = writer.size, writer.set_aside_files

        def synced(_: object) -> None:
            if writer.set_aside_files == files:
                writer.synced_size = max(writer.synced_size, size)

        job = maybeDeferred(writer.descriptor_for_sync)
        return job.addCallback(partial(self._jobs.run, writer.sync)).addCallback(synced)

    def _failed(self, queue: JournalQueue, failure: Failure) -> Failure | None:
        if queue.failure is not None:
            return None  # deleted meanwhile: there is nothing left to be safe
        queue.writer.sync_failed()
        return Failure(self._kill(queue, _error_of(failure)))

    def within(self, queue: JournalQueue, seconds: float) -> None:
        """A sync of the queue not later than that from now."""
        if not queue.is_sync_due:
            queue.is_sync_due = True
            self._jobs.later(seconds, self._due, queue)

    def _due(self, queue: JournalQueue) -> None:
        queue.is_sync_due = False
        if queue.failure is not None or queue.is_mending:
            self._tell_idle(queue, None)
            return
        queue.is_syncing = True
        self.once(queue).addCallbacks(partial(self._due_done, queue), partial(self._mend, queue))

    def _due_done(self, queue: JournalQueue, _: object) -> None:
        queue.is_syncing = False
        self._tell_idle(queue, None)

    def _mend(self, queue: JournalQueue, failure: Failure) -> None:
        queue.is_syncing = False
        if queue.failure is not None or queue.is_mending:
            return
        reason = reason_of(_error_of(failure))
        log.error("The journal of {queue!r} failed to sync ({reason}): rewriting it", queue=queue.name, reason=reason)
        queue.refusal = f"queue storage failed: {reason}; the queue is being rewritten"
        queue.is_mending = True
        try:
            number = queue.writer.set_aside()
        except OSError as error:
            self._mend_failed(queue, Failure(error))
            return
        job = self._jobs.run(write_temporary, self._disk, self._folder, queue.name, number, queue.snapshot())
        job.addCallback(self._publish, queue, number)
        job.addCallbacks(partial(self._mended, queue), partial(self._mend_failed, queue))

    def _publish(self, size: int, queue: JournalQueue, number: int) -> Deferred[int]:
        if queue.failure is not None:  # deleted meanwhile: its files must not come back
            self._disk.erase(self._folder + b"/" + temporary_name(queue.name, number))
            raise QueueFailed(queue.failure)
        rotated = group_by_queue(self._disk.list_files(self._folder))[queue.name].rotated
        replaced = [file.file_name for file in rotated if file.number <= number]
        job = self._jobs.run(publish, self._disk, self._folder, queue.name, number, replaced)
        return job.addCallback(lambda _: size)

    def _mended(self, queue: JournalQueue, size: int) -> None:
        queue.is_mending, queue.refusal = False, None
        queue.older_bytes, queue.writer.set_aside_bytes = size, 0
        log.info("The journal of {queue!r} is rewritten and safe", queue=queue.name)
        self._tell_idle(queue, None)

    def _mend_failed(self, queue: JournalQueue, failure: Failure) -> None:
        queue.is_mending = False
        self._tell_idle(queue, None if queue.failure is not None else self._kill(queue, _error_of(failure)))

    def _tell_idle(self, queue: JournalQueue, failure: QueueFailed | None) -> None:
        waiting, queue.waiting_commit = queue.waiting_commit, None
        if waiting is not None:
            waiting.callback(None) if failure is None else waiting.errback(failure)


def reason_of(error: Exception) -> str:
    """The system's words for an error, without paths."""
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__


def _error_of(failure: Failure) -> Exception:
    return failure.value if isinstance(failure.value, Exception) else QueueFailed(str(failure.value))
