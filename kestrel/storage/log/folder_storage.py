"""The storage of a folder of log files, the base of the journal and the scroll storage.

A *unit* is what fails and is loaded as a whole: a queue with its journal files, or a scroll journal that a parent and
its children share. A unit whose disk fails accepts no calls until it is loaded again from its files.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from mypy_extensions import mypyc_attr
from twisted.internet.defer import Deferred, DeferredList, fail
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import classImplements

from kestrel.disk.files import Disk, check_distinct_when_folded, is_full
from kestrel.disk.folders import PRIVATE_FOLDER
from kestrel.disk.lock import FolderLock
from kestrel.errors import QueueFailed, StorageError
from kestrel.escaping import count, show_name
from kestrel.storage.failures import error_of, reason_of
from kestrel.storage.folder_resources import RESERVE_BYTES, FolderResources, wall_clock_ms
from kestrel.storage.interfaces import IMeasuring, InThread, IQueueStorage, Measure, OwnQueue, SettingsFor
from kestrel.storage.jobs import Jobs
from kestrel.storage.log.sync_scheduler import LogUnit, SyncScheduler
from kestrel.storage.total_memory import MemoryLimit

log = Logger(__name__)

RELOAD_INLINE_BYTES: Final = 1 << 20
"""Limit of the bytes that the next use of a failed unit replays on the reactor thread, in a few ms."""

IS_LOADING: Final = "the queue is being loaded again: try again in a moment"

IS_STARTING: Final = "the queues are being loaded: try again in a moment"


class Maintenance(Protocol):
    """The background work of a unit."""

    @property
    def sync(self) -> SyncScheduler:
        """The scheduler of its syncs."""

    def written(self, queues: Any) -> Deferred[None] | None:
        """Start the work that is due after a write. Return a Deferred if the commit waits for a sync."""


UnitT = TypeVar("UnitT", bound=LogUnit)
MaintenanceT = TypeVar("MaintenanceT", bound=Maintenance)


class UnitLoad(NamedTuple):
    """A unit to be loaded at the start. `names` returns the queues that are not served if `load` fails."""

    stem: bytes
    load: Callable[[], Any]
    names: Callable[[], Collection[bytes]]


@mypyc_attr(allow_interpreted_subclasses=True)
class FolderStorage(Generic[UnitT, MaintenanceT]):
    """The part of a storage that owns a folder (`IStorage`, `IMeasuring`).

    It starts, closes, loads, fails and commits units. `kind` names a unit in the log. A subclass adds `queue`, `put`,
    `delete` and `commit`, and the steps that depend on the record format: `_find_units`, `_adopt`, `_write_changes`,
    `_fail_unit` and `_finish`.
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
        kind: str = "Queue",
    ) -> None:
        self._disk = disk or Disk()
        self._folder = folder
        self._jobs = Jobs(clock, in_thread)
        resources = FolderResources(self._disk, folder, self._jobs, self._kill, reserve_bytes, now_ms, memory)
        self._resources = resources
        self._private = resources.path(PRIVATE_FOLDER)
        self._disk_reserve = resources.disk_reserve
        self._kind = kind
        self._units: dict[bytes, UnitT] = {}
        """Live units, by stem."""
        self._maintenance: dict[UnitT, MaintenanceT] = {}
        self._failed: dict[bytes, UnitT | None] = {}
        """Failed units by stem; None for a unit that has never been loaded."""
        self._busy: dict[bytes, str] = {}
        """Reasons why failed units cannot be loaded now, by stem, while a thread works on their files."""
        self.reload_inline_bytes = RELOAD_INLINE_BYTES
        self._lock: FolderLock | None = None
        self._folds_names = False
        self._has_started = False
        """True when all units have been loaded. Before, a new unit could have the name of one that is not loaded yet.
        """

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

    # Steps that depend on the record format.

    def _find_units(self, settings_for: SettingsFor) -> Iterable[UnitLoad]:
        """Claim the folder for this kind of storage. Return its units; a thread iterates over them.

        Raise OSError or StorageError.
        """
        raise NotImplementedError

    def _adopt(self, unit: UnitT) -> None:
        """Make a loaded unit live and start its background work."""
        raise NotImplementedError

    def _write_changes(self, unit: UnitT, queues: Sequence[OwnQueue]) -> None:
        """Write the pending changes of a unit and its `queues`. Raise OSError."""
        raise NotImplementedError

    def _fail_unit(self, unit: UnitT, failure: QueueFailed) -> None:
        """End the queues and the background work of a unit, then cut unacknowledged records from its files.

        Raise OSError if they cannot be cut. The next use of the unit cuts them then.
        """
        raise NotImplementedError

    def _finish(self, compacts: bool) -> Deferred[Any] | None:
        """Do the last work on the files before the folder is unlocked."""
        raise NotImplementedError

    # Start and stop.

    def start(self, settings_for: SettingsFor) -> Deferred[dict[bytes, IQueueStorage | Failure]]:
        """Lock the folder, then load every unit in a thread.

        Return a Deferred with a queue, or a Failure, for each name. Raise StorageError if the folder cannot be used.
        """
        try:
            for path in (self._folder, self._private):
                self._disk.make_folder(path)
            self._lock = FolderLock(self._private + b"/lock")
            self._folds_names = self._disk.folds_names(self._folder, PRIVATE_FOLDER)
            self._resources.failed_syncs.load()
            loads = self._find_units(settings_for)
        except (OSError, StorageError) as error:
            if self._lock is not None:
                self._lock.release()
            if isinstance(error, StorageError):
                raise
            folder = self._folder.decode("utf-8", "backslashreplace")
            raise StorageError(f"the queue folder {folder} cannot be used: {reason_of(error)}") from error
        self._disk_reserve.allocate_reserve()
        return self._jobs.run(self._load_all, loads).addCallback(self._loaded)

    def _load_all(self, loads: Iterable[UnitLoad]) -> list[tuple[UnitLoad, UnitT | Exception]]:
        """Load all units. Return each load with its unit or its error. Runs in a thread."""
        loaded: list[tuple[UnitLoad, UnitT | Exception]] = []
        for load in loads:
            try:
                loaded.append((load, load.load()))
            except Exception as error:
                # A unit that cannot be loaded must not prevent the start.
                if not isinstance(error, OSError):
                    message = "{kind} {stem} was not loaded because of a bug in Kestrel"
                    log.failure(message, kind=self._kind, stem=show_name(load.stem))
                loaded.append((load, error))
        return loaded

    def _loaded(self, loaded: Sequence[tuple[UnitLoad, UnitT | Exception]]) -> dict[bytes, IQueueStorage | Failure]:
        self._has_started = True
        queues: dict[bytes, IQueueStorage | Failure] = {}
        for load, unit in loaded:
            if isinstance(unit, Exception):
                self._failed[load.stem] = None
                queues |= self._not_served(load.names(), unit)
            else:
                queues |= {queue.name: queue for queue in unit.queues}
                self._adopt(unit)
        return queues

    def _not_served(self, names: Collection[bytes], error: Exception) -> dict[bytes, IQueueStorage | Failure]:
        """Log that queues are not served because of `error`. Return a Failure for each name."""
        failure = load_failed(error)
        for name in names:
            log.error("Queue {queue} is not served: {reason}", queue=show_name(name), reason=str(failure))
        return {name: Failure(failure) for name in names}

    def close(self, compacts: bool = False) -> Deferred[None]:
        """Write pending changes, sync as syncJournal requires, and unlock the folder.

        `compacts`: remove the records of drained queues too.
        """
        closing = self._jobs.close().addCallback(self._commit_last).addCallback(self._log_failed_syncs)
        return closing.addCallback(lambda _: self._finish(compacts)).addCallback(self._release)

    def _commit_last(self, _: object) -> Deferred[list[tuple[bool, Any]]]:
        """Write all pending changes. Return a Deferred that fires with the results of the last syncs."""
        syncs = [
            self._maintenance[unit].sync.sync_at_close()
            for unit in list(self._units.values())
            if self._write(unit, list(unit.queues)) is None
        ]
        return DeferredList(syncs, consumeErrors=True)

    def _log_failed_syncs(self, syncs: list[tuple[bool, Any]]) -> None:
        for is_synced, result in syncs:
            if not is_synced:
                log.failure("A journal could not be synced when the server stopped", result)

    def _release(self, _: object) -> None:
        """End all queues and unlock the folder."""
        for unit in self._units.values():
            unit.close_files()
            for queue in unit.queues:
                queue.failure = "the server is stopping"
                queue.memory.set_bytes(0)
        if self._lock is not None:
            self._lock.release()

    # Units.

    def _check_free(self, stem: bytes, stems_of: Callable[[list[bytes]], Collection[bytes]]) -> None:
        """Check that a unit that is not live can be loaded or created now.

        Raise `QueueFailed` if the storage has not started, or if a thread works on its files. Raise `BadQueueName` if
        the files of a new unit would have the names of another's on a disk that folds names. `stems_of` returns the
        stems of the units with the given files.
        """
        if not self._has_started:
            raise QueueFailed(IS_STARTING)
        if stem in self._busy:
            raise QueueFailed(self._busy[stem])
        if self._folds_names and stem not in self._failed:
            on_disk = stems_of(self._disk.list_files(self._folder))
            check_distinct_when_folded(stem, {*self._units, *self._failed, *on_disk})

    def _open(self, stem: bytes, load: Callable[[], UnitT], *, is_small: bool) -> UnitT:
        """Load a new or failed unit: a small one now, a large one in a thread.

        Raise OSError if it cannot be loaded, or `QueueFailed` while a thread loads it.
        """
        if not is_small:
            self._busy[stem] = IS_LOADING
            self._jobs.run(load).addCallbacks(self._opened, self._not_opened).addBoth(lambda _: self._busy.pop(stem))
            raise QueueFailed(IS_LOADING)
        unit = self._disk_reserve.run_with_reserve(load)
        self._opened(unit)
        return unit

    def _opened(self, unit: UnitT) -> None:
        has_failed = unit.stem in self._failed
        self._failed.pop(unit.stem, None)
        self._adopt(unit)
        if has_failed:
            items = count(sum(queue.items for queue in unit.queues), "item")
            log.info("{kind} {stem} is served again: {items}", kind=self._kind, stem=show_name(unit.stem), items=items)

    def _not_opened(self, failure: Failure) -> None:
        error = error_of(failure)
        log.error("A failed queue cannot be loaded again: {reason}; its next use tries again", reason=reason_of(error))
        if isinstance(error, OSError) and is_full(error):
            # The next use loads it again, and then has room.
            self._disk_reserve.release_reserve()

    def _kill(self, unit: UnitT, error: Exception) -> QueueFailed:
        """Fail a unit after a disk error, and return the error for its clients. Its next use loads it again."""
        failure = QueueFailed(f"queue storage failed: {reason_of(error)}")
        if self._units.get(unit.stem) is unit:
            reason = str(failure)
            log.error(
                "{kind} {stem}: {reason}; it will be replayed",
                kind=self._kind,
                stem=show_name(unit.stem),
                reason=reason,
            )
            del self._units[unit.stem]
            self._failed[unit.stem] = unit
            try:
                self._fail_unit(unit, failure)
            except OSError:
                message = "{kind} {stem}: failed records were not cut from its files; its next use tries again"
                log.failure(message, kind=self._kind, stem=show_name(unit.stem))
            unit.close_files()
        return failure

    # Commits.

    def _commit_unit(self, unit: UnitT, queues: Sequence[OwnQueue]) -> Deferred[Any] | None:
        """Write the changes of a unit's queues, after its rewrite if one is in progress.

        Return None if they are as durable as syncJournal requires, or a Deferred that fires or fails when they are.
        """
        maintenance = self._maintenance.get(unit)
        if maintenance is None:
            return fail(_failure_of(queues))
        try:
            writable: Deferred[bool] | None = maintenance.sync.when_writable()
        except QueueFailed as error:
            return fail(error)
        if writable is not None:
            return writable.addCallback(self._commit_blocked, unit, queues)
        failure = self._write(unit, queues)
        return maintenance.written(queues) if failure is None else fail(failure)

    def _commit_blocked(self, is_durable: bool, unit: UnitT, queues: Sequence[OwnQueue]) -> Deferred[Any] | None:
        """Write the changes of the queues that were not deleted while the commit waited for a rewrite.

        Do nothing if the rewrite has made them durable.
        """
        if is_durable:
            return None
        live = [queue for queue in queues if not queue.is_deleted]
        if not live:
            return None
        failure = self._write(unit, live) if unit in self._maintenance else _failure_of(live)
        return self._maintenance[unit].written(live) if failure is None else fail(failure)

    def _write(self, unit: UnitT, queues: Sequence[OwnQueue]) -> QueueFailed | None:
        """Write the pending changes of a live unit and its `queues`. Return the error if it fails, or None."""
        try:
            self._write_changes(unit, queues)
        except OSError as error:
            return self._kill(unit, error)
        return None

    def _commit_deletion(self, queue: OwnQueue, synced: Deferred[Any] | None) -> Deferred[Any] | None:
        """Return `synced`, the sync of a deletion, if the commit of `queue` must wait for it, or None."""
        if queue.settings.sync_journal_ms == 0:
            return synced
        if synced is not None:
            synced.addErrback(lambda failure: log.failure("A deletion could not be synced", failure))
        return None


# @implementer is not used, because mypyc does not compile a decorated class to a native class.
classImplements(FolderStorage, IMeasuring)


def load_failed(error: Exception) -> QueueFailed:
    """Return the error for the clients of a queue that cannot be loaded."""
    return QueueFailed(f"the queue cannot be loaded: {reason_of(error)}")


def _failure_of(queues: Sequence[OwnQueue]) -> QueueFailed:
    return QueueFailed(queues[0].failure or "the queue has failed")
