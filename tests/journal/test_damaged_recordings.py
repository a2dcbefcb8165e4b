"""Recorded journals with each byte damaged or missing: the server starts and loses nothing before the damage.

tests/torture/damage.py damages the journals and checks the promises. It takes a sample of large recordings here. Run
as a program, it damages each of their bytes.
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


@pytest.mark.parametrize("name", RECORDINGS)
def test_promises_hold_whichever_byte_is_damaged(name: str) -> None:
    files = RECORDINGS[name]
    with damage.quick_folder() as folder:
        report = damage.check_all(folder, files, damage.damages(files, every_byte=False))
    assert [shown for promise in damage.PROMISES for shown in report.shown(promise)] == []


# Which bytes are damaged.


def test_recordings_to_damage_exist() -> None:
    assert (len(SMALL), len(LARGE)) == (15, 12)
    assert sum(len(RECORDINGS[name]) for name in RECORDINGS) == 58


@pytest.mark.parametrize("name", SMALL)
def test_small_recording_is_cut_and_damaged_at_each_byte(name: str) -> None:
    found = {(each.file, each.contents) for each in damage.damages(RECORDINGS[name], every_byte=False)}
    assert found == damaged_in_every_way(RECORDINGS[name])


@pytest.mark.parametrize("name", LARGE)
def test_large_recording_is_damaged_at_each_byte_on_request(name: str) -> None:
    found = {(each.file, each.contents) for each in damage.damages(RECORDINGS[name], every_byte=True)}
    assert found == damaged_in_every_way(RECORDINGS[name])


def damaged_in_every_way(files: damage.Files) -> set[tuple[str, bytes]]:
    """Return the name of each file with each of the contents to try."""
    found = set()
    for name, contents in files.items():
        found |= {(name, contents[:size]) for size in range(len(contents) + 1)}
        for offset, byte in enumerate(contents):
            for other in (byte ^ 0xFF, 0, byte ^ 1):
                found.add((name, contents[:offset] + bytes([other]) + contents[offset + 1 :]))
    return found


@pytest.mark.parametrize("name", LARGE)
def test_sample_of_large_recording_covers_borders_of_all_record_kinds(name: str) -> None:
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
def test_sample_of_large_recording_covers_fields_of_all_record_kinds(name: str) -> None:
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


def test_damage_reports_the_byte_where_it_begins() -> None:
    for files in RECORDINGS.values():
        for each in damage.damages(files, every_byte=False):
            before = files[each.file]
            assert each.contents[: each.offset] == before[: each.offset]
            assert each.contents[each.offset :][:1] != before[each.offset :][:1] or before == each.contents


# The checks of the promises.


@pytest.mark.parametrize("name", RECORDINGS)
def test_reference_reader_finds_the_records_that_kestrel_found(name: str) -> None:
    expected = json.loads((damage.GOLDEN / name / "expected.json").read_bytes())
    for queue in expected.get("queues", {}).values():
        for file, operations in queue.get("ops", {}).items():
            found = [(each["offset"], each["opcode"]) for each in operations if "error" not in each]
            reading = reference.read(RECORDINGS[name][file])
            assert [(record.offset, record.opcode) for record in reading.records] == found


@pytest.mark.parametrize("name", RECORDINGS)
def test_reference_reader_finds_the_records_before_damage(name: str) -> None:
    for each in damage.damages(RECORDINGS[name], every_byte=False):
        recorded, damaged = reference.read(RECORDINGS[name][each.file]), reference.read(each.contents)
        borders = damage.borders(recorded)
        before = [record for record, end in zip(recorded.records, borders[1:], strict=True) if end <= each.offset]
        assert damaged.records[: len(before)] == before
        if each.what == damage.CUT:
            assert damaged.records == before
            continue
        for record, end in zip(recorded.records[len(before) :], borders[len(before) + 1 :], strict=True):
            if record.item is not None and end - len(record.item[0]) <= each.offset < end:  # only data has changed
                assert damage.borders(damaged) == borders
                assert damaged.records[len(before) + 1 :] == recorded.records[len(before) + 1 :]


class CutsTooMuch(damage.Unsynced):
    def cut(self, descriptor: int, size: int) -> None:
        super().cut(descriptor, max(0, size - 1))


class CutsNothing(damage.Unsynced):
    def cut(self, descriptor: int, size: int) -> None:
        """Leave the file as it is."""


class WritesNothing(damage.Unsynced):
    def write(self, descriptor: int, data: bytes) -> None:
        """Write nothing, so that a copy is empty."""


BROKEN: Final = {
    CutsTooMuch: set(damage.PROMISES) - {damage.every_queue_is_served},
    CutsNothing: set(damage.PROMISES) - {damage.every_queue_is_served},
    # A file with damage is rewritten without its removals: items are missing.
    WritesNothing: {damage.no_byte_is_discarded, damage.queues_match_the_reference_reader},
}
"""The promises that a server breaks on each of these faulty disks."""


@pytest.mark.parametrize(("disk", "broken"), BROKEN.items(), ids=[disk.__name__ for disk in BROKEN])
def test_broken_promise_is_detected(disk: type[damage.Unsynced], broken: set[damage.Promise]) -> None:
    files = RECORDINGS["08n_corrupt_archive"]
    with damage.quick_folder() as folder:
        report = damage.check_all(folder, files, damage.damages(files, every_byte=False), disk())
    assert {promise for promise in damage.PROMISES if report.shown(promise)} == broken


# The program.


def test_program_damages_every_byte_and_prints_results(capsys: pytest.CaptureFixture[str]) -> None:
    files = RECORDINGS["05_fanout"]
    assert damage.torture(["05_fanout"], every_byte=True) == 0
    printed = capsys.readouterr().out
    assert f"{len(damaged_in_every_way(files)):,} damaged recordings" in printed
    assert f"{len(files)} passed, 0 failed" in printed
