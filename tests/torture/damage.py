"""Damages each byte of the journals recorded from Kestrel, and starts a server with each damaged journal.

    python -m tests.torture.damage --every-byte

A *recording* is a folder of journals, from tests/journal/golden. Each of its files is cut to each length. Each of its
bytes is inverted, zeroed, and changed in its lowest bit. Without --every-byte, only a *sample* of the bytes of large
recordings is damaged. A sample has the fields of one record of each kind, the bytes near some borders between records
of each pair of kinds, and some bytes between them.

One folder has many damaged recordings, so that one start loads them all. A number before their file names tells them
apart. The results of a first and a second start are checked against the PROMISES.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache
from itertools import islice, pairwise
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from twisted.python.failure import Failure

from kestrel.disk.files import Disk
from tests.journal import reference
from tests.journal.handwritten import addx
from tests.journal.restarts import NOW_MS, Journal, files_of
from tests.sample import of_each_kind, step_between
from tests.torture.check_report import CheckReport, PromiseReport

Files: TypeAlias = dict[str, bytes]
Items: TypeAlias = list[tuple[bytes, int, int]]
"""(data, add time, expiry) of each item."""

GOLDEN: Final = Path(__file__).parents[1] / "journal" / "golden"
SMALL_BYTES: Final = 150
"""Size above which a recording is large."""
SAMPLE_STEP: Final = 61
"""Distance of the sampled bytes between borders. It samples different fields of records of the same size."""
BORDER_STEP: Final = 40
"""A sample has one in so many borders between records of the same two kinds, and the first and the last."""
FIELDS_BYTES: Final = 30
"""Bytes at the beginning of a record that contain its fields and some of its data."""
RECORDINGS_PER_START: Final = 40
"""Number of damaged recordings in one folder."""

read: Final = lru_cache(maxsize=1000)(reference.read)


def recordings() -> dict[str, Files]:
    """Return the journal files of each recorded case. The output of Kestrel's packing tool is a file `work`."""
    found = {}
    for folder in sorted(GOLDEN.iterdir()):
        packed = folder / "packed"
        files = {"work": packed.read_bytes()} if packed.exists() else files_of(folder / "journal")
        found[folder.name] = dict(sorted(files.items()))
    return found


# Files that a start replays.


class File(NamedTuple):
    """A file that a start replays. `name` is its name after the start, which removes the suffix of a pack."""

    name: str
    name_before: str
    before: bytes


NAME: Final = re.compile(r"([^.~]+)(?:(~~\d+)|\.(\d+)(\.pack)?)?")
"""Queue, number of a temporary file, number of another file, suffix of a pack."""


def replayed(files: Files) -> dict[str, list[File]]:
    """Return the files of each queue that a start replays, in order."""
    names: dict[str, list[tuple[float, bool, str]]] = defaultdict(list)
    for name in files:
        match = NAME.fullmatch(name)
        assert match is not None, f"{name} is no journal"
        queue, temporary, number, suffix = match.groups()
        if not temporary:
            names[queue].append((int(number) if number else math.inf, bool(suffix), name))
    queues = {}
    for queue, numbered in names.items():
        pack = max((number for number, is_pack, _ in numbered if is_pack), default=-1)
        left = sorted(each for each in numbered if each[0] > pack or (each[0] == pack and each[1]))
        queues[queue] = [File(name.removesuffix(".pack"), name, files[name]) for _, _, name in left]
    return queues


# Damages.


class Damage(NamedTuple):
    """A damage of one file. `offset` is that of the first changed or missing byte."""

    file: str
    what: str
    offset: int
    contents: bytes


CUT: Final = "cut"


def is_large(files: Files) -> bool:
    """Return whether damaging each byte of that recording takes long."""
    return sum(map(len, files.values())) > SMALL_BYTES


