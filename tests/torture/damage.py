"""Damages each byte of each journal that Kestrel recorded, and starts a server over what is left of it.

    python -m tests.torture.damage --every-byte

A *recording* is a folder of journals, from tests/journal/golden. Each of its files in turn is cut to each length, and
has each of its bytes inverted, zeroed, and changed in its lowest bit. Without --every-byte only a *sample* is taken of
large recordings, as by the tests: each field of one record of each kind, what is close to some of the borders between
records of every two kinds, and a byte here and there.

Many damaged recordings lie side by side in one folder, so that one start loads them all: a number in front of their
files' names tells them apart. What a first and a second start make of them is held against the PROMISES.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property, lru_cache
from itertools import islice, pairwise
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from twisted.python.failure import Failure

from kestrel.disk.files import Disk
from tests.journal import reference
from tests.journal.handwritten import addx
from tests.journal.restarts import NOW_MS, Journal
from tests.sample import of_each_kind, step_between
from tests.torture.kill_restart import Ledger

Files: TypeAlias = dict[str, bytes]
Items: TypeAlias = list[tuple[bytes, int, int]]
"""(data, add time, expiry) of each."""

GOLDEN: Final = Path(__file__).parents[1] / "journal" / "golden"
SMALL_BYTES: Final = 150
"""A recording of more than that is large."""
SAMPLE_STEP: Final = 61
"""So far apart are the bytes of a sample, borders aside: in records of one size it is another field each time."""
BORDER_STEP: Final = 40
"""Of so many borders between records of the same two kinds one is in a sample, and the first and the last."""
FIELDS_BYTES: Final = 30
"""The fields of a record are in that many bytes from its beginning, with some of its data."""
AT_ONCE: Final = 40
"""How many damaged recordings share a folder."""
SHOWN: Final = 10
"""How many faults of a kind are told; the others are counted."""

read: Final = lru_cache(maxsize=1000)(reference.read)


def recordings() -> dict[str, Files]:
    """The journal files of each recorded case, by its name; what Kestrel's packing tool wrote is one file `work`."""
    found = {}
    for folder in sorted(GOLDEN.iterdir()):
        packed = folder / "packed"
        found[folder.name] = {"work": packed.read_bytes()} if packed.exists() else files_in(folder / "journal")
    return found


def files_in(folder: Path) -> Files:
    """The plain files of a folder with their contents; no folder, no files."""
    if not folder.exists():
        return {}
    files = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_file():
                with open(entry, "rb", buffering=0) as file:
                    files[entry.name] = file.read()
    return dict(sorted(files.items()))


# What a start replays.


class File(NamedTuple):
    """A file that a start replays. `name` is what it is called then: a pack has lost its suffix."""

    name: str
    name_before: str
    before: bytes


NAME: Final = re.compile(r"([^.~]+)(?:(~~\d+)|\.(\d+)(\.pack)?)?")
"""Queue, number of a temporary file, number of any other, suffix of a pack."""


def replayed(files: Files) -> dict[str, list[File]]:
    """The files of each queue that a start replays, in their order."""
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


# What is damaged, and how.


class Damage(NamedTuple):
    """What was done to one file. `offset` is that of the first byte that is not as it was, or not there."""

    file: str
    what: str
    offset: int
    contents: bytes


CUT: Final = "cut"


def is_large(files: Files) -> bool:
    """Whether that recording takes long when each byte is damaged."""
    return sum(map(len, files.values())) > SMALL_BYTES


def damages(files: Files, *, every_byte: bool) -> Iterator[Damage]:
    """All damages of a recording; of a large one a sample, unless `every_byte`."""
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
    """Inverted, zeroed, and changed in its lowest bit; of two that are the same only one."""
    byte = contents[offset]
    wrong = {byte ^ 1: "changed in its lowest bit", 0: "zeroed", byte ^ 0xFF: "inverted"}
    wrong.pop(byte, None)
    for other, what in wrong.items():
        yield Damage(name, what, offset, contents[:offset] + bytes([other]) + contents[offset + 1 :])


def borders(reading: reference.Reading) -> list[int]:
    """Where the good records of a file begin, and the last one ends."""
    return [*(record.offset for record in reading.records), reading.end]


def sampled_borders(reading: reference.Reading) -> list[int]:
    """Of the borders between a record of one kind and one of another the first, the last, and some between."""
    opcodes = [None, *(record.opcode for record in reading.records), None]
    places = of_each_kind(list(pairwise(opcodes)), BORDER_STEP)
    return [borders(reading)[place] for place in places]


