"""A queue folder: the storage that owns it, and the resources that its queues share."""

from __future__ import annotations

import resource
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Protocol, TypeVar

from twisted.internet.defer import DeferredSemaphore
from twisted.logger import Logger
from twisted.python.failure import Failure

from kestrel.disk.files import Disk, is_full
from kestrel.disk.folders import FAILED_SYNCS_FOLDER, PRIVATE_FOLDER, FileNumbers
from kestrel.errors import QueueFailed, StorageError
from kestrel.escaping import show_name
from kestrel.storage.failures import error_of, reason_of
from kestrel.storage.interfaces import Measure
from kestrel.storage.jobs import Jobs
from kestrel.storage.total_memory import MemoryLimit

log = Logger(__name__)

RESERVE_BYTES: Final = 16 * 1024 * 1024
"""Default size of the file that is erased when the disk is full."""

RESERVE_RETRY_S: Final = 1.0

MAX_OPEN_FILES: Final = 512
"""Maximum number of open files, or a quarter of the process's limit of descriptors if that is smaller."""

_OWNER_PREFIX: Final = b"storage-"
"""Prefix of an empty file in the private folder. The rest of its name is the name of the storage."""

SYNCS_AT_ONCE: Final = 32
"""Maximum number of simultaneous syncs, each of which needs a descriptor.

This and the next two limits are at most an eighth of the descriptors that the process may have.
"""

READS_AT_ONCE: Final = 16

REWRITES_AT_ONCE: Final = 2
"""Small, because rewrites take time from the reactor and space on the disk."""

T = TypeVar("T")

_seconds: Final = time.time


def wall_clock_ms() -> int:
    """Return the time of day in milliseconds since 1970."""
    return int(_seconds() * 1000)


def claim_folder(disk: Disk, folder: bytes, storage: str, looks_like: str | None = None) -> None:
    """Record that the folder belongs to `storage`, unless that is already recorded.

    `looks_like` names another storage if the files look like its files. It is used only if nothing is recorded. If
    recording fails, for example on a full disk, a later start repeats it. Raises `StorageError` if the folder belongs
    to another storage or looks like it, or OSError if the folder cannot be listed.
    """
    private = folder + b"/" + PRIVATE_FOLDER
    ours = _OWNER_PREFIX + storage.encode("ascii")
    names = [name for name in disk.list_files(private) if name.startswith(_OWNER_PREFIX)]
    if not names and looks_like is not None:
        shown = folder.decode("utf-8", "backslashreplace")
        raise StorageError(
            f"there are queues of {looks_like} in the folder {shown}: start with --storage {looks_like}:{shown}, or"
            " name another folder"
        )
    if not names:
        with suppress(OSError):  # on a full disk, a later start records it
            disk.close(disk.open_append(private + b"/" + ours))
    elif ours not in names:
        owner = names[0].removeprefix(_OWNER_PREFIX).decode("utf-8", "backslashreplace")
        shown = folder.decode("utf-8", "backslashreplace")
        raise StorageError(
            f"the queue folder {shown} belongs to {owner}: start with --storage {owner}:{shown}, or name another folder"
        )


def kind_of(disk: Disk, folder: bytes) -> str | None:
    """Return the name of the storage that the folder belongs to, or None if nothing is recorded. Raises OSError."""
    try:
        names = disk.list_files(folder + b"/" + PRIVATE_FOLDER)
    except FileNotFoundError:
        return None
    kinds = [name.removeprefix(_OWNER_PREFIX) for name in names if name.startswith(_OWNER_PREFIX)]
    return kinds[0].decode("utf-8", "backslashreplace") if kinds else None


class Closable(Protocol):
    """A file that opens again when it is used."""

    def close(self) -> None:
        """Close the descriptor."""


class OpenFiles:
    """The files in use. Above the limit, the least recently used one is closed."""

    def __init__(self) -> None:
        self._writers: OrderedDict[Closable, None] = OrderedDict()
        self._file_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4

    def touch(self, writer: Closable) -> None:
        """Mark a file as just used. If too many are open, close the least recently used one."""
        self._writers[writer] = None
        self._writers.move_to_end(writer)
        if len(self._writers) > min(MAX_OPEN_FILES, self._file_limit):
            self._writers.popitem(last=False)[0].close()

    def close(self, writer: Closable) -> None:
        self._writers.pop(writer, None)
        writer.close()


