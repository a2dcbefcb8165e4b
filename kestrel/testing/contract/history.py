"""Random histories of a few queues, with restarts and crashes, compared with a list and a dict.

The memory backend passes the same comparison, so all backends behave alike.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kestrel.testing.contract.backend import Backend, StorageUnderTest
from kestrel.testing.contract.model_check import ModelCheckedStorage, QueueModel

LIMITS: Final[Sequence[dict[str, Any]]] = (
    {},
    {
        "max_memory_size_bytes": 30,
        "default_journal_size_bytes": 100,
        "max_journal_size_bytes": 400,
        "min_journal_compact_delay_ms": None,
    },
)
"""Settings that keep everything in memory and in one file, and settings that keep almost nothing there."""

some_queue = st.sampled_from([b"a", b"a+b", b"a+c", b"A"])
some_data = st.binary(max_size=12) | st.sampled_from([b"\0", b"ends\0\0", b"lines\r\n", b"x" * 40])
some_xids = st.lists(st.integers(0, 6), max_size=4)


class HistoryTests(Backend):
    """Random histories of one backend."""

    def test_random_history_matches_the_model(self, tmp_path: Path) -> None:
        run_histories(tmp_path, lambda folder: HistoryMachine(self, folder), self.max_examples, steps=40)


def run_histories(
    folder: Path, make_machine: Callable[[Path], RuleBasedStateMachine], max_examples: int, steps: int
) -> None:
    """Run that many random histories of that many steps. Each machine gets the path of a new folder in `folder`."""
    folders = (folder / f"history-{number}" for number in itertools.count())
    run_state_machine_as_test(
        lambda: make_machine(next(folders)),  # type: ignore[arg-type]  # a function is allowed
        settings=settings(
            max_examples=max_examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )


class HistoryMachine(RuleBasedStateMachine):
    """A state machine of everything that may happen to a healthy storage."""

    def __init__(self, backend: Backend, folder: Path) -> None:
        super().__init__()
        self.backend = backend
        self.folder = folder
        self.is_durable = "durable" in backend.capabilities
        self.options: dict[str, Any] = {}
        self.subjects: list[StorageUnderTest] = []

    @initialize(limits=st.sampled_from(LIMITS), sync_journal_ms=st.sampled_from([0, 500, None]))
    def start(self, limits: dict[str, Any], sync_journal_ms: int | None) -> None:
        self.options = {**limits, "sync_journal_ms": sync_journal_ms}
        self.tracked = ModelCheckedStorage(StorageUnderTest(self.backend, self.folder, **self.options))
        self.subjects.append(self.tracked.subject)

    def teardown(self) -> None:
        for subject in self.subjects:
            subject.end()

    @rule(names=st.sets(some_queue, min_size=1), data=some_data, expires=st.booleans())
    def put(self, names: set[bytes], data: bytes, expires: bool) -> None:
        self.tracked.put(sorted(names), data, expires)

    @rule(name=some_queue, opened=st.booleans())
    def take(self, name: bytes, opened: bool) -> None:
        self.tracked.take(name, opened)

    @rule(name=some_queue)
    def peek(self, name: bytes) -> None:
        self.tracked.peek(name)

    def some_of(self, name: bytes, which: Sequence[int]) -> list[int]:
        """Return the xids of open reads that `which` selects. One more xid was never used."""
        xids = [*self.tracked.models.get(name, QueueModel()).opened, 10**9]
        return [xids[index % len(xids)] for index in which]

    @rule(name=some_queue, which=some_xids)
    def confirm(self, name: bytes, which: list[int]) -> None:
        self.tracked.confirm(name, self.some_of(name, which))

    @rule(name=some_queue, which=some_xids, failed=st.booleans())
    def put_back(self, name: bytes, which: list[int], failed: bool) -> None:
        self.tracked.put_back(name, list(dict.fromkeys(self.some_of(name, which))), failed)

    @rule(name=some_queue)
    def clear(self, name: bytes) -> None:
        self.tracked.clear(name)

    @rule(name=some_queue)
    def delete(self, name: bytes) -> None:
        self.tracked.delete(name)

    @rule()
    def commit(self) -> None:
        self.tracked.commit()

    @rule()
    def begin_commit(self) -> None:
        self.tracked.begin_commit()

    @rule(jobs=st.integers(1, 3))
    def run_threads(self, jobs: int) -> None:
        self.tracked.run_threads(jobs)

    @rule(seconds=st.sampled_from([0.25, 0.5, 10.0]))
    def pass_time(self, seconds: float) -> None:
        self.tracked.pass_time(seconds)

    @rule(name=some_queue)
    def compact(self, name: bytes) -> None:
        self.tracked.compact(name)

    @precondition(lambda self: self.is_durable)
    @rule()
    def restart(self) -> None:
        self.tracked = self.tracked.restarted()

    @precondition(lambda self: self.is_durable)
    @rule()
    def kill(self) -> None:
        self.tracked = self.tracked.killed()

    @precondition(lambda self: self.is_durable and self.backend.disk and self.options["sync_journal_ms"] == 0)
    @rule()
    def lose_power(self) -> None:
        self.tracked = self.tracked.without_power()

    @invariant()
    def the_counts_are_right(self) -> None:
        self.tracked.check_counts()
