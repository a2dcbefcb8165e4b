"""Recorded files of libkestrel are served and written as by libkestrel, and random histories are read independently."""

from __future__ import annotations

import base64
import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import rule, run_state_machine_as_test

from kestrel.config.model import QueueSettings
from kestrel.scroll import writer_file, writer_index
from kestrel.storage.scroll import maintenance
from kestrel.storage.scroll.queue import ScrollQueue
from kestrel.testing.contract.history import HistoryMachine
from tests.sample import examples
from tests.scroll.handwritten import T, read_done, read_head, reader_file, sealed, unsealed
from tests.scroll.independent import puts_in, queues_in
from tests.scroll.storages import Opener, Scrolls, files_in
from tests.storage.scroll import test_contract

GOLDEN: Final = Path(__file__).parents[2] / "scroll" / "golden"


class Recorded(NamedTuple):
    """A recorded folder of files, and the results of libkestrel."""

    case: str
    folder: str
    expected: dict[str, Any]

    @property
    def path(self) -> Path:
        return GOLDEN / self.case / self.folder

    @property
    def files(self) -> dict[str, bytes]:
        return files_in(self.path)


def recorded() -> list[Recorded]:
    found = []
    for path in sorted(GOLDEN.glob("*/expected.json")):
        for folder, expected in json.loads(path.read_text()).items():
            if folder.startswith("journal"):
                found.append(Recorded(path.parent.name, folder, expected))
    return found


RECORDED: Final = recorded()
EACH: Final = pytest.mark.parametrize("case", RECORDED, ids=lambda case: f"{case.case}/{case.folder}")


# Reading.

HONOURED: Final = "items done beyond the head stay done after a restart"
EARLIEST: Final = "a reader without a file begins at the earliest item"
NEVER_TWICE: Final = "ids in a reader file are never assigned again"
NO_QUEUE: Final = "there is no queue without an item and a reader"

MOST_DONE: Final = 1000
"""The number of ids compared in a range: a damaged reader file makes a gap of 2 ** 32 done ids."""

NOT_TRUSTED: Final = "a head beyond the last item, in a file without checksums, is damage"

DIFFERENCES: Final = {
    ("L02_out_of_order", "journal_a"): {"items of ": HONOURED},
    ("L02_out_of_order", "journal_b"): {"items of ": HONOURED},
    ("L02_out_of_order", "journal"): {"items of ": HONOURED},
    ("L03_readers", "journal_crash"): {"items of b": HONOURED},
    ("L03_readers", "journal"): {"items of b": HONOURED},
    ("L04_rotation", "journal_checkpoint"): {"items of b": HONOURED},
    ("L20_no_bookmark", "journal"): {"items of ": EARLIEST, "done by ": EARLIEST, "work.read.": EARLIEST},
    ("L22_head_beyond_tail", "journal"): {
        "items of ": NOT_TRUSTED,
        "done by ": NOT_TRUSTED,
        "work.read.": NOT_TRUSTED,
        "the next id": NEVER_TWICE,
    },
    ("L28_header_only", "journal"): {"work.1700003600000": NO_QUEUE, "work.read.": NO_QUEUE, "readers": NO_QUEUE},
}
"""By folder: the results that differ from those of libkestrel, and why."""


def items_of(queue: dict[str, Any]) -> list[tuple[object, ...]]:
    """Return the items that libkestrel delivered."""
    keys = ("id", "data", "add_time", "expiry", "errors")
    return [tuple(item[key] for key in keys) for item in queue["gets_at_now"]]


def expected_of(case: Recorded) -> dict[str, object]:
    expected: dict[str, object] = {"readers": sorted(case.expected["readers"])}
    for reader, queue in case.expected["readers"].items():
        expected[f"items of {reader}"] = items_of(queue)
        expected[f"done by {reader}"] = queue["head"], queue["done"]
    tails = {queue["tail"] for queue in case.expected["readers"].values()}
    expected["the next id"] = max(tails) + 1
    for file in case.expected["files_after_open"]:
        expected[file["name"]] = base64.b64decode(file["b64"]).rstrip(b"\0" if ".read." not in file["name"] else b"")
    return expected


