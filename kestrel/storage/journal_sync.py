"""When the journal of a queue is synced, and what becomes of the queue when that fails.

Never two syncs of one queue at a time: if one fails, a second that overlaps it or follows it on the same file would
succeed and mean nothing. So a failed sync ends the file. If nobody has been told that what it held beyond the last
sync is kept (syncJournal 0), those records are given up and the queue is replayed. Else, or where the file was only
loaded, the queue's contents, which are in memory, are written to a new file; until that is safe the queue takes no
put and its replies wait.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from enum import Enum
from typing import Any, Final

from twisted.internet.defer import Deferred, DeferredSemaphore, fail, succeed
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from kestrel.disk.files import Disk
from kestrel.errors import QueueFailed
from kestrel.journal.fileset import group_by_queue, temporary_name
from kestrel.journal.pack import publish, write_temporary
from kestrel.storage.jobs import Jobs
from kestrel.storage.journal_queue import JournalQueue

log = Logger()

SYNCS_AT_ONCE: Final = 32
"""Each needs a descriptor of its own. Where the process may open few, an eighth of those."""

RETRY_S: Final = 1.0


class SyncState(Enum):
    """Where the syncs of one queue stand.

    From IDLE or DUE a sync begins (SYNCING) and ends in IDLE, or DUE if more was written meanwhile. One that fails
    kills the queue, or leads to MENDING: its contents are written anew. From there it is IDLE, or dead; DOOMED is
    dead as soon as there is a commit that can be told.
    """

    IDLE = "idle"
    DUE = "due"
    SYNCING = "syncing"
    MENDING = "mending"
    DOOMED = "doomed"


class _CannotOpen(Exception):
    """There was no descriptor for the sync, so nothing was synced and nothing has failed."""


class SyncServices:
    """What the syncs of all queues of a folder share.

    `kill` makes a queue's object dead and returns the failure to tell.
    """

    def __init__(
        self, disk: Disk, folder: bytes, jobs: Jobs, kill: Callable[[JournalQueue, Exception], QueueFailed]
    ) -> None:
        self.disk = disk
        self.folder = folder
        self.jobs = jobs
        self.kill = kill
        file_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.slots = DeferredSemaphore(max(1, min(SYNCS_AT_ONCE, file_limit // 8)))


class QueueSync:
    """The syncs of one queue."""

    def __init__(self, queue: JournalQueue, services: SyncServices) -> None:
        self._queue = queue
        self._services = services
        self._timer: IDelayedCall | None = None
        self._waiting: list[Deferred[None]] = []
        """Commits whose records are written and not synced."""
        self._held: list[Deferred[None]] = []
        """Commits that may not write before the mending is done."""
        self._doom: Exception | None = None
        self.state = SyncState.IDLE

    @property
    def _is_unsynced(self) -> bool:
        return self._queue.writer.size != self._queue.writer.synced_size

    # What the storage tells.

    def written(self) -> Deferred[None] | None:
        """Records were written: None if they are as safe now as was promised, else fires when they are synced.

        Fails with `QueueFailed`, the queue then being dead.
        """
        queue = self._queue
        period_ms = queue.settings.sync_journal_ms
        if period_ms == 0:
            if not self._is_unsynced:
                return None
            done: Deferred[None] = Deferred()
            self._waiting.append(done)
            if self.state is not SyncState.SYNCING:
                self._begin()
            return done
        queue.writer.promise()
        if period_ms is not None:
            self._due_within(period_ms / 1000)
        return None

    def settings_changed(self) -> None:
        """syncJournal may be another, or the queue was loaded: what is not synced is due accordingly."""
        period_ms = self._queue.settings.sync_journal_ms
        if period_ms is not None and self._is_unsynced:
            self._due_within(period_ms / 1000)

    def when_writable(self) -> Deferred[None] | None:
        """None if a commit may write now; else fires when it may, or fails with `QueueFailed`."""
        if self.state is SyncState.MENDING:
            held: Deferred[None] = Deferred()
            self._held.append(held)
            return held
        if self._doom is not None:
            raise self._services.kill(self._queue, self._doom)
        return None

    def once(self) -> Deferred[Any]:
        """A sync at the stop, when nothing else runs; fails with the OSError."""
        return self._services.slots.run(self._run) if self._doom is None else fail(self._doom)

    # One sync.

    def _due_within(self, seconds: float) -> None:
        if self.state not in (SyncState.IDLE, SyncState.DUE):
            return  # it is looked at again when that is over
        jobs = self._services.jobs
        if self._timer is not None and self._timer.active():
            if self._timer.getTime() <= jobs.seconds() + seconds:
                return
            self._timer.reset(seconds)
            return
        self.state = SyncState.DUE
        self._timer = jobs.later(seconds, self._begin)

    def _begin(self) -> None:
        if self._timer is not None and self._timer.active():
            self._services.jobs.forget(self._timer)
        self._timer = None
        if self._queue.failure is not None:
            self._tell_all(None)
            return
        self.state = SyncState.SYNCING
        covered, self._waiting = self._waiting, []
        writer = self._queue.writer
        file, size = writer.set_aside_files, writer.size
        self._services.slots.run(self._run).addCallbacks(
            self._synced, self._failed, callbackArgs=(file, size, covered), errbackArgs=(covered,)
        )

    def _run(self) -> Deferred[Any]:
        if self._queue.failure is not None:
            return succeed(None)
        try:
            descriptor = self._queue.writer.descriptor_for_sync()
        except OSError as error:
            raise _CannotOpen(str(error)) from error
        return self._services.jobs.run(self._queue.writer.sync, descriptor)

    def _synced(self, _: object, file: int, size: int, covered: list[Deferred[None]]) -> None:
        queue = self._queue
        self.state = SyncState.IDLE
        if queue.writer.set_aside_files == file:
            queue.writer.synced(size)
        for done in covered:
            done.callback(None)
        if self._waiting:
            self._begin()
        elif queue.failure is None:
            self.settings_changed()

    def _failed(self, failure: Failure, covered: list[Deferred[None]]) -> None:
        queue = self._queue
        self._waiting = covered + self._waiting
        self.state = SyncState.IDLE
        if queue.failure is not None:
            self._tell_all(None)  # deleted meanwhile: there is nothing left to be safe
        elif failure.check(_CannotOpen):
            log.error("No file can be opened to sync queue {queue!r}: {reason}", queue=queue.name, reason=failure.value)
            self._due_within(RETRY_S)
        elif queue.writer.keeps_unsynced:
            self._mend(error_of(failure))
        else:
            queue.writer.sync_failed()
            self._tell_all(self._services.kill(queue, error_of(failure)))

    # The contents written anew.

    def _mend(self, error: Exception) -> None:
        queue, services = self._queue, self._services
        log.error(
            "The journal of {queue!r} failed to sync ({reason}): rewriting it",
            queue=queue.name,
            reason=reason_of(error),
        )
        queue.refusal = f"queue storage failed: {reason_of(error)}; the queue is being rewritten"
        self.state = SyncState.MENDING
        try:
            number = queue.writer.set_aside()
        except OSError as cannot:
            self._mend_failed(Failure(cannot))
            return
        job = services.jobs.run(write_temporary, services.disk, services.folder, queue.name, number, queue.snapshot())
        job.addCallback(self._publish, number).addCallbacks(self._mended, self._mend_failed)

    def _publish(self, size: int, number: int) -> Deferred[int]:
        queue, services = self._queue, self._services
        if queue.failure is not None:  # deleted meanwhile: its files must not come back
            services.disk.erase(services.folder + b"/" + temporary_name(queue.name, number))
            raise QueueFailed(queue.failure)
        rotated = group_by_queue(services.disk.list_files(services.folder))[queue.name].rotated
        replaced = [file.file_name for file in rotated if file.number <= number]
        job = services.jobs.run(publish, services.disk, services.folder, queue.name, number, replaced)
        return job.addCallback(lambda _: size)

    def _mended(self, size: int) -> None:
        queue = self._queue
        queue.refusal = None
        queue.older_bytes, queue.writer.set_aside_bytes = size, 0
        log.info("The journal of {queue!r} is rewritten and safe", queue=queue.name)
        self._tell_all(None)

    def _mend_failed(self, failure: Failure) -> None:
        if self._queue.failure is not None:
            self._tell_all(None)
        elif self._waiting or self._held:
            self._tell_all(self._services.kill(self._queue, error_of(failure)))
        else:  # a queue dies in a commit, or what was recorded on it since would be answered as if nothing had been
            self.state, self._doom = SyncState.DOOMED, error_of(failure)
            self._queue.refusal = None  # a put is recorded, so that there is such a commit

    def _tell_all(self, failure: QueueFailed | None) -> None:
        """Nothing is under way any more; whoever waited may go on, or has failed."""
        self.state = SyncState.IDLE
        waiting, self._waiting, self._held = self._waiting + self._held, [], []
        for done in waiting:
            done.callback(None) if failure is None else done.errback(failure)


def reason_of(error: Exception) -> str:
    """The system's words for an error, without paths."""
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__


def error_of(failure: Failure) -> Exception:
    """The exception of a failure."""
    return failure.value if isinstance(failure.value, Exception) else QueueFailed(str(failure.value))
