"""Runs a server under a steady load for a long time, and checks that its resources do not grow.

    python -m tests.torture.soak --minutes 40 --seed 1 --picture soak.svg

Clients use a queue with a small backlog; a queue whose backlog repeatedly grows beyond memory and is taken again, so
that its journal is read behind, rotated, rewritten and packed; queues with new names, which are created and deleted;
children of a parent, which are created and deleted; and connections that end, some with open reads. Once a second the
program records the resources of the server. After a minute of warm-up, the mean of the last quarter may exceed the mean
of the first by at most 5 %.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple, Self

from benchmarks.harness import progress
from tests.child import PATIENCE_S, join
from tests.server.running import Client, Processes, Server
from tests.server.storages import NAMES, new_storage
from tests.torture import command_line
from tests.torture.check_report import CheckReport

CONFIG: Final = """
queuePath = "queues"
maxOpenTransactions = 100
expirationTimerFrequency = "1s"
[admin]
httpPort = false
[default]
maxMemorySize = "256KiB"
maxJournalSize = "2MiB"
defaultJournalSize = "512KiB"
minJournalCompactDelay = "none"
syncJournal = "100ms"
"""

WARM_UP_S: Final = 60.0
COMPARED_FRACTION: Final = 0.25
"""The fraction of the samples in each of the two compared parts."""
MAX_GROWTH: Final = 0.05
SLACK: Final = {"memory": 1 << 20, "descriptors": 2.0, "files": 4.0, "journals": 1 << 18}
"""Growth that is always allowed, for example by one more thread or by a file that is being replaced."""

WAVE_BYTES: Final = 4 << 20
"""Maximum backlog of the growing queue, many times its memory."""
STEP_S: Final = 0.02
"""Pause between the steps of a client. A machine that is not saturated keeps the pace steady."""


class Sample(NamedTuple):
    """Resources of the server at one moment."""

    at_s: float
    memory: float
    """Resident bytes."""
    descriptors: float
    files: float
    journals: float
    """Bytes of all files in the queue folder."""


KINDS: Final = Sample._fields[1:]


class Workload:
    """Threads with one kind of work each. `steps` counts their steps."""

    def __init__(self, server: Server, seed: int) -> None:
        self.errors: list[str] = []
        kinds = (self._steady, self._wave, self._names, self._children, self._reconnect)
        self.steps = dict.fromkeys((kind.__name__.strip("_") for kind in kinds), 0)
        self._server = server
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(kind, random.Random(f"{seed} {kind.__name__}")), daemon=True)
            for kind in kinds
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        join(*self._threads)

    def is_incomplete(self, late_s: float) -> bool:
        """Return whether some kind of work has no step yet, and may still get one on a slow machine."""
        return late_s < PATIENCE_S and not all(self.steps.values())

    def _run(self, kind: Callable[[Client, random.Random, int], None], rng: random.Random) -> None:
        name = kind.__name__.strip("_")
        try:
            with self._server.connect() as client:
                while not self._stopping.wait(STEP_S):
                    kind(client, rng, self.steps[name])
                    self.steps[name] += 1
        except Exception as error:  # any error fails the run
            self.errors.append(f"{name}: {error!r}")

    # Each of these methods is one step.

    def _steady(self, client: Client, rng: random.Random, step: int) -> None:
        items = [rng.randbytes(rng.randrange(2000)) for _ in range(5)]
        client.put(b"steady", *items)
        for item in items:
            assert client.get(b"steady") == item

    def _wave(self, client: Client, rng: random.Random, step: int) -> None:
        size = 8192
        length = WAVE_BYTES // (size * 4)
        if step // length % 2 == 0:
            client.put(b"wave", *(b"%08d" % step + b"x" * (size - 8) for _ in range(4)))
        else:
            for _ in range(4):
                assert client.get(b"wave/open") is not None
                client.ask(b"get wave/close\r\n", b"END\r\n")

    def _names(self, client: Client, rng: random.Random, step: int) -> None:
        name = b"name-%d-%d" % (step, rng.randrange(1 << 30))
        client.put(name, b"x" * rng.randrange(5000))
        if rng.random() < 0.5:
            client.get(name)
        client.ask(b"delete %b\r\n" % name, b"DELETED\r\n")

    def _children(self, client: Client, rng: random.Random, step: int) -> None:
        child = b"parent+%d" % (step % 7)
        client.put(b"parent", b"news")
        client.get(child)
        client.ask(b"flush parent\r\n", b"END\r\n")
        if step % 7 == 6:
            client.ask(b"delete parent+%d\r\n" % rng.randrange(7), b"DELETED\r\n")

    def _reconnect(self, client: Client, rng: random.Random, step: int) -> None:
        client.put(b"reconnect", b"item")
        with self._server.connect() as other:
            assert other.get(b"reconnect/open") is not None
            if rng.random() < 0.5:
                other.ask(b"get reconnect/close\r\n", b"END\r\n")
                return
        while client.get(b"reconnect") is None:  # it is put back when its connection has ended
            assert not self._stopping.wait(0.001)


def _sample(server: Server, folder: Path, at_s: float) -> Sample:
    sizes = []
    for path in folder.rglob("*"):
        try:
            sizes.append(path.stat().st_size)
        except FileNotFoundError:
            continue
    return Sample(at_s, server.memory_bytes(), server.open_files(), len(sizes), sum(sizes))


class SoakResult(NamedTuple):
    """The results of a run."""

    samples: Sequence[Sample]
    steps: dict[str, int]
    errors: Sequence[str]


def soak(processes: Processes, *, seed: int, seconds: float, warm_up_s: float = WARM_UP_S) -> SoakResult:
    """Run the workload for that time, or until each kind of work has a step. Take a sample each second."""
    server = processes.serve(CONFIG)
    folder = processes.folder
    samples: list[Sample] = []
    with Workload(server, seed) as workload:
        began_s = time.monotonic()
        ends_s = warm_up_s + seconds
        while not workload.errors:
            at_s = time.monotonic() - began_s
            if at_s >= ends_s and not workload.is_incomplete(at_s - ends_s):
                break
            progress("soak", int(at_s), int(warm_up_s + seconds))
            if at_s > warm_up_s:
                samples.append(_sample(server, folder, at_s - warm_up_s))
            time.sleep(min(1.0, seconds / 20))
        progress("", 1, 1)
    server.stop()
    return SoakResult(samples, workload.steps, workload.errors)


class Growth(NamedTuple):
    """Means of the first and the last part of the samples of one resource."""

    first: float
    last: float

    @property
    def share(self) -> float:
        """The relative growth."""
        return self.last / self.first - 1

    def is_flat(self, kind: str) -> bool:
        """Return whether the growth is within the limits."""
        return self.last - self.first <= max(MAX_GROWTH * self.first, SLACK[kind])


def growths(samples: Sequence[Sample]) -> dict[str, Growth]:
    """Return the growth of each resource."""
    ends_s = samples[-1].at_s
    first = [each for each in samples if each.at_s <= COMPARED_FRACTION * ends_s]
    last = [each for each in samples if each.at_s >= (1 - COMPARED_FRACTION) * ends_s]
    return {
        kind: Growth(*(statistics.fmean(getattr(each, kind) for each in part) for part in (first, last)))
        for kind in KINDS
    }


def plot(samples: Sequence[Sample], path: Path) -> None:
    """Draw all resources over time."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    units = {"memory": ("MiB", 1 << 20), "descriptors": ("", 1), "files": ("", 1), "journals": ("MiB", 1 << 20)}
    figure, panels = pyplot.subplots(len(KINDS), 1, sharex=True, figsize=(9, 8))
    minutes = [each.at_s / 60 for each in samples]
    for kind, panel in zip(KINDS, panels, strict=True):
        unit, divisor = units[kind]
        panel.plot(minutes, [getattr(each, kind) / divisor for each in samples], linewidth=0.8, color="#1f5fa8")
        panel.set_ylabel(f"{kind}, {unit}" if unit else kind)
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
    panels[-1].set_xlabel("minutes")
    figure.tight_layout()
    figure.savefig(path)