def found_in(start: Opener, case: Recorded, folder: Path) -> dict[str, object]:
    shutil.copytree(case.path, folder)
    scrolls = start(folder, now_ms=case.expected["now"])
    found: dict[str, object] = {"readers": sorted(reader_of(name) for name in scrolls.loaded)}
    for name, contents in scrolls.files().items():
        found[name] = contents.rstrip(b"\0" if ".read." not in name else b"")
    for name, queue in scrolls.loaded.items():
        found[f"items of {reader_of(name)}"] = [
            (item.id, base64.b64encode(item.data).decode(), item.add_ms, item.expiry_ms or None, item.errors)
            for item in scrolls.look_through(queue)
            if not 0 < item.expiry_ms <= case.expected["now"]
        ]
        ranges = queue.done.ranges()
        found[f"done by {reader_of(name)}"] = (
            queue.done.head,
            [each for first, last in ranges for each in range(first, last + 1)[:MOST_DONE]],
        )
    family = list(scrolls.loaded.values()) or [scrolls.queue()]
    scrolls.put_and_commit(family, b"the next one")
    found["the next id"] = puts_in(scrolls.folder / scrolls.writers()[-1])[-1].item.id
    return found


def reader_of(name: bytes) -> str:
    assert name.startswith(b"work")
    return name[5:].decode()


@EACH
def test_recorded_folder_is_read_as_by_libkestrel_except_listed_differences(
    start: Opener, tmp_path: Path, case: Recorded
) -> None:
    expected, found = expected_of(case), found_in(start, case, tmp_path / "queues")
    differing = {what for what in expected.keys() | found.keys() if expected.get(what) != found.get(what)}
    if found["readers"] == []:
        differing -= {"items of ", "done by "}
    assert differing == DIFFERENCES.get((case.case, case.folder), {}).keys()


def test_listed_differences_are_recorded() -> None:
    assert DIFFERENCES.keys() <= {(case.case, case.folder) for case in RECORDED}


@pytest.mark.parametrize(
    ("case", "folder", "reader", "ids"),
    [
        ("L02_out_of_order", "journal_a", b"work", [1, 3, 6, 8, 9, 10]),
        ("L02_out_of_order", "journal_b", b"work", [3, 6, 8, 9, 10]),
        ("L02_out_of_order", "journal", b"work", [3, 6, 8, 9, 10]),
        ("L03_readers", "journal_crash", b"work+b", [5, 7, 8]),
        ("L03_readers", "journal", b"work+b", [5, 7, 8]),
        ("L04_rotation", "journal_checkpoint", b"work+b", [6, *range(8, 31)]),
        ("L20_no_bookmark", "journal", b"work", [1, 2, 3]),
        ("L22_head_beyond_tail", "journal", b"work", [1, 2, 3]),
    ],
)
def test_differing_readers_have_these_items(
    start: Opener, tmp_path: Path, case: str, folder: str, reader: bytes, ids: list[int]
) -> None:
    shutil.copytree(GOLDEN / case / folder, tmp_path / "queues")
    scrolls = start(tmp_path / "queues")
    assert [item.id for item in scrolls.take_all(reader)] == ids


def test_ids_continue_behind_a_head_beyond_the_last_item(start: Opener) -> None:
    files = files_in(GOLDEN / "L22_head_beyond_tail" / "journal")
    scrolls = start.over(files | {"work.read.": sealed(read_head(99) + read_done())})
    scrolls.put_and_commit(scrolls.queue(), b"next")
    assert [(item.id, item.data) for item in scrolls.take_all()] == [(100, b"next")]


@EACH
def test_start_and_stop_change_no_recorded_queue(start: Opener, tmp_path: Path, case: Recorded) -> None:
    shutil.copytree(case.path, tmp_path / "queues")
    before = queues_in(tmp_path / "queues")
    start(tmp_path / "queues").close()
    after = queues_in(tmp_path / "queues")
    if case.case == "L28_header_only":
        assert (before[b"work"].items, after) == ([], {})
    else:
        assert {name: queue.items for name, queue in after.items()} == {
            name: queue.items for name, queue in before.items()
        }


CUTS: Final = json.loads((GOLDEN / "L40_truncations" / "expected.json").read_text())


@pytest.mark.parametrize("cut", CUTS["cuts"], ids=lambda cut: str(cut["n"]))
def test_truncated_file_has_the_items_that_libkestrel_found(start: Opener, cut: dict[str, Any]) -> None:
    contents = base64.b64decode(CUTS["base_b64"])[: cut["n"]]
    scrolls = start.over({CUTS["file"]: contents})
    queue = scrolls.queue()
    assert [item.id for item in scrolls.look_through(queue)] == cut["ids"]
    whole = max(size for size in (0, 4, 32, 68, 93) if size <= cut["n"])
    left = {CUTS["file"]: contents[:whole]} if cut["ids"] else {}
    assert scrolls.files() == left | {"work.read.": reader_file(0)}
    scrolls.put_and_commit(queue, b"next")
    assert [item.id for item in scrolls.take_all()] == [*cut["ids"], len(cut["ids"]) + 1]


# Writing.


