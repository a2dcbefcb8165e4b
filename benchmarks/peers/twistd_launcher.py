"""A modified twistd: `python -m benchmarks.peers.twistd_launcher [--sync-each] [--watch FILE] kestrel ...`.

--sync-each: simulate a server without group commit. Each tick runs one command of one client, and writes and syncs its
record on the reactor thread before the reply is sent. Requires `syncJournal = 0`.

--watch: measure how long the reactor's thread works between two polls of the network. On SIGUSR1, write the longest
time since the last SIGUSR1, in milliseconds, to the file.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from unittest import mock

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.scripts.twistd import run

PATIENCE_S: Final = 10.0


def _here(_reactor: object, _pool: object, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Deferred[Any]:
    """Run a function at once that would run in a thread."""
    return maybeDeferred(function, *args, **kwargs)


@contextmanager
def syncing_each() -> Iterator[None]:
    """Run one command a tick, and sync on the reactor thread."""
    from kestrel.queues.tick_scheduler import TickScheduler

    has_time = TickScheduler.has_time

    def nothing_is_recorded_yet(scheduler: TickScheduler) -> bool:
        return not scheduler.barrier._touched and has_time(scheduler)

    with (
        mock.patch("kestrel.server.service.deferToThreadPool", _here),
        mock.patch("kestrel.session.session.MAX_COMMANDS_PER_SLICE", 1),
        mock.patch.object(TickScheduler, "has_time", nothing_is_recorded_yet),
    ):
        yield


class WatchedPoller:
    """A wrapper of the reactor's epoll object that measures the time between polls."""

    def __init__(self, poller: Any) -> None:
        self._poller = poller
        self._answered_at: float | None = None
        self._longest_s = 0.0

    def poll(self, timeout: float, most_events: int) -> Any:
        """Record the time since the last poll returned, and wait for events."""
        if self._answered_at is not None:
            self._longest_s = max(self._longest_s, time.perf_counter() - self._answered_at)
        try:
            return self._poller.poll(timeout, most_events)
        finally:
            self._answered_at = time.perf_counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._poller, name)

    def tell(self, path: Path) -> None:
        """Write the longest time to a file, and reset it. The file is replaced atomically."""
        written = path.with_suffix(".new")
        written.write_text(f"{self._longest_s * 1000:.3f}")
        written.rename(path)
        self._longest_s, self._answered_at = 0.0, None


def watch(path: Path) -> None:
    """Watch the reactor, which must be Twisted's epoll reactor."""
    from twisted.internet import reactor

    poller = WatchedPoller(reactor._poller)  # type: ignore[attr-defined]
    reactor._poller = poller  # type: ignore[attr-defined]
    signal.signal(signal.SIGUSR1, lambda *_: poller.tell(path))


def longest_ms(pid: int, path: Path) -> float:
    """Ask a watched server for its longest time in milliseconds, and reset it."""
    path.unlink(missing_ok=True)
    os.kill(pid, signal.SIGUSR1)
    deadline = time.monotonic() + PATIENCE_S
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError("the watched server did not write its longest time")
        time.sleep(0.01)
    return float(path.read_text())


def main() -> None:
    """Run twistd with the arguments that follow the launcher's own options."""
    words = sys.argv[1:]
    syncs_each = words[:1] == ["--sync-each"]
    words = words[syncs_each:]
    if words[:1] == ["--watch"]:
        watch(Path(words[1]))
        words = words[2:]
    sys.argv = ["twistd", *words]
    if syncs_each:
        # The changes work only in pure Python.
        os.environ["KESTREL_PURE"] = "1"
        with syncing_each():
            run()
    else:
        run()


if __name__ == "__main__":
    main()