def damages(files: Files, *, every_byte: bool) -> Iterator[Damage]:
    """Yield all damages of a recording, or a sample for a large one without `every_byte`."""
    is_sample = is_large(files) and not every_byte
    names_replayed = {file.name_before for queue in replayed(files).values() for file in queue}
    kinds: set[int] = set()
    for number, (name, contents) in enumerate(files.items()):
        offsets: Iterable[int] = range(len(contents) + 1)
        if is_sample:
            offsets = (0, len(contents) // 2, len(contents))
            if name in names_replayed:
                offsets = sample(contents, number, kinds)
        for offset in offsets:
            yield Damage(name, CUT, offset, contents[:offset])
            if offset < len(contents):
                yield from damages_of_a_byte(name, contents, offset)


def damages_of_a_byte(name: str, contents: bytes, offset: int) -> Iterator[Damage]:
    """Yield the byte inverted, zeroed, and changed in its lowest bit, without repetitions."""
    byte = contents[offset]
    wrong = {byte ^ 1: "changed in its lowest bit", 0: "zeroed", byte ^ 0xFF: "inverted"}
    wrong.pop(byte, None)
    for other, what in wrong.items():
        yield Damage(name, what, offset, contents[:offset] + bytes([other]) + contents[offset + 1 :])


def borders(reading: reference.Reading) -> list[int]:
    """Return the offsets where the good records of a file begin, and the end of the last one."""
    return [*(record.offset for record in reading.records), reading.end]


def sampled_borders(reading: reference.Reading) -> list[int]:
    """Return the first, the last and some other borders between each pair of kinds of records."""
    opcodes = [None, *(record.opcode for record in reading.records), None]
    places = of_each_kind(list(pairwise(opcodes)), BORDER_STEP)
    return [borders(reading)[place] for place in places]


def sampled_fields(reading: reference.Reading, kinds: set[int]) -> set[int]:
    """Return the offsets of the fields of the first record of each kind not in `kinds`, and add these kinds to it."""
    first = {record.opcode: record.offset for record in reversed(reading.records) if record.opcode not in kinds}
    kinds |= first.keys()
    ends = dict(pairwise(borders(reading)))
    return {offset for start in first.values() for offset in range(start, min(start + FIELDS_BYTES, ends[start]))}


def sample(contents: bytes, number: int, kinds: set[int]) -> list[int]:
    """Return sampled offsets: fields of new kinds of records, both sides of borders, and some offsets between.

    `number` shifts the offsets between. `kinds` has the kinds of records whose fields were sampled before.
    """
    reading = read(contents)
    edges = (*sampled_borders(reading), reading.end, len(contents))
    close = {edge + step for edge in edges for step in (-1, 0, 1)} | sampled_fields(reading, kinds)
    between = range(number, len(contents), step_between(SAMPLE_STEP))
    return sorted((close | {*between}) & {*range(len(contents) + 1)})


class Case:
    """A damaged recording, and the results of two starts."""

    first: Start
    second: Start

    def __init__(self, recorded: Files, damage: Damage) -> None:
        self.damage = damage
        self.files = {**recorded, damage.file: damage.contents}
        self.queues = replayed(self.files)

    def __str__(self) -> str:
        return f"{self.damage.file} {self.damage.what} at {self.damage.offset}"

    @cached_property
    def replayed(self) -> list[File]:
        """The replayed files of all queues."""
        return [file for files in self.queues.values() for file in files]

    @cached_property
    def damaged_file(self) -> File | None:
        """The damaged file, or None if a start does not replay it."""
        return next((file for file in self.replayed if file.name_before == self.damage.file), None)


# Starts.


class Start(NamedTuple):
    """The result of a start. A queue that was not served is in `failures`, and not in `items`."""

    files: Files
    set_aside: Files
    items: dict[str, Items]
    next_xid: dict[str, int]
    failures: dict[str, str]


class Unsynced(Disk):
    """A disk without syncs, because there are thousands of repairs."""

    def sync(self, descriptor: int) -> None:
        """Do nothing."""

    def sync_folder(self, path: bytes) -> None:
        """Do nothing."""


def start(folder: Path, disk: Disk) -> dict[int, Start]:
    """Start a server in a folder, read every queue, and stop it. Return the result for each damaged recording."""
    found: dict[int, Start] = defaultdict(lambda: Start({}, {}, {}, {}, {}))
    journal = Journal(folder, disk)
    try:
        for name, contents in files_of(folder).items():
            found[number_of(name)].files[name_of(name)] = contents
        for name, contents in files_of(folder / ".kestrel" / "damaged").items():
            found[number_of(name)].set_aside[name_of(name)] = contents
        for queue, loaded in journal.loaded.items():
            name = queue.decode("latin-1")
            here = found[number_of(name)]
            if isinstance(loaded, Failure):
                here.failures[name_of(name)] = str(loaded.value)
                continue
            try:
                here.next_xid[name_of(name)] = journal.next_xid(queue)
                here.items[name_of(name)] = journal.items(queue)
            except Exception as error:  # a failure of this recording, not of the others in the folder
                here.failures[name_of(name)] = f"{type(error).__name__}: {error}"
    finally:
        journal.close()
    return found


def number_of(name: str) -> int:
    """Return the number of the damaged recording from the name of a file or queue in the shared folder."""
    return int(name.partition("-")[0])


def name_of(name: str) -> str:
    """Return the name without the number of the recording."""
    return name.partition("-")[2]


def lay_out(folder: Path, files: Files, originals: Path | None = None, copied: Sequence[str] = ()) -> None:
    """Make a folder hold exactly these files, by their paths in it.

    With `originals`, the folder that a storage wrote, the files are links into it and so keep their inodes, except
    those in `copied`.
    """
    shutil.rmtree(folder, ignore_errors=True)
    for path, contents in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if originals is None or path in copied:
            overwrite(target, contents)
        else:
            overwrite(originals / path, contents)
            target.hardlink_to(originals / path)


def overwrite(path: Path, contents: bytes) -> None:
    """Replace the contents of a file. Do not truncate it first: some file systems would then sync it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, contents)
        os.ftruncate(descriptor, len(contents))
    finally:
        os.close(descriptor)


def kept_files(files: list[File]) -> dict[str, bytes]:
    """Return the contents that a start leaves in each file of a queue.

    Files after a damaged one keep their items, but not their removals.
    """
    kept: dict[str, bytes] = {}
    is_after = False
    for file in files:
        reading = read(file.before)
        kept[file.name] = kept_contents(file.before[: reading.end], is_after=is_after)
        is_after = is_after or bool(reading.problem)
    return kept


def kept_contents(contents: bytes, *, is_after: bool) -> bytes:
    """Return the records that a start keeps of these complete records."""
    records = read(contents).records
    if not is_after or all(record.item is not None for record in records):
        return contents
    items = (record.item for record in records if record.item is not None)
    return b"".join(addx(data, NOW_MS if add_ms is None else add_ms, expiry_ms) for data, add_ms, expiry_ms in items)


# Promises. Each yields the faults that it finds.

Faults: TypeAlias = Iterator[str]


def every_queue_is_served(case: Case) -> Faults:
    """Check that both starts serve every queue, and no other."""
    for found in (case.first, case.second):
        yield from (f"{queue}: {failure}" for queue, failure in found.failures.items())
        if found.items.keys() != case.queues.keys():
            yield f"serves {sorted(found.items)}"


def follows_damage(case: Case, file: File) -> bool:
    """Return whether the recording has a damaged file before that one."""
    files = next(files for files in case.queues.values() if file in files)
    return any(read(each.before).problem for each in files[: files.index(file)])


def no_byte_is_discarded(case: Case) -> Faults:
    """Check that the kept and the quarantined bytes of each file are the file before the start."""
    copies = dict(case.first.set_aside)
    for file in case.replayed:
        name = f"{file.name}.{NOW_MS}"
        kept, copy = case.first.files.get(file.name, b""), copies.pop(name, b"") + copies.pop(name + ".tail", b"")
        if follows_damage(case, file):
            kept = file.before[: read(file.before).end]  # the start drops its removals
        if kept + copy != file.before:
            yield f"{file.name}: {len(kept)} bytes kept and {len(copy)} quarantined of {len(file.before)}"
    if case.damaged_file is not None and case.damage.file.endswith(".pack"):
        for name in copies.keys() & case.files.keys():  # the files that a damaged pack replaces are also kept
            if copies.pop(name) != case.files[name]:
                yield f"the copy of {name} has changed"
    if copies:
        yield f"unexpected quarantined copies: {sorted(copies)}"


def other_files_are_unchanged(case: Case) -> Faults:
    """Check that other files have changed only by recorded damage, and that there are no new files."""
    kept = {name: contents for files in case.queues.values() for name, contents in kept_files(files).items()}
    for file in case.replayed:
        if file != case.damaged_file and case.first.files.get(file.name) != kept[file.name]:
            yield f"{file.name} was changed"
    others = case.first.files.keys() - {file.name for file in case.replayed} - case.queues.keys()
    if others:
        yield f"unexpected files: {sorted(others)}"


def queues_match_the_reference_reader(case: Case) -> Faults:
    """Check queues and files against a second reader, which reads damaged bytes up to the first invalid record."""
    for queue, files in case.queues.items():
        if queue not in case.first.items:
            continue
        replay = reference.Queue(NOW_MS)
        expected = {queue: b""}
        kept = kept_files(files)
        for file in files:
            reading = read(file.before)
            replay.do(read(kept[file.name]).records)
            expected[file.name] = kept[file.name]
            if reading.end == 0 and reading.problem == "damaged" and file.name != queue:
                del expected[file.name]
        yield from differences(queue, case.first, replay)
        for name, contents in expected.items():
            if case.first.files.get(name) != contents:
                yield f"{name} is not cut at {len(contents)}"
        not_moved = [file.name for file in files if file.name in case.first.files and file.name not in expected]
        if not_moved:
            yield f"{not_moved} should have been quarantined completely"


def a_second_start_finds_the_same(case: Case) -> Faults:
    """Check that a second start finds the same items, quarantines nothing, and finds only complete new records."""
    if case.second.items != case.first.items:
        yield "the second start found other items"
    if case.second.set_aside != case.first.set_aside:
        yield f"quarantined at the second start: {sorted(case.second.set_aside.keys() - case.first.set_aside.keys())}"
    if case.second.files.keys() != case.first.files.keys():
        yield f"the second start found {sorted(case.second.files)}"
        return
    for name, contents in case.first.files.items():
        later = case.second.files[name]
        is_current = name in case.queues
        if not later.startswith(contents) or (len(later) > len(contents) and not is_current):
            yield f"{name} was changed"
        elif read(later[len(contents) :]).problem:
            yield f"invalid bytes were appended to {name}"
    for queue, files in case.queues.items():
        if queue not in case.second.items:
            continue
        replay = reference.Queue(NOW_MS)
        for name in dict.fromkeys([*(file.name for file in files), queue]):
            replay.do(read(case.second.files.get(name, b"")).records)
        yield from differences(queue, case.second, replay)


def differences(queue: str, found: Start, replay: reference.Queue) -> Faults:
    """Yield the differences between a start and the reference queue."""
    if found.items[queue] != replay.after_a_restart():
        expected = replay.after_a_restart()
        yield f"{queue} has {len(found.items[queue])} items that differ from the {len(expected)} expected ones"
    elif found.next_xid[queue] != next_xid_after_a_restart(replay):
        yield f"{queue} opens the next item with the wrong xid {found.next_xid[queue]}"


def next_xid_after_a_restart(replay: reference.Queue) -> int:
    """Return the next free xid after all open reads were put back."""
    again = reference.Queue(NOW_MS)
    again.last_xid = replay.last_xid
    return again.next_xid()


Promise: TypeAlias = Callable[[Case], Faults]

PROMISES: Final[tuple[Promise, ...]] = (
    every_queue_is_served,
    no_byte_is_discarded,
    other_files_are_unchanged,
    queues_match_the_reference_reader,
    a_second_start_finds_the_same,
)


def check_all(
    folder: Path, recorded: Files, all_damages: Iterable[Damage], disk: Disk | None = None
) -> PromiseReport[Case]:
    """Start servers with each of these damages of a recording, in a folder that is reused."""
    report = PromiseReport(PROMISES)
    disk = disk or Unsynced()
    rest = iter(all_damages)
    while some := list(islice(rest, RECORDINGS_PER_START)):
        cases = [Case(recorded, damage) for damage in some]
        shared: Files = {}
        for number, case in enumerate(cases):
            shared |= {f"{number}-{name}": contents for name, contents in case.files.items()}
        lay_out(folder, shared)
        first, second = start(folder, disk), start(folder, disk)
        for number, case in enumerate(cases):
            case.first, case.second = first[number], second[number]
            report.add(case)
    return report


@contextmanager
def quick_folder() -> Iterator[Path]:
    """Create a temporary folder, in memory if possible, because the tests create tens of thousands of files."""
    memory = Path("/dev/shm")
    parent = memory if memory.is_dir() and os.access(memory, os.W_OK | os.X_OK) else None
    with tempfile.TemporaryDirectory(prefix="kestrel-", dir=parent) as folder:
        yield Path(folder)


def torture(names: Iterable[str], *, every_byte: bool) -> int:
    """Damage these recordings and print a report. Return the number of failed checks."""
    report = CheckReport()
    recorded, total = recordings(), 0
    for name in names:
        files = recorded[name]
        began = time.monotonic()
        is_sample = is_large(files) and not every_byte
        print(f"{name}: {sum(map(len, files.values())):,} bytes" + (", sampled" if is_sample else ""))
        for file in files:
            some = [damage for damage in damages(files, every_byte=every_byte) if damage.file == file]
            with quick_folder() as folder:
                result = check_all(folder, files, some)
            total += result.cases
            faults = [f"{promise.__name__}: {fault}" for promise in PROMISES for fault in result.shown(promise)]
            seconds = time.monotonic() - began
            report.check(not faults, f"{file}: {result.cases:,} damages, {seconds:.1f} s", faults)
    print(f"{total:,} damaged recordings")
    return report.finish()


def main() -> int:
    """Run from the command line. Return the exit status."""
    parser = argparse.ArgumentParser(description="Damage recorded journals, and check what servers recover.")
    parser.add_argument("--every-byte", action="store_true", help="do not sample large recordings (takes minutes)")
    parser.add_argument("--case", action="append", choices=recordings(), help="only this recording (repeatable)")
    arguments = parser.parse_args()
    failed = torture(arguments.case or recordings(), every_byte=arguments.every_byte)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
