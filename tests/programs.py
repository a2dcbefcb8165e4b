"""A reactor whose time, ticks and threads a test controls, for programs that use `kestrel.library`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from kestrel.testing.faults import FaultyDisk

START_MS = 1_700_000_000_000
"""Time of the wall clock when a reactor is created."""


class ProgramReactor(Clock):
    """The part of a reactor that `kestrel.library` uses. Ticks end and threads run only in `settle` and its callers."""

    def __init__(self) -> None:
        super().__init__()
        self._jobs: deque[Callable[[], None]] = deque()

    def callFromThread(self, function: Callable[..., object], *args: object) -> None:
        """Call a function in the next tick."""
        self.callLater(0, function, *args)

    def getThreadPool(self) -> ProgramReactor:
        """Return this object, which is its own thread pool."""
        return self

    def callInThreadWithCallback(
        self, finished: Callable[[bool, Any], None], function: Callable[..., Any], *args: object
    ) -> None:
        """Add a job for `settle`."""
        self._jobs.append(partial(self._work, finished, function, *args))

    @staticmethod
    def _work(finished: Callable[[bool, Any], None], function: Callable[..., Any], *args: object) -> None:
        try:
            result = function(*args)
        except Exception:
            finished(False, Failure())
        else:
            finished(True, result)

    def end_turn(self) -> None:
        """Run the calls that are due, but no jobs of threads."""
        while any(call.getTime() <= self.seconds() for call in self.getDelayedCalls()):
            self.advance(0)

    def settle(self) -> None:
        """Run all due calls and jobs of threads, without advancing the time."""
        self.end_turn()
        while self._jobs:
            self._jobs.popleft()()
            self.end_turn()

    def pass_time(self, seconds: float) -> None:
        """Advance the time, and run everything that is due."""
        self.advance(seconds)
        self.settle()

    def now_ms(self) -> int:
        """Return the time of the wall clock."""
        return START_MS + round(self.seconds() * 1000)

    def result(self, deferred: Deferred[Any]) -> Any:
        """Settle, and return the result of a Deferred or raise its failure."""
        fired: list[Any] = []
        deferred.addBoth(fired.append)
        self.settle()
        assert fired, "the Deferred has not fired"
        if isinstance(fired[0], Failure):
            fired[0].raiseException()
        return fired[0]


def arrivals(deferred: Deferred[Any]) -> list[Any]:
    """Return a list that gets the result of a Deferred: the data of an item, None, or the error of a failure."""
    seen: list[Any] = []

    def fired(result: Any) -> None:
        seen.append(result.value if isinstance(result, Failure) else getattr(result, "data", result))

    deferred.addBoth(fired)
    return seen


class OpenedFolders:
    """The queues and folders that a test has opened, on a reactor and a disk in its hands."""

    def __init__(self, path: Path, disk: FaultyDisk | None = None) -> None:
        self.path = path
        self.reactor = ProgramReactor()
        self.disk = disk or FaultyDisk()
        self._opened: list[Any] = []

    @property
    def options(self) -> dict[str, Any]:
        """The options of every queue and folder."""
        return {"reserve_bytes": 1, "now_ms": self.reactor.now_ms, "disk": self.disk}

    def stop(self) -> None:
        """Close everything that was opened. Then no call is pending and no file is open."""
        self.disk.mend()
        self.disk.room = None
        for each in self._opened:
            self.reactor.result(each.close())
        assert not self.reactor.getDelayedCalls()
        assert not self.disk.open_descriptors
