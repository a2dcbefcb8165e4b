"""The scheduler of a unit's syncs, which also handles a failed sync.

A unit is a queue's journal, or a scroll journal that queues share. It has at most one sync or rewrite at a time, and
appends may run during a sync. After a failed sync, a second sync of the same file could succeed although records are
lost. So the server stops using the file. If no client was told that unsynced records are safe (syncJournal 0), the unit
fails, and its next use reloads it from the synced records. Otherwise its unsynced files are replaced by synced ones. A
unit that was loaded from such files is rewritten too. Until the new files are synced, the unit refuses puts and its
commits wait.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from enum import Enum
from typing import Any, Final, Protocol

from mypy_extensions import mypyc_attr
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from kestrel.errors import QueueFailed
from kestrel.escaping import show_name
from kestrel.storage.failures import CannotOpen, error_of, reason_of
from kestrel.storage.folder_resources import FolderResources
from kestrel.storage.jobs import fire_all

log = Logger(__name__)

RETRY_S: Final = 1.0


class LogUnit(Protocol):
    """A queue with its journal files, or a scroll journal with its readers."""

    failure: str | None
    """Reason why the unit has failed or was deleted, or None."""
    refusal: str | None
    """Reason why the unit refuses puts now, or None."""

    @property
    def stem(self) -> bytes:
        """The first part of the names of its files."""

    @property
    def name(self) -> bytes:
        """Name of the queue that durations are recorded for."""

    @property
    def queues(self) -> Collection[Any]:
        """The queues that fail with it."""

    @property
    def sync_period_ms(self) -> int | None:
        """Value of syncJournal in milliseconds; 0 syncs each commit, None never syncs."""

    def close_files(self) -> None:
        """Close the descriptors of its files."""


class SyncedFiles(Protocol):
    """The files of a unit."""

    @property
    def is_synced(self) -> bool:
        """True if all written records are synced."""

    @property
    def needs_sync(self) -> bool:
        """True if acknowledged records are not synced."""

    def begin_sync(self) -> Any:
        """Return the scope of a sync of all written records. Raise OSError if a file cannot be opened."""

    def run_sync(self, sync: Any) -> None:
        """Sync the files of a scope, in a thread. Raise OSError, or `CannotOpen` if no sync was attempted."""

    def synced(self, sync: Any) -> bool:
        """Record that a sync has succeeded. Return False if it must be repeated."""

    def sync_failed(self) -> None:
        """Discard the records written since the last sync. None of them was acknowledged."""


class SyncState(Enum):
    """The state of the syncs of one unit.

    A sync begins in IDLE or DUE. If it fails, the unit fails or enters REWRITING. A rewrite ends in IDLE, or the unit
    fails.
    """

    IDLE = "idle"
    """No sync is scheduled."""
    DUE = "due"
    """A timer is set for the next sync."""
    SYNCING = "syncing"
    """A sync is running, or waits for a slot."""
    REWRITING = "rewriting"
    """Files are being rewritten. Commits wait."""
    FAILING = "failing"
    """The files must not be synced again, and no commit waits. The unit fails at its next commit."""


@mypyc_attr(allow_interpreted_subclasses=True)
class SyncScheduler(ABC):
    """The scheduler of the syncs of one unit. It calls `on_synced` when more records have become durable.

    `file_name` names the unit in the note of failed syncs and in the log.
    """

    def __init__(
        self,
        unit: LogUnit,
        files: SyncedFiles,
        file_name: bytes,
        resources: FolderResources,
        on_synced: Callable[[], None],
    ) -> None:
        self._unit = unit
        self._files = files
        self._file_name = file_name
        self._resources = resources
        self._on_synced = on_synced
        self._timer: IDelayedCall | None = None
        self._waiting: list[Deferred[None]] = []
        """Deferreds of commits whose records are written but not synced."""
        self._syncing: list[Deferred[None]] = []
        """Deferreds of commits that the running sync will complete."""
        self._scope: Any = None
        """Scope of the running sync, or None."""
        self._blocked: list[Deferred[bool]] = []
        """Deferreds of commits that must not write before the rewrite has ended."""
        self._commits: list[Deferred[None]] = []
        """Deferreds that fire when a commit begins to wait for the rewrite, or the unit ends."""
        self._rewritten: list[Deferred[bool]] = []
        """Deferreds of blocked commits whose changes the rewrite has written."""
        self._packs: list[Deferred[None]] = []
        """Deferreds of packs that must not be published before all written records are synced."""
        self._ending: list[Deferred[None]] = []
        """Deferreds that fire when the running sync has ended."""
        self._pending_error: Exception | None = None
        """Error that makes the unit fail at its next commit, or None."""
        self._failure: QueueFailed | None = None
        """Failure for the commits that wait when the unit has ended, or None if they succeed."""
        self._unsynced_since_s: float | None = None
        """Time of the first write since the last sync began, or None."""
        self.state = SyncState.IDLE

    @abstractmethod
    async def _rewrite(self) -> None:
        """Replace all unsynced files by synced ones. If this fails, waiting commits must not survive a reload."""

    def _begin_compaction(self) -> bool:
        """Begin the compaction that is due, in the state REWRITING. Return whether there is one."""
        return False

    # Calls of the storage.

    def settings_changed(self) -> None:
        """Schedule the sync of unsynced records, after a change of syncJournal or after a load."""
        period_ms = self._unit.sync_period_ms
        if period_ms is not None and not self._files.is_synced:
            self._schedule_within(period_ms / 1000)

    def when_writable(self) -> Deferred[bool] | None:
        """Return None if a commit may write now, or a Deferred that fires when it may.

        The Deferred fires with True if a rewrite has made the changes of the commit durable, else with False. It fails
        with `QueueFailed` if the unit fails meanwhile. If an error is pending, fail the unit and
        raise `QueueFailed`.
        """
        if self.state is SyncState.REWRITING:
            writable = self._wait(self._blocked)
            fire_all(self._commits)
            return writable
        if self._pending_error is not None:
            raise self._resources.kill(self._unit, self._pending_error)
        return None

    def sync_at_close(self) -> Deferred[Any]:
        """Make the last sync, if syncJournal requires one, when no other work runs. Answer all waiting commits.

        Return a Deferred that fires when it is done, or fails with the error of the sync.
        """
        if self._unit.sync_period_ms is None:
            self._fire_waiting(None)
            return succeed(None)
        error = self._pending_error
        syncing = self._resources.sync_slots.run(self._sync_in_thread) if error is None else fail(error)
        return syncing.addBoth(self._synced_at_close)

    def _synced_at_close(self, result: Any) -> Any:
        reason = reason_of(error_of(result)) if isinstance(result, Failure) else None
        self._fire_waiting(None if reason is None else QueueFailed(f"queue storage failed: {reason}"))
        return result

    def fail_next_commit(self, error: Exception) -> None:
        """Make the unit fail at its next commit, so that the changes recorded until then are answered with `error`."""
        self._pending_error = error
        # An accepted put leads to a commit, which reports the error.
        self._unit.refusal = None
        fire_all(self._packs, QueueFailed(reason_of(error)))

    def ended(self) -> Deferred[None]:
        """Return a Deferred that fires when no sync of the unit runs."""
        return self._wait(self._ending) if self.state is SyncState.SYNCING else succeed(None)

    # Syncs.

    def _wait(self, waiters: list[Deferred[Any]]) -> Deferred[Any]:
        done: Deferred[Any] = Deferred()
        waiters.append(done)
        return done

    def _wait_for_sync(self, waiters: list[Deferred[None]]) -> Deferred[None]:
        """Append a Deferred to `waiters` and return it. Begin a sync if the state allows it."""
        done = self._wait(waiters)
        if self.state in (SyncState.IDLE, SyncState.DUE):
            self._begin_sync()
        return done

    def _schedule_within(self, seconds: float) -> None:
        """Begin a sync after `seconds`, or earlier if one is already due."""
        if self.state not in (SyncState.IDLE, SyncState.DUE):
            # The end of the sync or rewrite schedules the next sync.
            return
        self.state = SyncState.DUE
        self._timer = self._resources.jobs.within(seconds, self._timer, self._begin_sync)

    def _begin_sync(self) -> None:
        """Begin a sync of all written records, unless a compaction runs."""
        self._resources.jobs.cancel(self._timer)
        self._timer = None
        if self._unit.failure is not None:
            self._fire_waiting(self._failure)
            return
        if self.state is SyncState.REWRITING:
            return
        self.state = SyncState.SYNCING
        self._syncing, self._waiting = self._waiting, []
        packs, self._packs = self._packs, []
        since_s, self._unsynced_since_s = self._unsynced_since_s, None
        self._resources.sync_slots.run(self._sync_in_thread).addCallbacks(
            self._sync_succeeded, self._sync_failed, callbackArgs=(packs, since_s), errbackArgs=(packs,)
        )

    def _sync_in_thread(self) -> Deferred[Any]:
        """Sync all written records in a thread. The result is the scope of the sync, or None if the unit has failed."""
        if self._unit.failure is not None:
            return succeed(None)
        try:
            scope = self._scope = self._files.begin_sync()
        except OSError as error:
            raise CannotOpen(str(error)) from error
        return self._resources.jobs.run(self._run_sync, scope).addCallback(lambda _: scope)

    def _run_sync(self, scope: Any) -> None:
        """Sync the files of `scope`, and note a failure for the next process. Runs in a thread."""
        try:
            self._files.run_sync(scope)
        except OSError:
            self._resources.failed_syncs.add(self._file_name)
            raise

    def _sync_ended(self, packs: list[Deferred[None]]) -> None:
        """Let the commits and packs of the ended sync wait again, before those that came meanwhile."""
        self._waiting, self._syncing = self._syncing + self._waiting, []
        self._packs = packs + self._packs
        self._scope = None
        self.state = SyncState.IDLE
        fire_all(self._ending)

    def _sync_succeeded(self, scope: Any, packs: list[Deferred[None]], since_s: float | None) -> None:
        if scope is not None and since_s is not None:
            self._resources.record_duration(self._unit.name, "fsync_delay_usec", since_s)
        if self._unit.failure is None and self._files.synced(scope):
            done, self._syncing = self._syncing + packs, []
            self._sync_ended([])
            self._on_synced()
            fire_all(done)
            self.start_due_work()
        else:
            self._sync_ended(packs)
            self._begin_sync()

    def start_due_work(self) -> None:
        """Begin the sync or compaction that is due, unless one is running."""
        if self.state not in (SyncState.IDLE, SyncState.DUE):
            return
        if self._waiting or self._packs:
            self._begin_sync()
        elif self._unit.failure is None and not self._begin_compaction():
            if self._blocked:
                self._fire_waiting(None)
            self.settings_changed()

    def _sync_failed(self, failure: Failure, packs: list[Deferred[None]]) -> None:
        """Try again, rewrite the files, or fail the unit."""
        self._sync_ended(packs)
        error = error_of(failure)
        if self._unit.failure is not None:
            self._fire_waiting(self._failure)
        elif failure.check(CannotOpen):
            log.error(
                "A file of {name} cannot be opened for a sync: {reason}. It is tried again",
                name=show_name(self._file_name),
                reason=error,
            )
            self._schedule_within(RETRY_S)
        elif self._files.needs_sync:
            self._begin_rewrite(error)
        else:
            self._files.sync_failed()
            self._fail_unit(error)

    def _fail_unit(self, error: Exception) -> None:
        """Fail the unit in the commits that wait, or in its next commit if none waits."""
        if self._waiting or self._blocked or self._rewritten:
            self._fire_waiting(self._resources.kill(self._unit, error))
        else:
            self.state = SyncState.FAILING
            self.fail_next_commit(error)

    # Rewrites after a failed sync.

    def _begin_rewrite(self, error: Exception) -> None:
        reason = reason_of(error)
        log.error(
            "The journal of {name} failed to sync ({reason}): rewriting it",
            name=show_name(self._file_name),
            reason=reason,
        )
        self._unit.refusal = f"queue storage failed: {reason}; the queue is being rewritten"
        self.state = SyncState.REWRITING
        Deferred.fromCoroutine(self._rewrite()).addBoth(self._rewrite_ended)

    def _rewrite_ended(self, result: object) -> None:
        if self._unit.failure is not None:
            self._fire_waiting(self._failure)
        elif isinstance(result, Failure):
            self._fail_unit(error_of(result))
        else:
            self._unit.refusal = None
            self._resources.failed_syncs.discard(self._file_name)
            log.info("The journal of {name} is rewritten and safe", name=show_name(self._file_name))
            self._fire_waiting(None)
            if self._pending_error is not None:
                self.fail_next_commit(self._pending_error)
            self.start_due_work()

    def _fire_waiting(self, failure: QueueFailed | None) -> None:
        """Return to IDLE and fire all Deferreds that wait, with `failure` if there is one.

        If a released commit begins another compaction, the commits after it wait for that one.
        """
        self.state = SyncState.IDLE
        blocked, self._blocked = self._blocked, []
        fire_all(self._waiting, failure)
        fire_all(self._packs, failure)
        fire_all(self._rewritten, failure, True)
        while blocked and (failure is not None or self.state is not SyncState.REWRITING):
            done = blocked.pop(0)
            done.callback(False) if failure is None else done.errback(failure)
        self._blocked = blocked + self._blocked