def put_recorded(scrolls: Scrolls, queues: list[ScrollQueue], case: Recorded, *, committed_each: bool = False) -> None:
    """Put the items of a recorded folder at their times."""
    for file in sorted(case.expected["ops"]):
        for op in case.expected["ops"][file]:
            if op.get("op") == "PUT":
                scrolls.now_ms = max(T, op["add_time"]) if committed_each else T
                data = base64.b64decode(op["data"])
                scrolls.put(queues, data, add_ms=op["add_time"], expiry_ms=op["expiry"] or 0)
                if committed_each:
                    scrolls.commit(*queues)
    scrolls.commit(*queues)


def case_of(name: str, folder: str) -> Recorded:
    (found,) = [case for case in RECORDED if (case.case, case.folder) == (name, folder)]
    return found


def take_two_and_open_one(scrolls: Scrolls, queue: ScrollQueue) -> None:
    queue.take(False)
    queue.take(False)
    queue.take(True)
    scrolls.commit(queue)


def confirm_out_of_order(scrolls: Scrolls, queue: ScrollQueue) -> None:
    xids = [queue.take(True).xid for _ in range(8)]
    for item_id in (2, 5, 4, 7, 1):
        queue.confirm([xids[item_id - 1]])
        scrolls.commit(queue)
    queue.put_back([xids[2], xids[5]], False)


@pytest.mark.parametrize(
    ("name", "operate"),
    [
        ("L01_simple", take_two_and_open_one),
        ("L02_out_of_order", confirm_out_of_order),
        ("L05_expiry", lambda scrolls, queue: None),
    ],
)
def test_same_operations_leave_the_files_of_libkestrel(
    start: Opener, name: str, operate: Callable[[Scrolls, ScrollQueue], None]
) -> None:
    case = case_of(name, "journal")
    scrolls, queue = start.queue()
    put_recorded(scrolls, [queue], case)
    operate(scrolls, queue)
    scrolls.close()
    assert scrolls.files() == case.files


def test_full_files_are_those_of_libkestrel(start: Opener) -> None:
    case = case_of("L04_rotation", "journal_full")
    scrolls = start(settings=QueueSettings(default_journal_size_bytes=512))
    put_recorded(scrolls, [scrolls.queue(b"work+a"), scrolls.queue(b"work+b")], case, committed_each=True)
    scrolls.close()
    expected = case.files
    expected["work.1700000001000"] = expected.pop("work.1700000000000")  # this server creates it with its first item
    expected["work.1700000026000"] = expected["work.1700000026000"].rstrip(b"\0")  # libkestrel did not close it
    assert scrolls.files() == expected


@pytest.mark.parametrize(("folder", "confirmed"), [("journal_a", (2, 5, 4, 7)), ("journal_b", (2, 5, 4, 7, 1))])
def test_running_server_preallocates_nothing_and_only_appends(
    start: Opener, folder: str, confirmed: tuple[int, ...]
) -> None:
    case = case_of("L02_out_of_order", folder)
    scrolls, queue = start.queue()
    put_recorded(scrolls, [queue], case)
    xids = [queue.take(True).xid for _ in range(8)]
    for item_id in confirmed:
        queue.confirm([xids[item_id - 1]])
    scrolls.commit(queue)
    (writer,) = scrolls.writers()
    assert scrolls.files()[writer] == case.files[writer].rstrip(b"\0")
    assert unsealed(queue.checkpoint()) == case.files["work.read."]
    assert scrolls.reader().startswith(reader_file(0))


# Random histories.


class IndependentlyReadHistory(HistoryMachine):
    """A history of queues whose files are also read by the independent reader."""

    @rule()
    def read_independently(self) -> None:
        self.tracked.commit()
        self.tracked.subject.run_threads()
        queues = queues_in(self.tracked.subject.folder)
        found = {name: [item[1:] for item in queue.items] for name, queue in queues.items()}
        kept = {name: [*model.opened.values(), *model.items] for name, model in self.tracked.models.items()}
        assert found == {name: sorted(items, key=lambda item: item.add_ms) for name, items in kept.items()}


def run_histories(machine: type[HistoryMachine], folder: Path) -> None:
    """Run random histories, most of them much longer than those of the contract."""
    folders = (folder / str(number) for number in itertools.count())
    backend = test_contract.TestScroll()
    run_state_machine_as_test(
        lambda: machine(backend, next(folders)),
        settings=settings(
            max_examples=examples(30),
            stateful_step_count=150,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )


def test_independent_reader_finds_items_of_random_histories(tmp_path: Path) -> None:
    run_histories(IndependentlyReadHistory, tmp_path)


def test_starts_with_many_marks_find_items_of_random_histories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "HINTED_BYTES", 0)
    for module in (writer_index, writer_file):
        monkeypatch.setattr(module, "MARK_BYTES", 200)
    run_histories(HistoryMachine, tmp_path)