def sampled_fields(reading: reference.Reading, kinds: set[int]) -> set[int]:
    """All bytes of the fields of the first record of each kind that is not among these, which it is from now on."""
    first = {record.opcode: record.offset for record in reversed(reading.records) if record.opcode not in kinds}
    kinds |= first.keys()
    ends = dict(pairwise(borders(reading)))
    return {offset for start in first.values() for offset in range(start, min(start + FIELDS_BYTES, ends[start]))}


def sample(contents: bytes, number: int, kinds: set[int]) -> list[int]:
    """Offsets of fields, on both sides of the records' borders, and some between; others for files of another number.

    The fields are those of kinds of records of which no file before has one.
    """
    reading = read(contents)
    edges = (*sampled_borders(reading), reading.end, len(contents))
    close = {edge + step for edge in edges for step in (-1, 0, 1)} | sampled_fields(reading, kinds)
    between = range(number, len(contents), step_between(SAMPLE_STEP))
    return sorted((close | {*between}) & {*range(len(contents) + 1)})


class Case:
    """A damaged recording: what is known of it before any start."""

    def __init__(self, recorded: Files, damage: Damage) -> None:
        self.damage = damage
        self.files = {**recorded, damage.file: damage.contents}
        self.queues = replayed(self.files)
        self._recorded = read(recorded[damage.file])
        """The damaged file before it was damaged."""

    def __str__(self) -> str:
        return f"{self.damage.file} {self.damage.what} at {self.damage.offset}"

    @cached_property
    def replayed(self) -> list[File]:
        """The files of all queues."""
        return [file for files in self.queues.values() for file in files]

    @cached_property
    def damaged_file(self) -> File | None:
        """The one that was damaged, if a start replays it."""
        return next((file for file in self.replayed if file.name_before == self.damage.file), None)

    # What was damaged, as the recording tells it.

    @cached_property
    def front_bytes(self) -> int:
        """Where the last good record ends that is wholly in front of the damage."""
        return max(end for end in borders(self._recorded) if end <= self.damage.offset)

    @property
    def good_bytes(self) -> int:
        """Where the last good record of the file ended before it was damaged."""
        return self._recorded.end

    @cached_property
    def front(self) -> list[reference.Record]:
        """The records in front of the damage."""
        return [record for record in self._recorded.records if record.offset < self.front_bytes]

    @cached_property
    def changed(self) -> list[reference.Record] | None:
        """The damaged record and those behind it, if it is as long as before and of the same kind; else None."""
        behind = self._recorded.records[len(self.front) :]
        if not behind or self.damage.what == CUT:
            return None
        record = with_changed_field(behind[0], self.damage)
        return None if record is None else [record, *behind[1:]]


def with_changed_field(record: reference.Record, damage: Damage) -> reference.Record | None:
    """The record when the damaged byte is one of its xid, times or data, which stand where they stood; else None."""
    place = damage.offset - record.offset
    contents = damage.contents[record.offset :]
    has_xid = record.opcode not in (reference.ADD, reference.ADDX)
    if has_xid and 1 <= place < 5:
        return record._replace(xid=reference.number(contents[1:5]))
    times = 9 if has_xid else 5
    if record.item is None or place < times:
        return None
    data = len(record.item[0])
    if record.opcode == reference.ADD:
        return record._replace(item=(contents[9 : 9 + data], None, reference.number(contents[5:9]) * 1000))
    if record.opcode == reference.EIGHT and place < times + 8:
        return None  # the add time says whether it is a record at all
    add_ms, expiry_ms = (reference.number(contents[start : start + 8]) for start in (times, times + 8))
    return record._replace(item=(contents[times + 16 : times + 16 + data], add_ms, expiry_ms))


# What a start makes of it.


class Start(NamedTuple):
    """What a start found. A queue that it did not serve is in `failures`, and not in `items`."""

    files: Files
    set_aside: Files
    items: dict[str, Items]
    next_xid: dict[str, int]
    failures: dict[str, str]


class Unsynced(Disk):
    """A disk that is quick: there are thousands of repairs."""

    def sync(self, descriptor: int) -> None:
        """Nothing fails here."""

    def sync_folder(self, path: bytes) -> None:
        """Nothing fails here."""


