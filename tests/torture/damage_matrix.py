"""Damages each file of a queue folder in many ways, and starts a storage in the damaged folder.

    python -m tests.torture.damage_matrix --every-byte

A *scene* is a folder that a real storage wrote (damage_scenes.py): a journal of three files, a scroll with two readers
and several writer files, and a scroll with a hint. A damage changes one file, also in the folder `.kestrel`. It flips a
bit, zeroes a byte, cuts the file at a byte, empties it, makes it longer or removes it.

After each damage a storage starts twice. The PROMISES check what it delivers. They use only the items that were put
and confirmed, and the file with the record of each item. Without --every-byte a sample is tried.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from twisted.logger import LogLevel, capturedLogs, formatEvent
from twisted.python.failure import Failure

from kestrel.config.model import QueueSettings
from tests.journal import reference
from tests.scroll import independent
from tests.torture.check_report import CheckReport, PromiseReport
from tests.torture.damage import lay_out, quick_folder
from tests.torture.damage_scenes import MAKERS, Files, Scene, StorageRun, files_below

SAMPLE_STEP: Final = 41
"""A sample has one damage in so many. The step is coprime to the number of damages of a byte."""
NEW_ITEM: Final = b"an item that is put after the damage"
DAMAGED: Final = ".kestrel/damaged/"
NAMES: Final = ".kestrel/names/"
UNTRIED: Final = (".kestrel/lock", ".kestrel/reserve")
"""Files whose contents a start does not use."""


# Damages.


class Damage(NamedTuple):
    """A damage of one file. `contents` is None if the file is missing."""

    path: str
    what: str
    offset: int
    contents: bytes | None

    def __str__(self) -> str:
        return f"{self.path} {self.what}" + (f" at {self.offset}" if self.what not in WHOLE else "")


MISSING, EMPTIED, LONGER, CUT, ZEROED = "missing", "emptied", "a byte longer", "cut", "zeroed"
WHOLE: Final = (MISSING, EMPTIED, LONGER)


def damages(scene: Scene) -> Iterator[Damage]:
    """Return every damage of every file of a scene."""
    for path, contents in scene.files.items():
        if path in UNTRIED or not path.startswith(scene.only):
            continue
        yield Damage(path, MISSING, 0, None)
        yield Damage(path, LONGER, len(contents), contents + b"\x01")
        if contents:
            yield Damage(path, EMPTIED, 0, b"")
        for offset, byte in enumerate(contents):
            if offset:
                yield Damage(path, CUT, offset, contents[:offset])
            for bit in range(8):
                yield _with_byte(path, f"bit {bit} flipped", contents, offset, byte ^ (1 << bit))
            if byte:
                yield _with_byte(path, ZEROED, contents, offset, 0)


def _with_byte(path: str, what: str, contents: bytes, offset: int, byte: int) -> Damage:
    return Damage(path, what, offset, contents[:offset] + bytes([byte]) + contents[offset + 1 :])


def sampled(scene: Scene, step: int) -> list[Damage]:
    """Return one damage in `step`, and those of whole files."""
    every = list(damages(scene))
    return [each for number, each in enumerate(every) if each.what in WHOLE or number % step == 0]


# Starts.


class Start(NamedTuple):
    """The result of one start. `failures` has the queues that were not served."""

    items: dict[bytes, list[bytes]]
    failures: dict[bytes, str]
    files: Files
    logged: list[str]


def start(folder: Path, scene: Scene) -> Start:
    """Start a storage, read all queues, put an item to each, run the upkeep, and stop."""
    items: dict[bytes, list[bytes]] = {}
    failures: dict[bytes, str] = {}
    with capturedLogs() as events:
        try:
            run = StorageRun(folder, scene.backend, QueueSettings())
            for name, loaded in run.loaded.items():
                if isinstance(loaded, Failure):
                    failures[name] = str(loaded.value)
                    continue
                try:
                    items[name] = run.items(name)
                    run.put(NEW_ITEM, name)
                except Exception as error:
                    failures[name] = f"{type(error).__name__}: {error}"
            run.run_upkeep()
            run.close()
        except Exception as error:
            failures[b"(all)"] = f"the start failed: {type(error).__name__}: {error}"
    logged = [formatEvent(event) for event in events if event["log_level"] >= LogLevel.warn]
    return Start(items, failures, files_below(folder), logged)


class Case(NamedTuple):
    """A scene with one damage, and the results of two starts."""

    scene: Scene
    damage: Damage
    first: Start
    second: Start

    def __str__(self) -> str:
        return str(self.damage)

    @property
    def is_of_records(self) -> bool:
        """Whether a file of records was damaged, not one in the folder `.kestrel`."""
        return not self.damage.path.startswith(".kestrel/")

    @property
    def good_bytes(self) -> int:
        """End of the records of the damaged file, as found by a second reader of the format."""
        contents = self.damage.contents or b""
        if self.scene.backend == "journal":
            return reference.read(contents).end
        magic = "26 3C 26 03" if ".read." in self.damage.path else "27 64 26 03"
        if not contents.startswith(bytes.fromhex(magic)):
            return 0
        return 4 + sum(1 + len(header) + len(data) for _, _, header, data in independent.records_of(contents, magic))

    @property
    def looks_whole(self) -> bool:
        """Whether the damaged file still consists of valid records, or is missing."""
        return not self.is_of_records or self.good_bytes == len(self.damage.contents or b"")

    @property
    def expected_queues(self) -> set[bytes]:
        """The queues that must be served."""
        expected = set(self.scene.put)
        if self.damage.path.startswith(NAMES):
            expected -= {name for name in expected if name in self.scene.files[self.damage.path]}
        if self.damage.what == MISSING and self.scene.backend == "scroll" and ".read." in self.damage.path:
            # The format documents this: a reader without its file does not exist if its journal has others.
            stem, _, part = self.damage.path.partition(".read.")
            reader = {"": stem, ":own": stem}.get(part, f"{stem}+{part}").encode()
            expected.discard(reader)
        if self.damage.what == MISSING and self.scene.backend == "journal":
            queue = self.damage.path.partition(".")[0]
            if not any(path.partition(".")[0] == queue for path in self.scene.files if path != self.damage.path):
                expected.discard(queue.encode())  # the queue has no other file
        return expected

    def lost(self, found: Start) -> Iterator[tuple[bytes, bytes]]:
        """Yield the pending items of the expected queues that were not delivered."""
        for queue in sorted(self.expected_queues):
            for data in sorted(self.scene.pending[queue] - set(found.items.get(queue, ()))):
                yield queue, data

    def may_be_lost(self, data: bytes) -> bool:
        """Return whether the damage may lose that item: its record is in the damaged file, at or after the damage.

        Damaged bytes of a journal may also read as records that finish earlier items.
        """
        if not self.is_of_records or not self.scene.lies_in(data, self.damage.path):
            return False
        keeps_front = self.scene.backend == "scroll" or self.damage.what in (CUT, LONGER)
        end = self.scene.files[self.damage.path].find(data) + len(data)
        return not (keeps_front and end <= self.damage.offset)


# Promises. Each yields the faults that it finds.

Faults: TypeAlias = Iterator[str]


def no_start_fails(case: Case) -> Faults:
    """Check that both starts serve each queue, and no other."""
    for found in (case.first, case.second):
        yield from (f"{queue[:9]!r}: {failure}" for queue, failure in found.failures.items())
        missing = case.expected_queues - found.items.keys() - found.failures.keys()
        other = found.items.keys() - case.scene.put.keys()
        if missing:
            yield f"not served: {sorted(name[:9] for name in missing)}"
        if other:
            yield f"invented: {sorted(other)}"


def an_undamaged_file_loses_no_item(case: Case) -> Faults:
    """Check that each unconfirmed item is delivered if its record is in an undamaged file.

    The current file of a journal has no redundancy. Each record that the damage invents may finish one item. A queue
    whose name is damaged is not served, but its files must remain.
    """
    lost = [(queue, data) for queue, data in case.lost(case.first) if not case.may_be_lost(data)]
    if len(lost) > _invented_records(case):
        yield ", ".join(f"{queue[:9]!r} lost {data[:20]!r}" for queue, data in lost)
    unserved = case.scene.put.keys() - case.expected_queues
    for data in {data for queue in unserved for data in case.scene.pending[queue]}:
        path = next(path for path, contents in case.scene.files.items() if data in contents)
        is_kept = any(contents.startswith(case.scene.files[path]) for contents in case.second.files.values())
        if path != case.damage.path and not is_kept:
            yield f"{path} is gone or changed, and its queue was not served"


def _invented_records(case: Case) -> int:
    """Return the number of records that the damage of a journal's current file invents."""
    is_current = case.scene.backend == "journal" and "." not in case.damage.path
    if not is_current or case.damage.contents is None or case.damage.what == CUT:
        return 0
    before = set(reference.read(case.scene.files[case.damage.path]).records)
    return len(set(reference.read(case.damage.contents).records) - before)


