"""The measurement of all cases on all servers that are installed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.harness import MB, Figure, RunProgress
from benchmarks.peers import cases, interleaved_runs
from benchmarks.peers.cases import Case, Sizes
from benchmarks.peers.generator import Generator, Load
from benchmarks.peers.interleaved_runs import Measured, takes_part
from benchmarks.peers.servers import (
    BEANSTALKD,
    CEILING,
    COMPILED,
    DEFAULT,
    KESTREL,
    KESTREL_PURE,
    MEMCACHED,
    REDIS,
    SYNC_EACH,
    Program,
    Running,
    Setting,
    before,
    build,
    ceiling,
    running,
    watched,
)
from benchmarks.peers.twistd_launcher import longest_ms

MEMORY_ITEM_BYTES: Final = 1024


class Memory(NamedTuple):
    """The memory of a server with many items."""

    server: str
    items: int
    before_bytes: int
    after_bytes: int

    def row(self) -> dict[str, Figure]:
        """Return the row of this server."""
        return {
            "server": self.server,
            "items": self.items,
            "memory_mb": self.after_bytes / MB,
            "bytes_per_item": (self.after_bytes - self.before_bytes) / self.items,
        }


class Comparison:
    """A comparison in that folder. The servers run on that core. `checkout` is that of another kestrel."""

    def __init__(self, folder: Path, core: int, sizes: Sizes, seed: int, checkout: Path | None = None) -> None:
        self._folder = folder
        self._core = core
        self._sizes = sizes
        self._seed = seed
        self._dice = random.Random(seed)
        self._started = 0
        self.generator = Generator(folder)
        self.commands: dict[str, str] = {}
        """The command lines of the servers, by name and sync setting."""
        with self.started(KESTREL) as ours:
            self.build = build(ours)
        known = {each: each.version() for each in (KESTREL, BEANSTALKD, REDIS, MEMCACHED)}
        self.versions = {program.name: version for program, version in known.items()}
        self.programs = [program for program, version in known.items() if version is not None]
        if self.build == COMPILED:
            self.programs.insert(1, KESTREL_PURE)
        if checkout is not None:
            self.programs.insert(1, before(checkout))
        self.programs.append(ceiling(self.generator.path))

    @contextmanager
    def started(self, program: Program, setting: Setting = DEFAULT) -> Iterator[Running]:
        """Start a server over a new folder."""
        self._started += 1
        with running(program, self._folder / f"server-{self._started}", setting, self._core) as server:
            self.commands.setdefault(f"{program.name}, synced {setting.sync}", server.command)
            yield server

    def measure(self) -> list[Measured]:
        """Measure every case. Cases with the same work on several axes are measured once."""
        every_case = cases.cases(self._sizes, self._seed)
        together = [case for case in every_case if case.axis == cases.BACKLOG]
        works = {case.work: case for case in reversed(every_case) if case not in together}
        alone = sorted(works.values(), key=lambda case: repr(case.servers_for))
        turns = sum(case.longer * len(self._taking_part(case)) for case in [*alone, *together])
        clock = RunProgress(self._sizes.rounds * turns)
        measured: list[Measured] = []
        for _, group in groupby(alone, key=lambda case: case.servers_for):
            measured += self._one_after_the_other(list(group), clock)
        by_work = {each.case.work: each for each in measured}
        by_backlog = {each.case: each for each in self._together(together, clock)}
        clock.close()
        return [by_backlog.get(case) or by_work[case.work]._replace(case=case) for case in every_case]

    def _taking_part(self, *some: Case) -> list[Program]:
        return [program for program in (*self.programs, SYNC_EACH) if any(takes_part(program, case) for case in some)]

    def _one_after_the_other(self, group: Sequence[Case], clock: RunProgress) -> Iterator[Measured]:
        """Measure cases that share their servers, one after the other."""
        with ExitStack() as stack:
            servers = [stack.enter_context(self.started(each, group[0].setting)) for each in self._taking_part(*group)]
            for case in group:
                yield from self._rounds({case: servers}, clock)

    def _together(self, some: Sequence[Case], clock: RunProgress) -> list[Measured]:
        """Measure cases that are compared with each other. All their servers run at the same time."""
        with ExitStack() as stack:
            places: dict[Case, list[Running]] = {case: [] for case in some}
            for case, servers in places.items():
                for program in self._taking_part(case):
                    clock.show(f"{case.name}: filling {program.name}")
                    servers.append(stack.enter_context(self.started(program, case.setting)))
                    interleaved_runs.fill(self.generator, servers[-1], case.load, case.backlog)
            return self._rounds(places, clock)

    def _rounds(self, places: Mapping[Case, Sequence[Running]], clock: RunProgress) -> list[Measured]:
        return interleaved_runs.measure(self.generator, places, self._sizes, self._dice, clock)

    def memory(self) -> list[Memory]:
        """Measure the memory of each server with many items of 1 KiB in one queue."""
        figures = []
        load = Load("", size=MEMORY_ITEM_BYTES, queues=1, seed=self._seed)
        setting = Setting(max_memory_mib=self._sizes.memory_mib)
        for program in self.programs:
            if program.name not in (MEMCACHED.name, CEILING):
                with self.started(program, setting) as server:
                    before_bytes = server.memory_bytes()
                    interleaved_runs.fill(self.generator, server, load, self._sizes.memory_items)
                    after_bytes = server.memory_bytes()
                    figures.append(Memory(program.name, self._sizes.memory_items, before_bytes, after_bytes))
        return figures

    def longest_tick_ms(self) -> float:
        """Return the longest time that kestrel's reactor works without polling, with a sync per reply."""
        case = next(case for case in cases.cases(self._sizes, self._seed) if case.has_no_group_commit)
        told = self._folder / "longest"
        with self.started(watched(told), case.setting) as server:
            server.work(self.generator, case.load._replace(seconds=self._sizes.warm_s))
            longest_ms(server.pid, told)
            server.work(self.generator, case.load._replace(seconds=self._sizes.seconds * self._sizes.rounds))
            return longest_ms(server.pid, told)