def start(folder: Path, disk: Disk) -> dict[int, Start]:
    """Start a server in a folder, look at every queue, and stop it. What was found, by the numbers in front."""
    found: dict[int, Start] = defaultdict(lambda: Start({}, {}, {}, {}, {}))
    journal = Journal(folder, disk)
    try:
        for name, contents in files_in(folder).items():
            found[number_of(name)].files[name_of(name)] = contents
        for name, contents in files_in(folder / ".kestrel" / "damaged").items():
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
            except Exception as error:  # to be told of this recording, not of all that share the folder
                here.failures[name_of(name)] = f"{type(error).__name__}: {error}"
    finally:
        journal.close()
    return found


def number_of(name: str) -> int:
    """Of the damaged recording, from the name of a file or queue in the folder that they share."""
    return int(name.partition("-")[0])


def name_of(name: str) -> str:
    """The name in the recording."""
    return name.partition("-")[2]


def lay_out(folder: Path, files: Files) -> None:
    """Let a folder hold these files alone, without segment logs, and nothing that was set aside."""
    there = files_in(folder)
    for name in there.keys() - files.keys():
        (folder / name).unlink()
    for name, contents in files.items():
        if there.get(name) != contents:
            overwrite(folder / name, contents)
    for private in (folder / ".kestrel" / "damaged", folder / ".kestrel" / "segments"):
        for name in files_in(private):
            (private / name).unlink()


def overwrite(path: Path, contents: bytes) -> None:
    """Let a file hold that. It is not cut to nothing first: some file systems write it to the medium then."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, contents)
        os.ftruncate(descriptor, len(contents))
    finally:
        os.close(descriptor)


def kept_files(files: list[File]) -> dict[str, bytes]:
    """Return what a start leaves of a queue's files, by name, if nothing is known of the damaged one.

    The files behind a damaged one keep their items alone.
    """
    kept: dict[str, bytes] = {}
    is_behind = False
    for file in files:
        reading = read(file.before)
        kept[file.name] = kept_contents(file.before[: reading.end], is_behind=is_behind)
        is_behind = is_behind or bool(reading.problem)
    return kept


def kept_contents(contents: bytes, *, is_behind: bool) -> bytes:
    """Return what a start leaves of these whole records."""
    records = read(contents).records
    if not is_behind or all(record.item is not None for record in records):
        return contents
    items = (record.item for record in records if record.item is not None)
    return b"".join(addx(data, NOW_MS if add_ms is None else add_ms, expiry_ms) for data, add_ms, expiry_ms in items)


# What must hold. Each yields what does not.

Faults: TypeAlias = Iterator[str]


def every_queue_is_served(case: Case, first: Start, second: Start) -> Faults:
    """The damaged one and all others, at the first start and the second; and there are no others."""
    for found in (first, second):
        yield from (f"{queue}: {failure}" for queue, failure in found.failures.items())
        if found.items.keys() != case.queues.keys():
            yield f"served are {sorted(found.items)}"


def the_records_in_front_of_the_damage_stay_in_the_file(case: Case, first: Start, second: Start) -> Faults:
    """Whatever the damaged bytes read as. If the file was cut, or has its records' borders still, so do no others."""
    file = case.damaged_file
    if file is None or is_behind_damage(case, file):
        return
    kept = first.files.get(file.name, b"")
    if not file.before.startswith(kept):
        yield f"{len(kept)} bytes are kept that were not there"
    if len(kept) < case.front_bytes:
        yield f"{len(kept)} bytes are kept of at least {case.front_bytes}"
    if case.damage.what == CUT and len(kept) != case.front_bytes:
        yield f"{len(kept)} bytes are kept of {case.front_bytes}"
    if case.changed is not None and len(kept) != case.good_bytes:
        yield f"{len(kept)} bytes are kept of {case.good_bytes}"


def is_behind_damage(case: Case, file: File) -> bool:
    """Whether the recording itself has a damaged file in front of that one."""
    files = next(files for files in case.queues.values() if file in files)
    return any(read(each.before).problem for each in files[: files.index(file)])


