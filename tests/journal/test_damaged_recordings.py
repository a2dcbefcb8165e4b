"""Whichever byte of a recorded journal is damaged or missing, the server starts and loses nothing in front of it.

tests/torture/damage.py says how the journals are damaged, and has the promises that they are held against. Of large
recordings it takes a sample here; run as a program it damages each of their bytes.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Final

import pytest

from tests.journal import reference
from tests.sample import step_between
from tests.torture import damage

RECORDINGS: Final = damage.recordings()
SMALL: Final = [name for name, files in RECORDINGS.items() if not damage.is_large(files)]
LARGE: Final = [name for name, files in RECORDINGS.items() if damage.is_large(files)]


@pytest.fixture(scope="module")
def report(request: pytest.FixtureRequest) -> damage.Report:
    """What starts over one recording made of each of its damages; done once for all promises."""
    files = RECORDINGS[request.param]
    with damage.quick_folder() as folder:
        return damage.check_all(folder, files, damage.damages(files, every_byte=False))


@pytest.mark.parametrize("report", RECORDINGS, indirect=True)
@pytest.mark.parametrize("promise", damage.PROMISES, ids=lambda promise: promise.__name__)
def test_whichever_byte_is_damaged(report: damage.Report, promise: damage.Promise) -> None:
    assert report.told(promise) == []


# What is damaged.


def test_there_are_recordings_to_damage() -> None:
    assert (len(SMALL), len(LARGE)) == (15, 12)
    assert sum(len(RECORDINGS[name]) for name in RECORDINGS) == 58


@pytest.mark.parametrize("name", SMALL)
def test_each_file_of_a_small_recording_is_cut_to_each_length_and_has_each_byte_damaged(name: str) -> None:
    found = {(each.file, each.contents) for each in damage.damages(RECORDINGS[name], every_byte=False)}
    assert found == damaged_in_every_way(RECORDINGS[name])


@pytest.mark.parametrize("name", LARGE)
def test_a_large_recording_is_damaged_as_much_when_that_is_asked_for(name: str) -> None:
    found = {(each.file, each.contents) for each in damage.damages(RECORDINGS[name], every_byte=True)}
    assert found == damaged_in_every_way(RECORDINGS[name])


def damaged_in_every_way(files: damage.Files) -> set[tuple[str, bytes]]:
    """The name of each file with each of the contents it is to be tried with."""
    found = set()
    for name, contents in files.items():
        found |= {(name, contents[:size]) for size in range(len(contents) + 1)}
        for offset, byte in enumerate(contents):
            for other in (byte ^ 0xFF, 0, byte ^ 1):
                found.add((name, contents[:offset] + bytes([other]) + contents[offset + 1 :]))
    return found


@pytest.mark.parametrize("name", LARGE)
def test_a_large_recording_is_damaged_at_some_borders_of_every_two_kinds_of_records_and_between(name: str) -> None:
    files = RECORDINGS[name]
    replayed = [file for queue in damage.replayed(files).values() for file in queue]
    found = {(each.file, each.offset) for each in damage.damages(files, every_byte=False)}
    assert {file for file, _ in found} == set(files)
    for file in replayed:
        offsets = {offset for name, offset in found if name == file.name_before}
        records = reference.read(file.before).records
        borders = damage.borders(reference.read(file.before))
        damaged = {border for border in borders if {border - 1, border, border + 1} <= offsets}
        kinds = dict(zip(borders[1:-1], pairwise(each.opcode for each in records), strict=True))
        assert {kinds[border] for border in damaged & kinds.keys()} == {*kinds.values()}
        assert borders[-1] in damaged or borders[-1] in (0, len(file.before))
        gaps = [late - early for early, late in pairwise(sorted(offsets))]
        assert max(gaps, default=0) <= step_between(damage.SAMPLE_STEP)


@pytest.mark.parametrize("name", LARGE)
def test_each_field_of_a_record_of_each_kind_of_a_large_recording_is_damaged(name: str) -> None:
    files = RECORDINGS[name]
    found = {(each.file, each.offset) for each in damage.damages(files, every_byte=False)}
    whole: set[int] = set()
    kinds: set[int] = set()
    for file in (file for queue in damage.replayed(files).values() for file in queue):
        reading = reference.read(file.before)
        for record, (begin, end) in zip(reading.records, pairwise(damage.borders(reading)), strict=True):
            fields = range(begin, min(begin + damage.FIELDS_BYTES, end))
            kinds.add(record.opcode)
            if {(file.name_before, offset) for offset in fields} <= found:
                whole.add(record.opcode)
    assert whole == kinds


def test_each_damage_says_at_which_byte_it_begins() -> None:
    for files in RECORDINGS.values():
        for each in damage.damages(files, every_byte=False):
            before = files[each.file]
            assert each.contents[: each.offset] == before[: each.offset]
            assert each.contents[each.offset :][:1] != before[each.offset :][:1] or before == each.contents


# What tells whether the promises are kept.


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_second_reader_finds_the_records_of_the_recorded_files_that_kestrel_found(name: str) -> None:
    expected = json.loads((damage.GOLDEN / name / "expected.json").read_bytes())
    for queue in expected.get("queues", {}).values():
        for file, operations in queue.get("ops", {}).items():
            found = [(each["offset"], each["opcode"]) for each in operations if "error" not in each]
            reading = reference.read(RECORDINGS[name][file])
            assert [(record.offset, record.opcode) for record in reading.records] == found


class CutsTooMuch(damage.Unsynced):
    def cut(self, descriptor: int, size: int) -> None:
        super().cut(descriptor, max(0, size - 1))


class CutsNothing(damage.Unsynced):
    def cut(self, descriptor: int, size: int) -> None:
        """What was to be cut stays."""


class WritesNothing(damage.Unsynced):
    def write(self, descriptor: int, data: bytes) -> None:
        """A copy is empty."""


BROKEN: Final = {
    CutsTooMuch: set(damage.PROMISES) - {damage.every_queue_is_served},
    CutsNothing: set(damage.PROMISES)
    - {damage.every_queue_is_served, damage.the_records_in_front_of_the_damage_are_done},
    # A file behind damage is written anew without its removals: its items are missing.
    WritesNothing: {damage.nothing_is_thrown_away, damage.the_queues_are_what_the_format_makes_of_their_files},
}
"""The promises that a server breaks whose disk does not do as it is told."""


@pytest.mark.parametrize(("disk", "broken"), BROKEN.items(), ids=[disk.__name__ for disk in BROKEN])
def test_a_promise_that_is_broken_is_found_broken(disk: type[damage.Unsynced], broken: set[damage.Promise]) -> None:
    files = RECORDINGS["08n_corrupt_archive"]
    with damage.quick_folder() as folder:
        report = damage.check_all(folder, files, damage.damages(files, every_byte=False), disk())
    assert {promise for promise in damage.PROMISES if report.told(promise)} == broken


# The program.


def test_the_program_damages_every_byte_and_prints_what_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    files = RECORDINGS["05_fanout"]
    assert damage.torture(["05_fanout"], every_byte=True) == 0
    printed = capsys.readouterr().out
    assert f"{len(damaged_in_every_way(files)):,} damaged recordings" in printed
    assert f"{len(files)} passed, 0 failed" in printed
