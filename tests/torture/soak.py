"""Works a server at a steady pace for a long time, and looks whether anything grows: memory, descriptors, files, bytes.

    python -m tests.torture.soak --minutes 40 --seed 1 --picture soak.svg

Clients put and take at a queue whose backlog stays small; at one whose backlog grows beyond what is kept in memory and
is taken again, over and over, so that its journal is read behind, rotated, rewritten and packed; at queues with names
that were never there before, which are made and deleted; at children of a parent, which come and go; over connections
that come and go, some with items open. Each second what the server holds is noted. After a minute of warming up the
means of the first and of the last quarter are compared: the last may be no more than 5 % above the first.
"""

from __future__ import annotations

import argparse
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
SHARE: Final = 0.25
"""Of the time, each of the two parts that are compared."""
MOST_GROWTH: Final = 0.05
SLACK: Final = {"memory": 1 << 20, "descriptors": 2.0, "files": 4.0, "journals": 1 << 18}
"""So much is no growth, however little there was: a thread that is there or not, a file that is just being replaced."""

WAVE_BYTES: Final = 4 << 20
"""The backlog of the queue that comes and goes: many times what is kept in memory."""
STEP_S: Final = 0.02
"""A client's pace: a step, and so long a pause. The machine must not be busy, or the pace is not steady."""


class Sample(NamedTuple):
    """What the server held at one moment."""

    at_s: float
    memory: float
    """Resident bytes."""
    descriptors: float
    files: float
    journals: float
    """Bytes of all files in the queue folder."""


KINDS: Final = Sample._fields[1:]


class Work:
    """Threads, each with one kind of work. `steps` counts what was done of each."""

    def __init__(self, server: Server, seed: int) -> None:
        self.failed: list[str] = []
        kinds = (self._steady, self._wave, self._names, self._children, self._comings)
        self.steps = dict.fromkeys((kind.__name__.strip("_") for kind in kinds), 0)
        self._server = server
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(kind, random.Random(f"{seed} {kind.__name__}")), daemon=True)
            for kind in kinds
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        join(*self._threads)

    def lacks_some(self, late_s: float) -> bool:
        """Whether a kind of work has not been done yet and still may be: the machine is slow."""
        return late_s < PATIENCE_S and not all(self.steps.values())

    def _run(self, kind: Callable[[Client, random.Random, int], None], dice: random.Random) -> None:
        name = kind.__name__.strip("_")
        try:
            with self._server.connect() as client:
                while not self._is_over.wait(STEP_S):
                    kind(client, dice, self.steps[name])
                    self.steps[name] += 1
        except Exception as error:  # whatever it was, the run has failed
            self.failed.append(f"{name}: {error!r}")

    # Each of these is one step.

    def _steady(self, client: Client, dice: random.Random, step: int) -> None:
        items = [dice.randbytes(dice.randrange(2000)) for _ in range(5)]
        client.put(b"steady", *items)
        for item in items:
            assert client.get(b"steady") == item

    def _wave(self, client: Client, dice: random.Random, step: int) -> None:
        size = 8192
        length = WAVE_BYTES // (size * 4)
        if step // length % 2 == 0:
            client.put(b"wave", *(b"%08d" % step + b"x" * (size - 8) for _ in range(4)))
        else:
            for _ in range(4):
                assert client.get(b"wave/open") is not None
                client.ask(b"get wave/close\r\n", b"END\r\n")

    def _names(self, client: Client, dice: random.Random, step: int) -> None:
        name = b"name-%d-%d" % (step, dice.randrange(1 << 30))
        client.put(name, b"x" * dice.randrange(5000))
        if dice.random() < 0.5:
            client.get(name)
        client.ask(b"delete %b\r\n" % name, b"DELETED\r\n")

    def _children(self, client: Client, dice: random.Random, step: int) -> None:
        child = b"parent+%d" % (step % 7)
        client.put(b"parent", b"news")
        client.get(child)
        client.ask(b"flush parent\r\n", b"END\r\n")
        if step % 7 == 6:
            client.ask(b"delete parent+%d\r\n" % dice.randrange(7), b"DELETED\r\n")

    def _comings(self, client: Client, dice: random.Random, step: int) -> None:
        client.put(b"comings", b"item")
        with self._server.connect() as other:
            assert other.get(b"comings/open") is not None
            if dice.random() < 0.5:
                other.ask(b"get comings/close\r\n", b"END\r\n")
                return
        while client.get(b"comings") is None:  # it comes back when its connection has ended
            assert not self._is_over.wait(0.001)