def the_records_in_front_of_the_damage_are_done(case: Case, first: Start, second: Start) -> Faults:
    """What the queue holds, told from the recorded records alone, without reading damaged bytes.

    Where they read as other records nobody can say what these do, but that each takes one item at the most, and one
    byte at the least.
    """
    for queue, files in case.queues.items():
        if queue not in first.items:
            continue
        index = files.index(case.damaged_file) if case.damaged_file in files else len(files)
        if index < len(files) and is_behind_damage(case, files[index]):
            continue  # `the_queues_are_what_the_format_makes_of_their_files` covers it
        kept_of = kept_files(files)
        later = [record for file in files[index + 1 :] for record in read(kept_of[file.name]).records]
        replay = reference.Queue(NOW_MS)
        for file in files[:index]:
            replay.do(read(kept_of[file.name]).records)
        read_as_others = 0
        if index < len(files):
            replay.do(case.front)
            if case.changed is None:
                read_as_others = max(0, len(first.files.get(files[index].name, b"")) - case.front_bytes)
            else:
                replay.do(case.changed)
        if read_as_others:
            lost = Counter(replay.after_a_restart()) - Counter(first.items[queue])
            if lost.total() > read_as_others + len(later):
                yield f"{queue}: {lost.total()} items are lost"
            continue
        replay.do(later)
        yield from told_apart(queue, first, replay)


def nothing_is_thrown_away(case: Case, first: Start, second: Start) -> Faults:
    """What is kept of each file and what is set aside of it are the file as it was."""
    copies = dict(first.set_aside)
    for file in case.replayed:
        name = f"{file.name}.{NOW_MS}"
        kept, copy = first.files.get(file.name, b""), copies.pop(name, b"") + copies.pop(name + ".tail", b"")
        if is_behind_damage(case, file):
            kept = file.before[: read(file.before).end]  # its removals are dropped
        if kept + copy != file.before:
            yield f"{file.name}: {len(kept)} bytes kept and {len(copy)} set aside of {len(file.before)}"
    if case.damaged_file is not None and case.damage.file.endswith(".pack"):
        for name in copies.keys() & case.files.keys():  # what a damaged pack replaces is kept as well
            if copies.pop(name) != case.files[name]:
                yield f"{name} is not kept as it was"
    if copies:
        yield f"set aside as well: {sorted(copies)}"


def the_other_files_are_as_they_were(case: Case, first: Start, second: Start) -> Faults:
    """But for damage that they were recorded with; and there are no files but those that were replayed."""
    kept = {name: contents for files in case.queues.values() for name, contents in kept_files(files).items()}
    for file in case.replayed:
        if file != case.damaged_file and first.files.get(file.name) != kept[file.name]:
            yield f"{file.name} was changed"
    others = first.files.keys() - {file.name for file in case.replayed} - case.queues.keys()
    if others:
        yield f"there are also {sorted(others)}"


def the_queues_are_what_the_format_makes_of_their_files(case: Case, first: Start, second: Start) -> Faults:
    """As a second reader reads them, damaged bytes included, up to the first that are no record."""
    for queue, files in case.queues.items():
        if queue not in first.items:
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
        yield from told_apart(queue, first, replay)
        for name, contents in expected.items():
            if first.files.get(name) != contents:
                yield f"{name} is not cut at {len(contents)}"
        not_moved = [file.name for file in files if file.name in first.files and file.name not in expected]
        if not_moved:
            yield f"{not_moved} should have been moved whole"


def a_second_start_finds_the_same(case: Case, first: Start, second: Start) -> Faults:
    """And sets nothing more aside; the first start did nothing to the files but append whole records."""
    if second.items != first.items:
        yield "the second start found other items"
    if second.set_aside != first.set_aside:
        yield f"set aside at the second start: {sorted(second.set_aside.keys() - first.set_aside.keys())}"
    if second.files.keys() != first.files.keys():
        yield f"the second start found {sorted(second.files)}"
        return
    for name, contents in first.files.items():
        later = second.files[name]
        is_current = name in case.queues
        if not later.startswith(contents) or (len(later) > len(contents) and not is_current):
            yield f"{name} was changed"
        elif read(later[len(contents) :]).problem:
            yield f"something was appended to {name} that is no record"
    for queue, files in case.queues.items():
        if queue not in second.items:
            continue
        replay = reference.Queue(NOW_MS)
        for name in dict.fromkeys([*(file.name for file in files), queue]):
            replay.do(read(second.files.get(name, b"")).records)
        yield from told_apart(queue, second, replay)


