"""Crashes of a process with a journaled queue, at each operation of the disk.

A history has steps, each of which is done and made safe. Each run of a history crashes one operation of the disk later.
After a restart the queue must have the state after the last safe step, or after the step that was under way.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import TypeAlias

import pytest
from twisted.internet.defer import Deferred

from kestrel.library import FullPolicy, JournaledQueue, JournaledQueueConfig, JournaledQueueReaderConfig
from kestrel.testing.faults import KillableDisk, ProcessDied
from tests.library.journaled import WORK, Program, config

State: TypeAlias = dict[bytes, list[bytes]]
"""The items of each reader, by name."""

Step: TypeAlias = Callable[[Program, JournaledQueue], Deferred[None] | None]
"""Changes the queue. The result fires when the change is safe."""

PACES = (None, 0)
"""Values of `syncJournal`: never, and before each reply."""


@pytest.fixture(autouse=True)
def collect_deferreds() -> Iterator[None]:
    """Have Deferreds of crashed programs log their errors now and not in a later test."""
    yield
    gc.collect()


def put(data: bytes) -> Step:
    """Put an item for all readers."""
    return lambda program, queue: queue.put(data)


def commit(reader: bytes, items: int = 1) -> Step:
    """Get some items, and commit the last one."""

    def step(program: Program, queue: JournaledQueue) -> Deferred[None]:
        given = [program.get(queue.reader(reader)) for _ in range(items)]
        assert queue.reader(reader).commit(given[-1].id)
        return queue.checkpoint()

    return step


def reader(name: bytes) -> Step:
    """Create a reader."""

    def step(program: Program, queue: JournaledQueue) -> Deferred[None]:
        queue.reader(name)
        return queue.checkpoint()

    return step


def flush(program: Program, queue: JournaledQueue) -> Deferred[None]:
    queue.flush()
    return queue.checkpoint()


def drop(name: bytes) -> Step:
    """Drop a reader."""
    return lambda program, queue: queue.drop_reader(name)


LIVES: dict[str, tuple[list[tuple[Step, State]], JournaledQueueConfig]] = {
    "puts and commits": (
        [
            (put(b"1"), {b"": [b"1"]}),
            (put(b"2"), {b"": [b"1", b"2"]}),
            (put(b"3"), {b"": [b"1", b"2", b"3"]}),
            (commit(b"", 2), {b"": [b"1", b"3"]}),
            (put(b"4"), {b"": [b"1", b"3", b"4"]}),
            (commit(b""), {b"": [b"1", b"4"]}),
        ],
        config(),
    ),
    "a takeover": (
        [
            (put(b"1"), {b"": [b"1"]}),
            (put(b"2"), {b"": [b"1", b"2"]}),
            (commit(b""), {b"": [b"2"]}),
            (reader(b"a"), {b"a": [b"2"]}),
            (put(b"3"), {b"a": [b"2", b"3"]}),
            (commit(b"a"), {b"a": [b"3"]}),
        ],
        config(),
    ),
    "a takeover before anything": (
        [(reader(b"a"), {b"a": []}), (reader(b"b"), {b"a": [], b"b": []}), (put(b"1"), {b"a": [b"1"], b"b": [b"1"]})],
        config(),
    ),
    "readers come and go": (
        [
            (reader(b"a"), {b"a": []}),
            (put(b"1"), {b"a": [b"1"]}),
            (reader(b"b"), {b"a": [b"1"], b"b": []}),
            (put(b"2"), {b"a": [b"1", b"2"], b"b": [b"2"]}),
            (commit(b"b"), {b"a": [b"1", b"2"], b"b": []}),
            (drop(b"a"), {b"b": []}),
            (put(b"3"), {b"b": [b"3"]}),
            (flush, {b"b": []}),
            (drop(b"b"), {b"": []}),
            (put(b"4"), {b"": [b"4"]}),
        ],
        config(),
    ),
    "many files and a flush": (
        [
            (put(b"1" * 60), {b"": [b"1" * 60]}),
            (put(b"2" * 60), {b"": [b"1" * 60, b"2" * 60]}),
            (commit(b""), {b"": [b"2" * 60]}),
            (put(b"3" * 60), {b"": [b"2" * 60, b"3" * 60]}),
            (flush, {b"": []}),
            (put(b"4" * 60), {b"": [b"4" * 60]}),
        ],
        config(journal_size_bytes=100),
    ),
}


def live(tmp_path: Path, life: str, sync_journal_ms: int | None, dies_after: int) -> tuple[int, bool]:
    """Run a history until it crashes. Return the number of safe steps, and whether it crashed."""
    steps, settings = LIVES[life]
    disk = KillableDisk()
    disk.die_after(dies_after)
    program = Program(tmp_path, disk)
    safe = 0
    try:
        queue = program.queue(with_pace(settings, sync_journal_ms))
        for step, _ in steps:
            done = step(program, queue)
            assert done is not None or disk.is_dead
            if done is not None:
                program.result(done)
            if disk.is_dead:
                break
            safe += 1
    except (ProcessDied, Exception):
        if not disk.is_dead:
            raise
    bury(program)
    return safe, disk.is_dead


def with_pace(settings: JournaledQueueConfig, sync_journal_ms: int | None) -> JournaledQueueConfig:
    return JournaledQueueConfig(
        name=WORK,
        sync_journal_ms=sync_journal_ms,
        journal_size_bytes=settings.journal_size_bytes,
        default_reader_config=settings.default_reader_config,
    )


def bury(program: Program) -> None:
    """Close the files and the lock of a crashed program, as the system does."""
    for descriptor in list(program.disk.open_descriptors):
        os.close(descriptor)
    lock = os.path.realpath(program.folder_path / ".kestrel" / "lock")
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # one is that of the listing itself
            if os.readlink(f"/proc/self/fd/{name}") == lock:
                os.close(int(name))


def found(tmp_path: Path) -> State:
    """Return the state after a restart, and check that the queue is usable."""
    program = Program(tmp_path)
    queue = program.queue()
    state = {reader.name: program.drain(reader) for reader in queue.readers}
    program.put(queue, b"next")
    assert [program.drain(reader) for reader in queue.readers] == [[b"next"]] * len(queue.readers)
    program.stop()
    return state


@pytest.mark.parametrize("sync_journal_ms", PACES)
@pytest.mark.parametrize("life", LIVES)
def test_safe_changes_survive_a_crash_at_any_operation(tmp_path: Path, life: str, sync_journal_ms: int | None) -> None:
    states = [{b"": []}, *(state for _, state in LIVES[life][0])]
    deaths = 0
    while True:
        folder = tmp_path / str(deaths)
        safe, has_died = live(folder, life, sync_journal_ms, deaths)
        left = found(folder)
        if not has_died:
            assert (safe, left) == (len(states) - 1, states[-1])
            break
        assert left in states[safe : safe + 2], f"{safe} steps were safe, then it died at operation {deaths}"
        deaths += 1
    assert deaths > 10


DROPS_OLDEST = config(reader=JournaledQueueReaderConfig(max_items=1, full_policy=FullPolicy.DROP_OLDEST))


def ends(first: list[Step], last: Step, settings: JournaledQueueConfig, tmp_path: Path) -> list[State]:
    """Return the states after crashes at each operation of the last step, in order."""
    left: list[State] = []
    while True:
        folder = tmp_path / str(len(left))
        program = Program(folder)
        queue = program.queue(settings)
        for step in first:
            done = step(program, queue)
            assert done is not None
            program.result(done)
        program.stop()
        disk = KillableDisk()
        program = Program(folder, disk)
        queue = program.queue(settings)
        disk.die_after(len(left))
        with suppress(ProcessDied):
            last(program, queue)
            program.reactor.settle()
        bury(program)
        left.append(found(folder))
        if not disk.is_dead:
            return left


def test_crash_may_leave_the_oldest_item_until_the_next_put(tmp_path: Path) -> None:
    left = ends([put(b"1")], put(b"2"), DROPS_OLDEST, tmp_path)
    states: list[State] = [{b"": [b"1"]}, {b"": [b"1", b"2"]}, {b"": [b"2"]}]
    assert [state for state, _ in groupby(left)] == states


def test_dropping_the_last_reader_removes_its_items_before_its_name(tmp_path: Path) -> None:
    left = ends([reader(b"a"), put(b"1")], drop(b"a"), config(), tmp_path)
    states: list[State] = [{b"a": [b"1"]}, {b"a": []}, {b"": []}]
    assert [state for state, _ in groupby(left)] == states
