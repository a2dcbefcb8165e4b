"""Journals recorded from Kestrel: this server recovers what Kestrel recovered, except for docs/differences.md.

golden/<case>/ holds the files of a journal. expected.json holds what Kestrel made of them, including its faults.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from kestrel.journal.fileset import group_by_queue
from tests.journal import reference
from tests.journal.handwritten import save_xid, unremove
from tests.journal.restarts import NOW_MS, Journal, files_of, restarted_errors, restarted_items, set_aside

GOLDEN: Final = Path(__file__).with_name("golden")
T: Final = 1_700_000_000_000

CASES: Final = sorted(path.parent.name for path in GOLDEN.glob("*/journal/"))
PACKED: Final = sorted(path.parent.name for path in GOLDEN.glob("*/packed"))
CUT: Final = "08_truncations"
QUEUES: Final = [case for case in CASES if case != CUT]


class Differs(NamedTuple):
    """Results of this server for the queue `work` that differ from Kestrel's; None where they are equal."""

    number: int
    """The number of the difference in docs/differences.md."""
    items: list[tuple[bytes, int, int]] | None = None
    next_xid: int | None = None
    files: dict[str, bytes] | None = None
    """Files that end up different, as this server leaves them."""


def recorded(case: str, name: str = "work") -> bytes:
    return (GOLDEN / case / "journal" / name).read_bytes()


DIFFERS: Final = {
    # The second REMOVE_TENTATIVE opens `b` with xid 2, which is returned. Kestrel gives both xid 0.
    "07b_old_transactions": Differs(
        10, next_xid=3, files={"work": recorded("07b_old_transactions") + save_xid(0) + unremove(2)}
    ),
    # Each item is opened with its own xid. Kestrel opens both with 0, and the second opening ends the first.
    "07f_add_xid": Differs(
        10,
        items=[(b"open5", T, 0), (b"open6", T, 0), (b"plain", T, 0)],
        next_xid=11,
        files={"work": recorded("07f_add_xid") + save_xid(0) + unremove(6) + save_xid(0) + unremove(5)},
    ),
    # The rotated file is cut where it is damaged. Kestrel cuts the current one there.
    "08n_corrupt_archive": Differs(
        10,
        items=[(data, T, 0) for data in (b"arch1", b"arch2", b"cur1", b"cur2", b"cur3", b"cur4")],
        files={
            "work": recorded("08n_corrupt_archive"),
            "work.1699999990000": recorded("08n_corrupt_archive", "work.1699999990000")[:52],
        },
    ),
}

SET_ASIDE: Final = {
    "08a_bad_opcode_tail": [recorded("08a_bad_opcode_tail")[49:]],
    "08e_zero_tail": [bytes(64)],
    "08n_corrupt_archive": [recorded("08n_corrupt_archive", "work.1699999990000")[52:]],
}
"""Quarantined copies of damaged files; Kestrel keeps none."""


def expected(case: str) -> dict[str, dict]:
    return json.loads((GOLDEN / case / "expected.json").read_bytes())["queues"]


def items_kestrel_finds(queue: dict) -> list[tuple[bytes, int, int]]:
    return [(base64.b64decode(item["data"]), item["add_time"], item["expiry"] or 0) for item in queue["items"]]


def items_found_here(case: str, queue: dict) -> list[tuple[bytes, int, int]]:
    """Return the items that this server finds: those of Kestrel, unless the case is listed as different."""
    return (DIFFERS[case].items if case in DIFFERS else None) or items_kestrel_finds(queue)


def files_kestrel_leaves(case: str) -> dict[str, bytes]:
    """Return the files after Kestrel's replay.

    Kestrel replayed each queue alone. The files of a queue are as its own replay left them; files of no queue are as
    any replay left them.
    """
    files: dict[str, bytes] = {}
    own: dict[str, bytes] = {}
    for name, queue in expected(case).items():
        left = {file["name"]: base64.b64decode(file["b64"]) for file in queue["files_after_replay"]}
        files |= left
        own |= {file: contents for file, contents in left.items() if file.partition(".")[0] == name}
    return files | own


def files_left_here(case: str) -> dict[str, bytes]:
    """Return the files after a start of this server: with the differences of the case, and the error counts of
    returned reads.
    """
    left = files_kestrel_leaves(case)
    if case in DIFFERS:
        return {**left, **(DIFFERS[case].files or {})}
    for name in expected(case):
        queue = group_by_queue(map(os.fsencode, left))[name.encode()]
        good = recorded(case, name) if (GOLDEN / case / "journal" / name).exists() else b""
        good = good[: reference.read(good).end]
        if left.get(name, b"").startswith(good):
            older = [left[os.fsdecode(file.file_name)] for file in queue.rotated]
            left[name] = reference.with_error_counts(good, left[name][len(good) :], *older)
    return left