def no_item_is_made_up(case: Case) -> Faults:
    """Check that each delivered item was put, or that the damaged file contains its bytes."""
    contents = case.damage.contents or b""
    for queue, items in case.first.items.items():
        for data in items:
            if data not in case.scene.put.get(queue, ()) and not (case.is_of_records and data in contents):
                yield f"{queue!r} delivered {data[:40]!r}"


def every_loss_is_logged(case: Case) -> Faults:
    """Check that a loss is logged, unless the damaged file consists of valid records."""
    lost = [data for _, data in case.lost(case.first)]
    if lost and not case.first.logged and not case.looks_whole:
        yield f"{len(lost)} items are lost, and nothing is logged"


def what_is_cut_off_is_set_aside(case: Case) -> Faults:
    """Check that the bytes of a damaged file are kept in the file or in a quarantined copy that is logged."""
    copies = {path: contents for path, contents in case.first.files.items() if path.startswith(DAMAGED)}
    for path in copies:
        if path not in case.scene.files and not any(path.rpartition("/")[2] in line for line in case.first.logged):
            yield f"the copy {path} is not logged"
    contents = case.damage.contents
    if not case.is_of_records or not contents or case.looks_whole:
        return
    # The records before may be gone: the upkeep erases a file that no reader needs.
    rest = contents[case.good_bytes :]
    is_kept = case.first.files.get(case.damage.path, b"").startswith(contents)
    if not is_kept and not any(rest in copy for copy in copies.values()):
        yield f"{len(rest)} of {len(contents)} bytes are gone"