def told_apart(queue: str, found: Start, replay: reference.Queue) -> Faults:
    """How what a start found differs from that."""
    if found.items[queue] != replay.after_a_restart():
        yield f"{queue} holds {len(found.items[queue])} items, other than the {len(replay.after_a_restart())} it should"
    elif found.next_xid[queue] != next_xid_after_a_restart(replay):
        yield f"{queue} opens the next item under xid {found.next_xid[queue]}"


def next_xid_after_a_restart(replay: reference.Queue) -> int:
    """The next xid that is free when no item is open any more."""
    again = reference.Queue(NOW_MS)
    again.last_xid = replay.last_xid
    return again.next_xid()


Promise: TypeAlias = Callable[[Case, Start, Start], Faults]

PROMISES: Final[tuple[Promise, ...]] = (
    every_queue_is_served,
    the_records_in_front_of_the_damage_stay_in_the_file,
    the_records_in_front_of_the_damage_are_done,
    nothing_is_thrown_away,
    the_other_files_are_as_they_were,
    the_queues_are_what_the_format_makes_of_their_files,
    a_second_start_finds_the_same,
)


class Report:
    """How many damaged recordings were started over, and what was found wrong, by the promise that it breaks."""

    def __init__(self) -> None:
        self.cases = 0
        self.faults: Counter[str] = Counter()
        self._told: dict[str, list[str]] = defaultdict(list)

    def check(self, case: Case, first: Start, second: Start) -> None:
        """Hold what was found against every promise."""
        self.cases += 1
        for promise in PROMISES:
            name = promise.__name__
            for fault in promise(case, first, second):
                self.faults[name] += 1
                if len(self._told[name]) < SHOWN:
                    self._told[name].append(f"{case}: {fault}")

    def told(self, promise: Promise) -> list[str]:
        """The faults against a promise, the first few of them as they are."""
        told = self._told[promise.__name__]
        more = self.faults[promise.__name__] - len(told)
        return [*told, f"and {more:,} more"] if more else list(told)


def check_all(folder: Path, recorded: Files, all_damages: Iterable[Damage], disk: Disk | None = None) -> Report:
    """Start servers over a recording with each of these damages, in a folder that is used again and again."""
    report = Report()
    disk = disk or Unsynced()
    rest = iter(all_damages)
    while some := list(islice(rest, AT_ONCE)):
        cases = [Case(recorded, damage) for damage in some]
        shared: Files = {}
        for number, case in enumerate(cases):
            shared |= {f"{number}-{name}": contents for name, contents in case.files.items()}
        lay_out(folder, shared)
        first, second = start(folder, disk), start(folder, disk)
        for number, case in enumerate(cases):
            report.check(case, first[number], second[number])
    return report


@contextmanager
def quick_folder() -> Iterator[Path]:
    """A folder for a while, in memory where the system has a place for that: tens of thousands of files are made."""
    memory = Path("/dev/shm")
    parent = memory if memory.is_dir() and os.access(memory, os.W_OK | os.X_OK) else None
    with tempfile.TemporaryDirectory(prefix="kestrel-", dir=parent) as folder:
        yield Path(folder)


def torture(names: Iterable[str], *, every_byte: bool) -> int:
    """Damage these recordings and print the ledger. Returns how many checks failed."""
    ledger = Ledger()
    recorded, total = recordings(), 0
    for name in names:
        files = recorded[name]
        began = time.monotonic()
        is_sample = is_large(files) and not every_byte
        print(f"{name}: {sum(map(len, files.values())):,} bytes" + (", of which a sample" if is_sample else ""))
        for file in files:
            some = [damage for damage in damages(files, every_byte=every_byte) if damage.file == file]
            with quick_folder() as folder:
                report = check_all(folder, files, some)
            total += report.cases
            for promise in PROMISES:
                for fault in report.told(promise):
                    print(f"          {promise.__name__}: {fault}")
            seconds = time.monotonic() - began
            ledger.check(not report.faults.total(), f"{file} was damaged {report.cases:,} times; {seconds:.1f} s")
    print(f"{total:,} damaged recordings")
    ledger.close()
    return ledger.failed


def main() -> int:
    """Run from the command line. The exit status says whether every check passed."""
    parser = argparse.ArgumentParser(description="Damage recorded journals; nothing else may be lost.")
    parser.add_argument("--every-byte", action="store_true", help="of large recordings too; takes minutes")
    parser.add_argument("--case", action="append", choices=recordings(), help="only that one; may be repeated")
    arguments = parser.parse_args()
    failed = torture(arguments.case or recordings(), every_byte=arguments.every_byte)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
