"""Thread substitutes for tests: jobs that a test runs step by step, and real threads whose results a test collects."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Final, Protocol

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

_PATIENCE_S: Final = 60.0


class Threads(Protocol):
    """An `InThread` whose Deferreds fire in `run_one`."""

    def __call__(self, function: Callable[..., Any], *args: object) -> Deferred[Any]:
        """Add a job."""

    def __len__(self) -> int:
        """Return the number of jobs whose Deferred has not fired."""

    def run_one(self) -> None:
        """Let one job finish, and fire its Deferred."""


class SteppedThreads:
    """An `InThread` that keeps its jobs, oldest first, until `run_one` or `run_all`."""

    def __init__(self) -> None:
        self._jobs: deque[tuple[Deferred[Any], Callable[..., Any], tuple[Any, ...]]] = deque()

    def __call__(self, function: Callable[..., Any], *args: object) -> Deferred[Any]:
        job: Deferred[Any] = Deferred()
        self._jobs.append((job, function, args))
        return job

    def __len__(self) -> int:
        return len(self._jobs)

    def run_one(self) -> None:
        self._run(*self._jobs.popleft())

    def run_newest(self) -> None:
        """Run the newest job: thread pools guarantee no order."""
        self._run(*self._jobs.pop())

    def _run(self, job: Deferred[Any], function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        try:
            result = function(*args)
        except Exception:
            job.errback()
        else:
            job.callback(result)

    def run_all(self) -> None:
        """Run all jobs, and the jobs that they add."""
        while self._jobs:
            self.run_one()


class RealThreads:
    """An `InThread` with a thread for each job. Deferreds fire in the thread that calls `run_one`."""

    def __init__(self) -> None:
        self._running = 0
        self._ended: SimpleQueue[tuple[Deferred[Any], object]] = SimpleQueue()

    def __call__(self, function: Callable[..., Any], *args: object) -> Deferred[Any]:
        """Start a thread that calls the function."""
        job: Deferred[Any] = Deferred()
        self._running += 1
        Thread(target=self._work, args=(job, function, args), daemon=True).start()
        return job

    def _work(self, job: Deferred[Any], function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        try:
            self._ended.put((job, function(*args)))
        except BaseException:
            self._ended.put((job, Failure()))

    def __len__(self) -> int:
        return self._running

    def run_one(self) -> None:
        """Wait for a job to end, and fire its Deferred. Raise AssertionError if none ends within a minute."""
        try:
            job, result = self._ended.get(timeout=_PATIENCE_S)
        except Empty:
            raise AssertionError(f"no thread ended within {_PATIENCE_S} s: do two calls wait for each other?") from None
        self._running -= 1
        job.callback(result)
