"""Threads that run when a test says so."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred


class SteppedThreads:
    """An `InThread` that keeps its jobs until `run_one` or `run_all`, in the order in which they came."""

    def __init__(self) -> None:
        self._jobs: deque[tuple[Deferred[Any], Callable[..., Any], tuple[Any, ...]]] = deque()

    def __call__(self, function: Callable[..., Any], *args: object) -> Deferred[Any]:
        """A job for later."""
        job: Deferred[Any] = Deferred()
        self._jobs.append((job, function, args))
        return job

    def __len__(self) -> int:
        """How many jobs wait."""
        return len(self._jobs)

    def run_one(self) -> None:
        """Do the oldest job."""
        job, function, args = self._jobs.popleft()
        try:
            result = function(*args)
        except Exception:
            job.errback()
        else:
            job.callback(result)

    def run_all(self) -> None:
        """Do all jobs, and those that they lead to."""
        while self._jobs:
            self.run_one()
