"""The server's status: every change from every status, the status in force meanwhile, and the writes of its file."""

from __future__ import annotations

import errno
import os
from itertools import product

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import LogEvent, LogLevel, capturedLogs, formatEvent

from kestrel.errors import ClientError, StorageError
from kestrel.queues.status import ServerStatus, StatusLevel, UnknownStatus
from kestrel.testing.server import MemoryStatusFile
from kestrel.testing.threads import SteppedThreads

SETTABLE = [StatusLevel.UP, StatusLevel.WRITE_AVOID, StatusLevel.READ_ONLY, StatusLevel.QUIESCENT]
"""From the loosest to the strictest."""

GRACE_MS = 10_000


class Bench:
    """A status whose file is written when the test says so."""

    def __init__(
        self, default: StatusLevel = StatusLevel.UP, grace_ms: int = 0, file: MemoryStatusFile | None = None
    ) -> None:
        self.clock = Clock()
        self.threads = SteppedThreads()
        self.file = file or MemoryStatusFile()
        self.grace_ms = grace_ms
        self.status = ServerStatus(self.file, default, lambda: self.grace_ms, self.clock, self.threads)

    def change(self, status: StatusLevel) -> None:
        """Change the status and write the file."""
        done: list[object] = []
        self.status.change(status.value.encode()).addBoth(done.append)
        self.threads.run_all()
        assert done == [None]

    @property
    def now(self) -> tuple[StatusLevel, StatusLevel]:
        """The published status, and the status in force."""
        return self.status.published, self.status.in_force


def is_stricter(one: StatusLevel, other: StatusLevel) -> bool:
    return SETTABLE.index(one) > SETTABLE.index(other)


def ids(value: object) -> str | None:
    return value.value if isinstance(value, StatusLevel) else None


def warnings(events: list[LogEvent]) -> list[str]:
    return [formatEvent(event) for event in events if event["log_level"] >= LogLevel.warn]


# Requests that each status accepts.


# A single change.


@pytest.mark.parametrize("grace_ms", [0, GRACE_MS])
@pytest.mark.parametrize(("old", "new"), list(product(SETTABLE, SETTABLE)), ids=ids)
def test_stricter_change_is_published_at_once_and_applies_after_grace(
    old: StatusLevel, new: StatusLevel, grace_ms: int
) -> None:
    bench = Bench(old, grace_ms)
    waits = bool(grace_ms) and is_stricter(new, old)
    bench.change(new)
    assert bench.now == (new, old if waits else new)
    assert bench.file.data == new.value.encode()
    bench.clock.advance(9.75)
    assert bench.now == (new, old if waits else new)
    bench.clock.advance(0.25)
    assert bench.now == (new, new)
    assert bench.clock.getDelayedCalls() == []


# A second change during the grace period.

UNDER_WAY = [(old, first) for old, first in product(SETTABLE, SETTABLE) if is_stricter(first, old)]


@pytest.mark.parametrize("second", SETTABLE, ids=ids)
@pytest.mark.parametrize(("old", "first"), UNDER_WAY, ids=ids)
def test_second_change_applies_only_if_looser(old: StatusLevel, first: StatusLevel, second: StatusLevel) -> None:
    bench = Bench(old, GRACE_MS)
    bench.change(first)
    bench.clock.advance(4)
    with capturedLogs() as events:
        bench.change(second)
    if is_stricter(first, second):
        assert bench.now == (second, second)
        assert bench.clock.getDelayedCalls() == [], "the first change is canceled"
        assert bench.file.data == second.value.encode()
        assert warnings(events) == []
    else:
        assert bench.now == (first, old)
        assert bench.file.data == first.value.encode()
        (warning,) = warnings(events)
        assert second.value in warning
        bench.clock.advance(5.75)
        assert bench.now == (first, old)
        bench.clock.advance(0.25)
        assert bench.now == (first, first)
    bench.clock.advance(100)
    assert bench.status.published is bench.status.in_force is (second if is_stricter(first, second) else first)


# Names.


@pytest.mark.parametrize("name", [b"", b"down", b"Down", b"up ", b" up", b"write_avoid", b"read only", b"\xff", b"5"])
def test_unknown_status_is_refused_and_changes_nothing(name: bytes) -> None:
    bench = Bench(StatusLevel.WRITE_AVOID)
    with pytest.raises(UnknownStatus) as refused:
        bench.status.change(name)
    assert isinstance(refused.value, ClientError)
    assert bench.now == (StatusLevel.WRITE_AVOID, StatusLevel.WRITE_AVOID)
    assert len(bench.threads) == 0


# The file.