@pytest.fixture(params=QUEUES)
def case(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def folder(case: str, tmp_path: Path) -> Path:
    """Return a copy of the recorded journal."""
    return Path(shutil.copytree(GOLDEN / case / "journal", tmp_path / "journal"))


def test_recorded_journals_exist() -> None:
    assert (len(QUEUES), len(PACKED), CUT in CASES) == (24, 2, True)


def test_recorded_journals_have_every_record_kind() -> None:
    opcodes = {
        record.opcode
        for case in CASES
        for path in (GOLDEN / case / "journal").iterdir()
        for record in reference.read(path.read_bytes()).records
    }
    assert opcodes == set(range(10))


@pytest.mark.parametrize("case", DIFFERS)
def test_listed_differences_are_differences(case: str) -> None:
    queue, here = expected(case)["work"], DIFFERS[case]
    assert here.number in (10, 11, 15)
    assert here.items != items_kestrel_finds(queue)
    assert here.next_xid != queue["xid_counter"] + 1
    for name, contents in (here.files or {}).items():
        assert files_kestrel_leaves(case)[name] != contents


def test_items_come_in_order_with_their_times(case: str, folder: Path) -> None:
    for name, queue in expected(case).items():
        assert restarted_items(folder, name.encode()) == items_found_here(case, queue)


def test_items_for_clients_are_those_not_expired(case: str, folder: Path) -> None:
    for name, queue in expected(case).items():
        gets = [
            data for data, _, expiry_ms in restarted_items(folder, name.encode()) if not 0 < expiry_ms < queue["now"]
        ]
        items = DIFFERS[case].items if case in DIFFERS else None
        found = [data for data, _, _ in items] if items else [base64.b64decode(data) for data in queue["gets_at_now"]]
        assert gets == found


def test_next_item_is_opened_with_the_next_xid(case: str, folder: Path) -> None:
    journal = Journal(folder)
    for name, queue in expected(case).items():
        xid = DIFFERS[case].next_xid if case in DIFFERS else None
        assert journal.next_xid(name.encode()) == (xid or queue["xid_counter"] + 1)
    journal.close()


def test_files_are_left_as_kestrel_leaves_them_except_error_counts(case: str, folder: Path) -> None:
    Journal(folder).close()
    assert files_of(folder) == files_left_here(case)


def test_second_start_finds_the_same_errors(case: str, folder: Path) -> None:
    journal = Journal(folder)
    names = [name.encode() for name in expected(case)]
    errors = {name: journal.errors(name) for name in names}
    journal.close()
    for name in names:
        files = group_by_queue(map(os.fsencode, files_of(folder)))[name].in_replay_order()
        contents = [files_of(folder)[os.fsdecode(file)] for file in files]
        assert reference.replayed(*contents, now_ms=NOW_MS).errors_after_a_restart() == errors[name]
        assert restarted_errors(folder, name) == errors[name]


def test_returned_read_in_a_recorded_journal_has_an_error(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "02b_confirm_abort_mixed" / "journal", tmp_path / "journal")
    assert restarted_errors(tmp_path / "journal") == [0, 1, 0, 0, 0, 0, 0]


def test_only_damaged_parts_are_quarantined(case: str, folder: Path) -> None:
    Journal(folder).close()
    assert set_aside(folder) == SET_ASIDE.get(case, [])


def test_second_start_finds_the_same_items(case: str, folder: Path) -> None:
    names = [name.encode() for name in expected(case)]
    Journal(folder).close()
    left = files_of(folder)
    first = {name: restarted_items(folder, name) for name in names}
    assert {name: restarted_items(folder, name) for name in names} == first
    for name, queue in expected(case).items():
        assert first[name.encode()] == items_found_here(case, queue)
    for name, contents in left.items():
        assert files_of(folder)[name].startswith(contents)


# Files written by Kestrel's packing tool.


def test_packed_journal_has_the_items_of_its_files(tmp_path: Path) -> None:
    shutil.copy(GOLDEN / "09_pack_02b_confirm_abort_mixed" / "packed", tmp_path / "work")
    assert restarted_items(tmp_path) == items_kestrel_finds(expected("02b_confirm_abort_mixed")["work"])
    assert set_aside(tmp_path) == []


def test_packed_journal_of_several_files_is_complete(tmp_path: Path) -> None:
    shutil.copy(GOLDEN / "09_pack_04b_rotate_partial_read" / "packed", tmp_path / "work")
    # 0022 was read and confirmed. 0021 and 0023 were open. The last five were put later.
    numbers = [21, *range(23, 56)]
    assert restarted_items(tmp_path) == [
        (b"%04d " % number + b"x" * 59, T + (number + (24 if number > 50 else 0)) * 1000, 0) for number in numbers
    ]
    assert set_aside(tmp_path) == []