def _sample(server: Server, folder: Path, at_s: float) -> Sample:
    sizes = []
    for path in folder.rglob("*"):
        try:
            sizes.append(path.stat().st_size)
        except FileNotFoundError:
            continue
    return Sample(at_s, server.memory_bytes(), server.open_files(), len(sizes), sum(sizes))


class Soaked(NamedTuple):
    """What came of a run."""

    samples: Sequence[Sample]
    steps: dict[str, int]
    failed: Sequence[str]


def soak(processes: Processes, *, seed: int, seconds: float, warm_up_s: float = WARM_UP_S) -> Soaked:
    """Work for so long, or until some of each kind of work has been done, and look each second."""
    server = processes.serve(CONFIG)
    folder = processes.folder
    samples: list[Sample] = []
    with Work(server, seed) as work:
        began_s = time.monotonic()
        ends_s = warm_up_s + seconds
        while not work.failed and ((at_s := time.monotonic() - began_s) < ends_s or work.lacks_some(at_s - ends_s)):
            progress("soak", int(at_s), int(warm_up_s + seconds))
            if at_s > warm_up_s:
                samples.append(_sample(server, folder, at_s - warm_up_s))
            time.sleep(min(1.0, seconds / 20))
        progress("", 1, 1)
    server.stop()
    return Soaked(samples, work.steps, work.failed)


class Growth(NamedTuple):
    """Of one kind: the means of the first and of the last part."""

    first: float
    last: float

    @property
    def share(self) -> float:
        """By which part of the first the last is above it."""
        return self.last / self.first - 1

    def is_flat(self, kind: str) -> bool:
        """Whether that is no growth."""
        return self.last - self.first <= max(MOST_GROWTH * self.first, SLACK[kind])


def growths(samples: Sequence[Sample]) -> dict[str, Growth]:
    """Of each kind."""
    ends_s = samples[-1].at_s
    first = [each for each in samples if each.at_s <= SHARE * ends_s]
    last = [each for each in samples if each.at_s >= (1 - SHARE) * ends_s]
    return {
        kind: Growth(*(statistics.fmean(getattr(each, kind) for each in part) for part in (first, last)))
        for kind in KINDS
    }


def picture(samples: Sequence[Sample], path: Path) -> None:
    """All four over the time."""
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
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="another one, another story")
    parser.add_argument("--minutes", type=float, default=40.0)
    parser.add_argument("--storage", choices=NAMES, default="journal")
    parser.add_argument("--picture", type=Path, help="draw it there, as SVG or PNG")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        processes = stack.enter_context(Processes(Path(stack.enter_context(tempfile.TemporaryDirectory()))))
        processes.arguments = ("--storage", stack.enter_context(new_storage(arguments.storage)))
        soaked = soak(processes, seed=arguments.seed, seconds=arguments.minutes * 60)
    if arguments.picture is not None and soaked.samples:
        picture(soaked.samples, arguments.picture)
    print(f"seed {arguments.seed}, {arguments.minutes:g} minutes over {arguments.storage}")
    print("; ".join(f"{count:,d} {name}" for name, count in soaked.steps.items()))
    passed = 0
    found = growths(soaked.samples) if soaked.samples else {}
    for kind, growth in found.items():
        is_flat = growth.is_flat(kind)
        passed += is_flat
        said = "ok    " if is_flat else "FAILED"
        print(f"{said}  {kind:12} {growth.first:14,.0f} {growth.last:14,.0f} {growth.share:+.1%}")
    for each in soaked.failed:
        print(f"FAILED  {each}")
    failed = len(KINDS) - passed + len(soaked.failed)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
