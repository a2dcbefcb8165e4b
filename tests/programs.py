"""A reactor for programs with queues in them, whose time, turns and threads are the test's."""

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
"""What the wall clock shows when the reactor is made."""


class ProgramReactor(Clock):
    """What `kestrel.library` asks of a reactor. A turn ends, and threads work, in `settle` and what calls it."""

    def __init__(self) -> None:
        super().__init__()
        self._jobs: deque[Callable[[], None]] = deque()

    def callFromThread(self, function: Callable[..., object], *args: object) -> None:
        """In the next turn."""
        self.callLater(0, function, *args)

    def getThreadPool(self) -> ProgramReactor:
        """Itself."""
        return self

    def callInThreadWithCallback(
        self, finished: Callable[[bool, Any], None], function: Callable[..., Any], *args: object
    ) -> None:
        """A job for later."""
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
        """Do what is due, but nothing in threads."""
        while any(call.getTime() <= self.seconds() for call in self.getDelayedCalls()):
            self.advance(0)

    def settle(self) -> None:
        """Do all that needs no time to go by, in threads too."""
        self.end_turn()
        while self._jobs:
            self._jobs.popleft()()
            self.end_turn()

    def pass_time(self, seconds: float) -> None:
        """Let time go by, and do what is due then."""
        self.advance(seconds)
        self.settle()

    def now_ms(self) -> int:
        """The wall clock."""
        return START_MS + round(self.seconds() * 1000)

    def result(self, deferred: Deferred[Any]) -> Any:
        """What it fires with when all is settled; raises its failure."""
        fired: list[Any] = []
        deferred.addBoth(fired.append)
        self.settle()
        assert fired, "it has not fired"
        if isinstance(fired[0], Failure):
            fired[0].raiseException()
        return fired[0]


def arrivals(deferred: Deferred[Any]) -> list[Any]:
    """A list that has what it fires with once it has fired: the data of an item, None, or a failure's error."""
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