class DiskReserve:
    """A file that reserves disk space for the batch that finds the disk full.

    It is erased then, and puts are refused until there is room to create it again.
    """

    def __init__(self, disk: Disk, path: bytes, reserve_bytes: int, jobs: Jobs) -> None:
        self._disk = disk
        self._path = path
        self._reserve_bytes = max(1, reserve_bytes)  # even a file of one byte shows when there is room
        self._jobs = jobs
        self._has_reserve = False
        self.refusal: str | None = None
        """Reason why puts are refused, or None."""

    def allocate_reserve(self) -> None:
        """Create the reserve file in a thread. Retry until there is room for it."""
        self._jobs.run(self._disk.allocate, self._path, self._reserve_bytes).addCallbacks(
            self._reserve_allocated, self._reserve_not_allocated
        )

    def release_reserve(self) -> bool:
        """Erase the reserve, and refuse puts. Return False if the reserve was already used."""
        had_reserve, self._has_reserve = self._has_reserve, False
        if had_reserve:
            self._disk.erase(self._path)
        if self.refusal is None:
            self.refusal = "disk full"
            log.error("The disk is full: puts are refused until there is room")
            self._jobs.later(RESERVE_RETRY_S, self.allocate_reserve)
        return had_reserve

    def release_if_full(self, error: OSError) -> None:
        """Release the reserve after the error of a full disk, so that the caller can try again. Raise other errors, and
        this one if the reserve was already used.
        """
        if not is_full(error) or not self.release_reserve():
            raise error

    def run_with_reserve(self, action: Callable[..., T], *args: object) -> T:
        """Return the result of `action`. If the disk is full, release the reserve and call it once more. Raises
        OSError.
        """
        try:
            return action(*args)
        except OSError as error:
            self.release_if_full(error)
            return action(*args)

    def _reserve_allocated(self, _: object) -> None:
        self._has_reserve = True
        if self.refusal is not None:
            self.refusal = None
            log.info("There is room on the disk again: puts are accepted")

    def _reserve_not_allocated(self, failure: Failure) -> None:
        error = error_of(failure)
        is_disk_full = isinstance(error, OSError) and is_full(error)
        refusal = "disk full" if is_disk_full else f"the disk reserve cannot be made: {reason_of(error)}"
        if self.refusal != refusal:
            self.refusal = refusal
            log.error(
                "Puts are refused: {refusal}. The reserve (diskReserveSize) needs {size} bytes",
                refusal=refusal,
                size=self._reserve_bytes,
            )
        self._jobs.later(RESERVE_RETRY_S, self.allocate_reserve)


class FailedSyncs:
    """The names with files whose sync has failed. Names must be valid file names. Safe to use from any thread.

    After a failed sync, data may exist only in the memory of the operating system. Any process can still read it there.
    A later sync succeeds without writing it, so records that are appended then follow a hole. The next process
    therefore has to know which files had a failed sync and were not rewritten since. A note needs no sync itself: a
    power failure also removes the data from memory, and leaves what is on the disk.
    """

    def __init__(self, disk: Disk, folder: bytes) -> None:
        self._disk = disk
        self._folder = folder + b"/" + FAILED_SYNCS_FOLDER
        self._names: set[bytes] = set()

    def load(self) -> None:
        """Load the notes of earlier processes, if there are any. Raises OSError."""
        with suppress(FileNotFoundError, NotADirectoryError):
            self._names.update(self._disk.list_files(self._folder))

    def __contains__(self, name: bytes) -> bool:
        return name in self._names

    def add(self, name: bytes) -> None:
        """Note that a sync of a file of `name` has failed.

        If the note cannot be written, only this process knows about it.
        """
        if name in self._names:
            return
        self._names.add(name)
        try:
            self._disk.make_folder(self._folder)
            self._disk.close(self._disk.open_append(self._folder + b"/" + name))
        except OSError as error:
            log.error(
                "Cannot record that a sync of {name} has failed: {reason}", name=show_name(name), reason=error.strerror
            )

    def discard(self, name: bytes) -> None:
        """Remove the note, because no file of `name` holds data from before a failed sync."""
        if name not in self._names:
            return
        self._names.discard(name)
        with suppress(OSError):  # the next process then rewrites the files needlessly
            self._disk.erase(self._folder + b"/" + name)


class FolderResources:
    """The disk, the threads, and limits for simultaneous work of the queues of one folder.

    `kill` makes the store of a queue fail, or a journal that queues share, and returns the error to report.
    """

    def __init__(
        self,
        disk: Disk,
        folder: bytes,
        jobs: Jobs,
        kill: Callable[[Any, Exception], QueueFailed],
        reserve_bytes: int = RESERVE_BYTES,
        now_ms: Callable[[], int] = wall_clock_ms,
        memory_limit: MemoryLimit | None = None,
    ) -> None:
        self.disk = disk
        self.folder = folder
        self.jobs = jobs
        self.kill = kill
        self.disk_reserve = DiskReserve(disk, self.path(PRIVATE_FOLDER + b"/reserve"), reserve_bytes, jobs)
        self.now_ms = now_ms
        self.numbers = FileNumbers(now_ms)
        self.memory_limit = memory_limit or MemoryLimit()
        self.open_files = OpenFiles()
        self.failed_syncs = FailedSyncs(disk, folder)
        self.archive: bytes | None = None
        """Folder for scroll files that are no longer needed; None means that they are erased."""
        self.is_all_shared = False
        """True if each item of a scroll is for all readers of its journal."""
        self.measure: Measure = _ignore_measurement
        """Receives the durations that `record_duration` measures."""
        descriptors = max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8)
        self.sync_slots = DeferredSemaphore(min(SYNCS_AT_ONCE, descriptors))
        self.read_slots = DeferredSemaphore(min(READS_AT_ONCE, descriptors))
        self.rewrite_slots = DeferredSemaphore(min(REWRITES_AT_ONCE, descriptors))

    def path(self, file_name: bytes) -> bytes:
        return self.folder + b"/" + file_name

    def erase_later(self, erase: Callable[..., Any], *args: object) -> None:
        """Call a function that erases files, in a thread. If it fails, the next start erases them."""
        self.jobs.run(erase, *args).addErrback(self.not_erased)

    def not_erased(self, failure: Failure) -> None:
        message = "Files that are no longer needed cannot be erased: {reason}. The next start erases them"
        log.error(message, reason=reason_of(error_of(failure)))

    def record_duration(self, queue: bytes, what: str, began_s: float) -> None:
        """Report that work on the queue began at `began_s`, by the clock of the jobs, and is done now. `what` names the
        metric.
        """
        self.measure(queue, what, int((self.jobs.seconds() - began_s) * 1_000_000))


def _ignore_measurement(queue: bytes, what: str, value: int) -> None:
    """Do nothing, because the storage has no listener."""