def a_second_start_finds_the_same(case: Case) -> Faults:
    """Check that a second start delivers the same items, and the item that was put after the damage."""
    for queue, items in case.first.items.items():
        if Counter(case.second.items.get(queue, ())) != Counter([*items, NEW_ITEM]):
            yield f"{queue!r}: {len(items)} and a new item at first, then {len(case.second.items.get(queue, ()))}"


Promise: TypeAlias = Callable[[Case], Faults]

PROMISES: Final[tuple[Promise, ...]] = (
    no_start_fails,
    an_undamaged_file_loses_no_item,
    no_item_is_made_up,
    every_loss_is_logged,
    what_is_cut_off_is_set_aside,
    a_second_start_finds_the_same,
)


class Row:
    """Numbers of damages of one file."""

    def __init__(self) -> None:
        self.cases = 0
        self.logged = 0
        self.lossy = 0
        """Damages that lost an item of the damaged file."""
        self.faulty = 0


class Report(PromiseReport[Case]):
    """Faults by promise, and counts by file."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(PROMISES)
        self.scene = scene
        self.rows: dict[str, Row] = defaultdict(Row)

    def add(self, case: Case) -> bool:
        """Check a case against every promise. Return whether it breaks one."""
        row = self.rows[case.damage.path]
        row.cases += 1
        row.logged += bool(case.first.logged)
        row.lossy += any(True for _ in case.lost(case.first))
        is_broken = super().add(case)
        row.faulty += is_broken
        return is_broken


def check_all(name: str, step: int) -> Report:
    """Start twice after every `step`-th damage of a scene."""
    with quick_folder() as parent:
        originals, folder = parent / "originals", parent / "queues"
        scene = MAKERS[name](originals)
        report = Report(scene)
        for damage in sampled(scene, step):
            files = {path: contents for path, contents in scene.files.items() if path != damage.path}
            if damage.contents is not None:
                files[damage.path] = damage.contents
            lay_out(folder, files, originals, UNTRIED)
            first = start(folder, scene)
            report.add(Case(scene, damage, first, start(folder, scene)))
    return report


def torture(names: Sequence[str], *, step: int) -> int:
    """Damage these scenes and print the counts. Return the number of failed checks."""
    report, total = CheckReport(), 0
    for name in names:
        began = time.monotonic()
        result = check_all(name, step)
        print(f"{name}, {time.monotonic() - began:.1f} s")
        print(f"  {'file':44} {'bytes':>6} {'damages':>8} {'logged':>7} {'lossy':>6} {'faulty':>6}")
        for path, row in result.rows.items():
            total += row.cases
            size = len(result.scene.files[path])
            print(f"  {path[-44:]:44} {size:6,} {row.cases:8,} {row.logged:7,} {row.lossy:6,} {row.faulty:6,}")
        for promise in PROMISES:
            count = len(result.faults[promise])
            what = promise.__name__.replace("_", " ") + (f": {count:,} faults" if count else "")
            report.check(not count, what, result.shown(promise))
    print(f"{total:,} damaged folders")
    return report.finish()


def main() -> int:
    """Run from the command line. Return the exit status."""
    parser = argparse.ArgumentParser(description="Damage each file of queue folders, and check what storages recover.")
    parser.add_argument("--every-byte", action="store_true", help="try all damages (takes minutes)")
    parser.add_argument("--scene", action="append", choices=list(MAKERS), help="only this scene (repeatable)")
    arguments = parser.parse_args()
    return 1 if torture(arguments.scene or list(MAKERS), step=1 if arguments.every_byte else SAMPLE_STEP) else 0


if __name__ == "__main__":
    sys.exit(main())
