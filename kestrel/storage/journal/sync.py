"""When the journal of a queue is synced, and what becomes of the queue when that fails.

Never two syncs of one queue at a time: if one fails, a second that overlaps it or follows it on the same file would
succeed and mean nothing. So a failed sync ends the file. If nobody has been told that what it held beyond the last
sync is kept (syncJournal 0), those records are given up and the queue is replayed. Else, or where the file was only
loaded, the queue's contents, which are in memory, are written to a new file; until that is safe the queue takes no
put and its replies wait.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from enum import Enum
from typing import Any, Final

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from kestrel.errors import QueueFailed
from kestrel.journal.fileset import current_name
from kestrel.journal.pack import PublishIncomplete
from kestrel.journal.writer import JournalWriter, Sync
from kestrel.storage.failures import CannotOpen, error_of, reason_of
from kestrel.storage.journal.queue import JournalQueue
from kestrel.storage.journal.rewriting import Rewriting
from kestrel.storage.services import Services

log = Logger(__name__)

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


class QueueSync:
    """The syncs of one queue. `on_synced` is called after each that worked."""

    def __init__(
        self, queue: JournalQueue, services: Services, rewriting: Rewriting, on_synced: Callable[[], None]
    ) -> None:
        self._queue = queue
        self._services = services
        self._rewriting = rewriting
        self._on_synced = on_synced
        self._timer: IDelayedCall | None = None
        self._waiting: list[Deferred[None]] = []
        """Commits whose records are written and not synced."""
        self._held: list[Deferred[None]] = []
        """Commits that may not write before the mending is done."""
        self._packs: list[Deferred[None]] = []
        """Packs that must not be published before all that is written is synced."""
        self._doom: Exception | None = None
        self._unsynced_since_s: float | None = None
        """When the first record was written that a sync will make safe, and none has."""
        self.state = SyncState.IDLE

    # What the storage tells.

    def written(self) -> Deferred[None] | None:
        """Records were written: None if they are as safe now as was promised, else fires when they are synced.

        Fails with `QueueFailed`, the queue then being dead.
        """
        queue = self._queue
        period_ms = queue.settings.sync_journal_ms
        if period_ms == 0 and queue.writer.is_synced:
            return None
        if self._unsynced_since_s is None and period_ms is not None:
            self._unsynced_since_s = self._services.jobs.seconds()
        if period_ms == 0:
            return self._sync_for(self._waiting)
        queue.writer.acknowledge()
        self.settings_changed()
        return None

    def for_a_pack(self) -> Deferred[None]:
        """Sync at once, whatever syncJournal is; fires when all that is written now is safe.

        Fails with `QueueFailed` when the queue is dead, or will be by the next commit.
        """
        if self._doom is not None:
            return fail(QueueFailed(reason_of(self._doom)))
        return succeed(None) if self._queue.writer.is_synced else self._sync_for(self._packs)

    def _sync_for(self, whom: list[Deferred[None]]) -> Deferred[None]:
        done: Deferred[None] = Deferred()
        whom.append(done)
        if self.state in (SyncState.IDLE, SyncState.DUE):
            self._begin()
        return done

    def settings_changed(self) -> None:
        """syncJournal may be another, or the queue was loaded: what is not synced is due accordingly."""
        period_ms = self._queue.settings.sync_journal_ms
        if period_ms is not None and not self._queue.writer.is_synced:
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
        return self._services.syncing.run(self._run) if self._doom is None else fail(self._doom)

    def doom(self, error: Exception) -> None:
        """The queue cannot go on: it is dead as soon as there is a commit that can be told.

        Else what was recorded since the last one would be answered as if nothing had been.
        """
        self.state, self._doom = SyncState.DOOMED, error
        self._queue.refusal = None  # a put is recorded, so that there is such a commit
        packs, self._packs = self._packs, []
        for done in packs:
            done.errback(QueueFailed(reason_of(error)))

    # One sync.

    def _due_within(self, seconds: float) -> None:
        if self.state not in (SyncState.IDLE, SyncState.DUE):
            return  # it is looked at again when that is over
        self.state = SyncState.DUE
        self._timer = self._services.jobs.within(seconds, self._timer, self._begin)

    def _begin(self) -> None:
        self._services.jobs.forget(self._timer)
        self._timer = None
        if self._queue.failure is not None:
            self._tell_all(None)
            return
        self.state = SyncState.SYNCING
        commits, self._waiting = self._waiting, []
        packs, self._packs = self._packs, []
        since_s, self._unsynced_since_s = self._unsynced_since_s, None
        self._services.syncing.run(self._run).addCallbacks(
            self._synced, self._failed, callbackArgs=(commits, packs, since_s), errbackArgs=(commits, packs)
        )

    def _run(self) -> Deferred[Sync | None]:
        writer = self._queue.writer
        if self._queue.failure is not None:
            return succeed(None)
        try:
            sync = writer.begin_sync()
        except OSError as error:
            raise CannotOpen(str(error)) from error
        return self._services.jobs.run(self._sync, writer, sync).addCallback(lambda _: sync)

    def _sync(self, writer: JournalWriter, sync: Sync) -> None:
        """Runs in a thread."""
        try:
            writer.run_sync(sync)
        except OSError:
            self._services.failed_syncs.add(current_name(self._queue.name))
            raise

    def _synced(
        self, sync: Sync | None, commits: list[Deferred[None]], packs: list[Deferred[None]], since_s: float | None
    ) -> None:
        queue = self._queue
        if sync is not None and since_s is not None:
            self._services.took(queue.name, "fsync_delay_usec", since_s)
        self.state = SyncState.IDLE if self._doom is None else SyncState.DOOMED
        if sync is not None:
            queue.writer.synced(sync)
        if queue.failure is None:
            self._on_synced()
        for done in commits + packs:
            done.callback(None)
        if self._waiting or self._packs:
            self._begin()
        elif queue.failure is None and self.state is SyncState.IDLE:
            self.settings_changed()

    def _failed(self, failure: Failure, commits: list[Deferred[None]], packs: list[Deferred[None]]) -> None:
        queue = self._queue
        self._waiting, self._packs = commits + self._waiting, packs + self._packs
        self.state = SyncState.IDLE if self._doom is None else SyncState.DOOMED
        if queue.failure is not None:
            self._tell_all(None)  # deleted meanwhile: there is nothing left to be safe
        elif failure.check(CannotOpen):
            log.error("No file can be opened to sync queue {queue!r}: {reason}", queue=queue.name, reason=failure.value)
            self._due_within(RETRY_S)
        elif queue.writer.needs_sync:
            self._mend(error_of(failure))
        else:
            queue.writer.sync_failed()
            self._give_up(error_of(failure))

    def _give_up(self, error: Exception) -> None:
        """A queue dies in a commit: of those that wait, or of the next."""
        if self._waiting or self._held:
            self._tell_all(self._services.kill(self._queue, error))
        else:
            self.doom(error)

    # The contents written anew.

    def mend_again(self) -> None:
        """The queue was loaded from files of which a sync has failed: another one of them would mean nothing."""
        self._mend(OSError(errno.EIO, "its files failed to sync"))

    def _mend(self, error: Exception) -> None:
        log.error(
            "The journal of {queue!r} failed to sync ({reason}): rewriting it",
            queue=self._queue.name,
            reason=reason_of(error),
        )
        self._queue.refusal = f"queue storage failed: {reason_of(error)}; the queue is being rewritten"
        self.state = SyncState.MENDING
        Deferred.fromCoroutine(self._rewrite()).addCallbacks(self._mended, self._mend_failed)

    async def _rewrite(self) -> None:
        queue = self._queue
        await self._rewriting.stop()
        queue.check()
        writer, acknowledged_size, number = queue.writer, queue.writer.acknowledged_size, None
        try:
            records = queue.take_pending()
            if records:
                writer.append(records)
            end = queue.rotate(queue.boundary(), is_kept=False)
            number = end.number
            await self._rewriting.replace(queue.replacement(end), is_urgent=True)
        except PublishIncomplete as error:  # what was to be safe is
            self._doom = error
        except Exception:
            if queue.failure is None:  # of what was pending nobody will be told that it is kept
                writer.truncate_to(acknowledged_size, number)
            raise
        queue.check()

    def _mended(self, _: object) -> None:
        self._queue.refusal = None
        self._services.failed_syncs.discard(current_name(self._queue.name))
        log.info("The journal of {queue!r} is rewritten and safe", queue=self._queue.name)
        self._tell_all(None)
        if self._doom is not None:
            self.doom(self._doom)

    def _mend_failed(self, failure: Failure) -> None:
        if self._queue.failure is not None:
            self._tell_all(None)
        else:
            self._give_up(error_of(failure))

    def _tell_all(self, failure: QueueFailed | None) -> None:
        """Nothing is under way any more; whoever waited may go on, or has failed."""
        self.state = SyncState.IDLE
        waiting = self._waiting + self._held + self._packs
        self._waiting, self._held, self._packs = [], [], []
        for done in waiting:
            done.callback(None) if failure is None else done.errback(failure)