@pytest.mark.parametrize("default", SETTABLE, ids=ids)
@pytest.mark.parametrize("status", SETTABLE, ids=ids)
def test_stored_status_applies_from_the_start(status: StatusLevel, default: StatusLevel) -> None:
    before = Bench(StatusLevel.UP, GRACE_MS)
    before.change(status)
    bench = Bench(default, GRACE_MS, before.file)
    with capturedLogs() as events:
        bench.status.restore()
    line = f"The status is {status.value}, as it was before (status file: status)"
    assert [formatEvent(event) for event in events] == [line]
    assert bench.now == (status, status)
    assert bench.clock.getDelayedCalls() == []


@pytest.mark.parametrize("data", [b"quiescent", b"QUIESCENT", b"Quiescent\n"])
def test_handwritten_file_is_understood(data: bytes) -> None:
    bench = Bench()
    bench.file.data = data
    bench.status.restore()
    assert bench.now == (StatusLevel.QUIESCENT, StatusLevel.QUIESCENT)


@pytest.mark.parametrize("data", [b"", b"Down", b"Upp", b"Up" * 500, b"\xff\xfe", b"\0" * 50])
def test_file_without_status_leaves_default_and_is_logged(data: bytes) -> None:
    bench = Bench(StatusLevel.READ_ONLY)
    bench.file.data = data
    with capturedLogs() as events:
        bench.status.restore()
    assert bench.now == (StatusLevel.READ_ONLY, StatusLevel.READ_ONLY)
    assert len(warnings(events)) == 1


def test_unreadable_file_leaves_default_and_reason_is_logged() -> None:
    bench = Bench(StatusLevel.READ_ONLY)
    bench.file.error = OSError(errno.EIO, os.strerror(errno.EIO))
    with capturedLogs() as events:
        bench.status.restore()
    assert bench.now == (StatusLevel.READ_ONLY, StatusLevel.READ_ONLY)
    (line,) = warnings(events)
    assert os.strerror(errno.EIO) in line


def test_missing_file_is_not_logged() -> None:
    bench = Bench(StatusLevel.READ_ONLY)
    with capturedLogs() as events:
        bench.status.restore()
    assert bench.now == (StatusLevel.READ_ONLY, StatusLevel.READ_ONLY)
    assert warnings(events) == []


def test_change_applies_at_once_and_completes_when_stored() -> None:
    bench = Bench()
    done: list[object] = []
    bench.status.change(b"quiescent").addBoth(done.append)
    assert bench.now == (StatusLevel.QUIESCENT, StatusLevel.QUIESCENT)
    assert (done, bench.file.data) == ([], None)
    bench.threads.run_one()
    assert (done, bench.file.data) == ([None], b"Quiescent")


def test_file_is_written_by_one_change_at_a_time() -> None:
    bench = Bench()
    done: list[str] = []

    def note(name: str) -> None:
        changed: Deferred[None] = bench.status.change(name.encode())
        changed.addBoth(lambda _: done.append(name))

    for name in ("Quiescent", "ReadOnly", "Up"):
        note(name)
    for remembered in (b"Quiescent", b"ReadOnly", b"Up"):
        assert len(bench.threads) == 1
        bench.threads.run_one()
        assert bench.file.data == remembered
        assert done[-1].encode() == remembered
    assert len(bench.threads) == 0


def test_ignored_change_is_answered_when_first_is_stored() -> None:
    bench = Bench(StatusLevel.UP, GRACE_MS)
    done: list[str] = []
    bench.status.change(b"readonly").addCallback(lambda _: done.append("first"))
    bench.status.change(b"quiescent").addCallback(lambda _: done.append("second"))
    assert done == []
    bench.threads.run_one()
    assert sorted(done) == ["first", "second"]
    assert len(bench.threads) == 0
    assert bench.file.data == b"ReadOnly"


def test_unwritable_file_is_an_error_but_change_applies() -> None:
    bench = Bench()
    bench.change(StatusLevel.WRITE_AVOID)
    bench.file.error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    failed: list[StorageError] = []
    bench.status.change(b"readonly").addErrback(lambda failure: failed.append(failure.value))
    with capturedLogs() as events:
        bench.threads.run_all()
    (error,) = failed
    assert isinstance(error, StorageError)
    assert os.strerror(errno.ENOSPC) in str(error)
    assert [line for line in warnings(events) if os.strerror(errno.ENOSPC) in line]
    assert bench.now == (StatusLevel.READ_ONLY, StatusLevel.READ_ONLY)
    bench.file.error = None
    bench.change(StatusLevel.QUIESCENT)
    assert bench.file.data == b"Quiescent", "one failure does not prevent the next write"


# Stopping.


def test_stopping_server_is_down_which_is_not_stored() -> None:
    bench = Bench(StatusLevel.UP, GRACE_MS)
    bench.change(StatusLevel.READ_ONLY)
    bench.status.stop()
    assert bench.now == (StatusLevel.DOWN, StatusLevel.DOWN)
    assert bench.clock.getDelayedCalls() == []
    assert len(bench.threads) == 0
    assert bench.file.data == b"ReadOnly"