def main() -> int:
    """Run from the command line. Return the exit status."""
    parser = command_line.new_parser(__doc__, minutes=40.0)
    parser.add_argument("--storage", choices=NAMES, default="journal")
    parser.add_argument("--picture", type=Path, help="draw the samples to this file (SVG or PNG)")
    arguments = command_line.parse(parser)
    with ExitStack() as stack:
        processes = stack.enter_context(Processes(Path(stack.enter_context(tempfile.TemporaryDirectory()))))
        processes.arguments = ("--storage", stack.enter_context(new_storage(arguments.storage)))
        result = soak(processes, seed=arguments.seed, seconds=arguments.minutes * 60)
    if arguments.picture is not None and result.samples:
        plot(result.samples, arguments.picture)
    print(f"seed {arguments.seed}, {arguments.minutes:g} minutes, {arguments.storage}")
    print("steps: " + ", ".join(f"{name} {count:,d}" for name, count in result.steps.items()))
    report = CheckReport()
    report.check(not result.errors, "no client failed", result.errors)
    report.check(bool(result.samples), f"{len(result.samples):,} samples were taken")
    for kind, growth in (growths(result.samples) if result.samples else {}).items():
        means = f"{growth.first:14,.0f} {growth.last:14,.0f} {growth.share:+.1%}"
        report.check(growth.is_flat(kind), f"{kind:12} {means}")
    return 1 if report.finish() else 0


if __name__ == "__main__":
    sys.exit(main())
