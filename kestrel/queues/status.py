"""The server's status: the kinds of requests that it accepts. It is stored across restarts."""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import Enum
from typing import Final, Protocol

from twisted.internet.defer import Deferred, DeferredLock
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from kestrel.errors import StatusForbidden, StorageError, UnknownStatus
from kestrel.queues.timer import Timer
from kestrel.storage.interfaces import InThread

log = Logger(__name__)

_MAX_STATUS_FILE_BYTES: Final = 100


class StatusLevel(Enum):
    """The statuses, from the least to the most strict. Their values are the names in Kestrel's status file."""

    UP = "Up"
    WRITE_AVOID = "WriteAvoid"
    READ_ONLY = "ReadOnly"
    QUIESCENT = "Quiescent"
    DOWN = "Down"

    def is_stricter_than(self, other: StatusLevel) -> bool:
        """Return True if this status allows less than `other`."""
        return _ORDER.index(self) > _ORDER.index(other)

    @property
    def takes_writes(self) -> bool:
        """Whether clients may put, flush and delete."""
        return self in (StatusLevel.UP, StatusLevel.WRITE_AVOID)

    @property
    def takes_reads(self) -> bool:
        """Whether clients may get, peek and monitor."""
        return self not in (StatusLevel.QUIESCENT, StatusLevel.DOWN)


_ORDER: Final = list(StatusLevel)
_SETTABLE: Final = {status.value.lower(): status for status in StatusLevel if status is not StatusLevel.DOWN}


class StatusFile(Protocol):
    """The file that stores the status. Both methods block, and may raise OSError. `write` is called in a thread."""

    path: bytes
    """Path of the file, for the log."""

    def read(self, most_bytes: int) -> bytes:
        """Return at most `most_bytes` of the content. Raises FileNotFoundError if the file is missing."""

    def write(self, data: bytes) -> None:
        """Replace the content as a whole. It is durable when this returns."""


class ServerStatus:
    """The published status, and the status in force, which decides if a request is accepted.

    After a change to a stricter status, they differ for `grace_ms`, so that clients can learn of it and go elsewhere.
    """

    def __init__(
        self,
        file: StatusFile,
        default: StatusLevel,
        grace_ms: Callable[[], int],
        clock: IReactorTime,
        in_thread: InThread,
    ) -> None:
        self.published = default
        self._in_force = default
        self.takes_writes = default.takes_writes
        self.takes_reads = default.takes_reads
        self._tell: Callable[[StatusLevel], object] = _tell_nobody
        self._file = file
        self._grace_ms = grace_ms
        self._in_thread = in_thread
        self._writing = DeferredLock()
        self._grace = Timer(clock, self._grace_is_over)

    def watch(self, watcher: Callable[[StatusLevel], object]) -> None:
        """Call `watcher` with the published status after each change."""
        self._tell = watcher

    @property
    def in_force(self) -> StatusLevel:
        """The status that decides if a request is accepted."""
        return self._in_force

    def _enforce(self, status: StatusLevel) -> None:
        self._in_force = status
        self.takes_writes, self.takes_reads = status.takes_writes, status.takes_reads

    def restore(self) -> None:
        """Restore the status from the file. Keep the default if the file is missing or invalid."""
        try:
            name = self._file.read(_MAX_STATUS_FILE_BYTES).decode("latin-1").strip()
        except FileNotFoundError:
            return
        except OSError as error:
            log.error("The status file cannot be read: {reason}", reason=error.strerror or str(error))
            return
        status = _SETTABLE.get(name.lower())
        if status is None:
            log.error("The status file has an unknown status: {name!r}", name=name)
            return
        self.published = status
        self._enforce(status)
        file = os.fsdecode(self._file.path)
        log.info("The status is {status}, as it was before (status file: {file})", status=status.value, file=file)

    def change(self, name: bytes) -> Deferred[None]:
        """Change to the status `name`, in upper or lower case.

        Fires when the status is stored. Fails with `StorageError` if it cannot be stored, but it is changed anyway.
        During the grace period of a change, a change to the same or a stricter status is ignored. Raises
        `UnknownStatus`, or `StatusForbidden` for Down.
        """
        status = _SETTABLE.get(name.decode("latin-1").lower())
        if name.lower() == b"down":
            raise StatusForbidden("a server is Down only while it stops; the command shutdown stops it")
        if status is None:
            names = ", ".join(each.value for each in _SETTABLE.values())
            raise UnknownStatus(f"there is no such status; there are {names}")
        if self._grace.is_running and not self.published.is_stricter_than(status):
            log.warn(
                "The status does not change to {status}: the change to {published} is under way",
                status=status.value,
                published=self.published.value,
            )
            return self._writing.run(lambda: None)  # fires when the current change is stored
        grace_ms = 0 if self._grace.is_running else self._grace_ms()
        self._grace.stop()
        log.info("The status changes from {old} to {new}", old=self.published.value, new=status.value)
        self.published = status
        if grace_ms and status.is_stricter_than(self.in_force):
            self._grace.start(grace_ms / 1000)
        else:
            self._enforce(status)
        self._tell(status)
        return self._writing.run(self._remember, status)

    def _remember(self, status: StatusLevel) -> Deferred[None]:
        return self._in_thread(self._file.write, status.value.encode("ascii")).addErrback(self._not_remembered)

    def _not_remembered(self, failure: Failure) -> None:
        error = failure.value
        reason = getattr(error, "strerror", None) or str(error)
        log.error("The status file cannot be written: {reason}", reason=reason)
        raise StorageError(f"the status is changed, but a restart will not keep it: {reason}")

    def _grace_is_over(self) -> None:
        self._enforce(self.published)
        log.info("The status {status} is in force", status=self.in_force.value)

    def stop(self) -> None:
        """Set the status to Down, without storing it, because the server stops."""
        self._grace.stop()
        self.published = StatusLevel.DOWN
        self._enforce(StatusLevel.DOWN)
        self._tell(StatusLevel.DOWN)


def _tell_nobody(status: StatusLevel) -> None:
    pass
