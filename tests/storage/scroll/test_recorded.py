"""What libkestrel wrote is served as it served it, and what we write is what it wrote, but for what is listed."""

from __future__ import annotations

import base64
import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import attrs
import pytest
from twisted.python.failure import Failure

from kestrel.config.model import QueueSettings
from kestrel.scroll import item_cursor, writer_file
from kestrel.storage.scroll import maintenance
from kestrel.storage.scroll.queue import ScrollQueue
from tests.scroll.handwritten import READER, T, read_done, read_head, sealed, unsealed
from tests.scroll.independent import puts_in, queues_in
from tests.scroll.storages import Opener, Scrolls, files_in

GOLDEN: Final = Path(__file__).parents[2] / "scroll" / "golden"


class Recorded(NamedTuple):
    """A folder of files, and what libkestrel made of it."""

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


# Read.

HONOURED: Final = "what is done beyond the head is done after a restart too"
EARLIEST: Final = "a reader without a file begins at the earliest item"
NEVER_TWICE: Final = "ids that a reader knows are never given again"
NOT_THERE: Final = "without an item and a reader there is no queue"

MOST_DONE: Final = 1000
"""So many ids of a range are compared: behind a damaged reader file a gap of 2 ** 32 ids is done."""

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
    ("L28_header_only", "journal"): {"work.1700003600000": NOT_THERE, "work.read.": NOT_THERE, "readers": NOT_THERE},
}
"""By folder: what is not as libkestrel has it, and why."""


def items_of(queue: dict[str, Any]) -> list[tuple[object, ...]]:
    """Those that libkestrel gave, as we tell of them."""
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
def test_a_recorded_folder_is_what_it_was_to_libkestrel_but_for_what_is_listed(
    start: Opener, tmp_path: Path, case: Recorded
) -> None:
    expected, found = expected_of(case), found_in(start, case, tmp_path / "queues")
    differing = {what for what in expected.keys() | found.keys() if expected.get(what) != found.get(what)}
    if found["readers"] == []:
        differing -= {"items of ", "done by "}
    assert differing == DIFFERENCES.get((case.case, case.folder), {}).keys()


def test_all_that_is_listed_was_recorded() -> None:
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
def test_where_items_differ_they_are_these(
    start: Opener, tmp_path: Path, case: str, folder: str, reader: bytes, ids: list[int]
) -> None:
    shutil.copytree(GOLDEN / case / folder, tmp_path / "queues")
    scrolls = start(tmp_path / "queues")
    assert [item.id for item in scrolls.take_all(scrolls.queue(reader))] == ids


def test_a_reader_that_is_beyond_the_last_item_stays_there_and_ids_go_on_behind_it(
    start: Opener, tmp_path: Path
) -> None:
    shutil.copytree(GOLDEN / "L22_head_beyond_tail" / "journal", tmp_path / "queues")
    (tmp_path / "queues" / "work.read.").write_bytes(sealed(read_head(99) + read_done()))
    scrolls = start(tmp_path / "queues")
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, b"next")
    assert [(item.id, item.data) for item in scrolls.take_all(queue)] == [(100, b"next")]


@EACH
def test_a_recorded_folder_that_was_only_opened_and_closed_is_the_same_to_whoever_reads_it(
    start: Opener, tmp_path: Path, case: Recorded
) -> None:
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
def test_a_file_that_is_cut_anywhere_gives_the_items_that_it_gave_to_libkestrel(
    start: Opener, tmp_path: Path, cut: dict[str, Any]
) -> None:
    folder = tmp_path / "queues"
    folder.mkdir()
    contents = base64.b64decode(CUTS["base_b64"])[: cut["n"]]
    (folder / CUTS["file"]).write_bytes(contents)
    scrolls = start(folder)
    queue = scrolls.queue()
    assert [item.id for item in scrolls.look_through(queue)] == cut["ids"]
    whole = max(size for size in (0, 4, 32, 68, 93) if size <= cut["n"])
    left = {CUTS["file"]: contents[:whole]} if cut["ids"] else {}
    assert scrolls.files() == left | {"work.read.": READER + read_head(0) + read_done()}
    scrolls.put_and_commit(queue, b"next")
    assert [item.id for item in scrolls.take_all(queue)] == [*cut["ids"], len(cut["ids"]) + 1]


# Written.


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


def test_items_put_and_taken_leave_the_bytes_that_libkestrel_left(start: Opener) -> None:
    case = case_of("L01_simple", "journal")
    scrolls = start()
    queue = scrolls.queue()
    put_recorded(scrolls, [queue], case)
    queue.take(False)
    queue.take(False)
    queue.take(True)
    scrolls.commit(queue)
    scrolls.close()
    assert scrolls.files() == case.files


def test_items_confirmed_out_of_order_leave_the_bytes_that_libkestrel_left(start: Opener) -> None:
    case = case_of("L02_out_of_order", "journal")
    scrolls = start()
    queue = scrolls.queue()
    put_recorded(scrolls, [queue], case)
    xids = [queue.take(True).xid for _ in range(8)]
    for item_id in (2, 5, 4, 7, 1):
        queue.confirm([xids[item_id - 1]])
        scrolls.commit(queue)
    queue.put_back([xids[2], xids[5]], False)
    scrolls.close()
    assert scrolls.files() == case.files


def test_expiring_items_leave_the_bytes_that_libkestrel_left(start: Opener) -> None:
    case = case_of("L05_expiry", "journal")
    scrolls = start()
    put_recorded(scrolls, [scrolls.queue()], case)
    scrolls.close()
    assert scrolls.files() == case.files


def test_full_files_are_the_files_that_libkestrel_made(start: Opener) -> None:
    case = case_of("L04_rotation", "journal_full")
    scrolls = start(settings=QueueSettings(default_journal_size_bytes=512))
    put_recorded(scrolls, [scrolls.queue(b"work+a"), scrolls.queue(b"work+b")], case, committed_each=True)
    scrolls.close()
    expected = case.files
    expected["work.1700000001000"] = expected.pop("work.1700000000000")  # ours is made with its first item
    expected["work.1700000026000"] = expected["work.1700000026000"].rstrip(b"\0")  # theirs was not closed
    assert scrolls.files() == expected


def test_while_it_runs_its_files_differ_in_what_is_made_ahead_and_what_was_appended_alone(start: Opener) -> None:
    for folder, confirmed in (("journal_a", (2, 5, 4, 7)), ("journal_b", (2, 5, 4, 7, 1))):
        case = case_of("L02_out_of_order", folder)
        scrolls = start(start.folder / folder)
        queue = scrolls.queue()
        put_recorded(scrolls, [queue], case)
        xids = [queue.take(True).xid for _ in range(8)]
        for item_id in confirmed:
            queue.confirm([xids[item_id - 1]])
        scrolls.commit(queue)
        (writer,) = scrolls.writers()
        assert scrolls.files()[writer] == case.files[writer].rstrip(b"\0")
        assert unsealed(queue.checkpoint()) == case.files["work.read."]
        assert scrolls.reader().startswith(READER + read_head(0) + read_done())


# Read by somebody else.


class Lived:
    """A family of queues in a life of puts, takes and deletions, and what each of them should hold."""

    def __init__(self, start: Opener, seed: int, parent: bytes) -> None:
        self._start = start
        self._rng = random.Random(seed)
        self._parent = parent
        self._names = [parent, *(parent + b"+" + child for child in (b"x", b"a b", b"\xff" * 90, b":own", b"y+z"))]
        self._settings = QueueSettings(
            default_journal_size_bytes=self._rng.choice((300, 3000, 1 << 20)),
            sync_journal_ms=self._rng.choice((None, 0, 500)),
        )
        self.scrolls = start(settings=self._settings)
        self.model: dict[bytes, dict[bytes, int]] = {}
        """What is in each queue, its open reads too, with its errors, in the order in which it was put."""
        self._open: dict[bytes, dict[bytes, int]] = {}
        self._puts = 0

    def step(self) -> None:
        kinds = (self.make, self.put, self.put, self.put_to_some, self.take, self.open, self.confirm, self.abort)
        self._rng.choice((*kinds, *kinds, self.commit, self.clear, self.delete, self.tick))()

    def queue(self, name: bytes) -> ScrollQueue:
        return self.scrolls.queue(name, self._settings)

    def _any(self) -> bytes | None:
        return self._rng.choice(sorted(self.model)) if self.model else None

    def make(self) -> None:
        name = self._rng.choice(self._names)
        self.queue(name)
        self.model.setdefault(name, {})
        self._open.setdefault(name, {})

    def put(self) -> None:
        self._put(sorted(self.model))

    def put_to_some(self) -> None:
        self._put([name for name in sorted(self.model) if self._rng.random() < 0.5])

    def _put(self, names: list[bytes]) -> None:
        if names:
            self._puts += 1
            data = b"%d " % self._puts + bytes(self._rng.choice((0, 5, 50)))
            self.scrolls.put([self.queue(name) for name in names], data)
            for name in names:
                self.model[name][data] = 0

    def _take(self, opened: bool) -> None:
        name = self._any()
        if name is not None:
            queue = self.scrolls.fill(self.queue(name))
            item = queue.take(opened)
            assert (item is None) == (len(self.model[name]) == len(self._open[name]))
            if item is not None and opened:
                self._open[name][item.data] = item.xid
            elif item is not None:
                del self.model[name][item.data]

    def take(self) -> None:
        self._take(False)

    def open(self) -> None:
        self._take(True)

    def _close(self, confirmed: bool) -> None:
        name = self._any()
        if name is not None and self._open[name]:
            data = self._rng.choice(sorted(self._open[name]))
            xid = self._open[name].pop(data)
            if confirmed:
                self.queue(name).confirm([xid])
                del self.model[name][data]
            else:
                failed = self._rng.random() < 0.5
                self.queue(name).put_back([xid], failed)
                self.model[name][data] += failed

    def confirm(self) -> None:
        self._close(True)

    def abort(self) -> None:
        self._close(False)

    def clear(self) -> None:
        name = self._any()
        if name is not None and self._rng.random() < 0.2:
            self.queue(name).clear()
            self.model[name] = {data: n for data, n in self.model[name].items() if data in self._open[name]}

    def delete(self) -> None:
        name = self._any()
        if name is not None and self._rng.random() < 0.5:
            queue = self.queue(name)
            self.scrolls.storage.delete(queue)
            self.scrolls.commit(queue)
            self.scrolls.threads.run_all()
            del self.model[name], self._open[name]

    def tick(self) -> None:
        self.scrolls.now_ms += 1000
        self.scrolls.clock.advance(self._rng.choice((1, 10)))
        self.scrolls.threads.run_all()

    def commit(self) -> None:
        self.scrolls.commit(*[self.queue(name) for name in self.model])
        self.scrolls.threads.run_all()

    def restart(self, how: str) -> None:
        if how == "stop":
            self.scrolls = self._start.again(self.scrolls)
        else:
            self.commit()
            self.scrolls = self._start.crashed(self.scrolls)
        self._open = {name: {} for name in self.model}
        assert sorted(self.scrolls.loaded) == sorted(self.model)

    def expected(self) -> dict[bytes, list[tuple[bytes, int]]]:
        return {name: list(items.items()) for name, items in self.model.items()}


class Stepped(Lived):
    """The same while threads and commits are under way: nothing is waited for before `settle`."""

    def __init__(self, start: Opener, seed: int, parent: bytes) -> None:
        super().__init__(start, seed, parent)
        room = self._rng.choice((1, 500, 1 << 20))
        self._settings = attrs.evolve(self._settings, max_memory_size_bytes=room)
        self._committing: dict[bytes, ScrollQueue] = {}
        self.failures: list[Failure] = []

    def step(self) -> None:
        often = (self.put, self.take, self.commit, self.delete, self.run_some)
        others = (self.make, self.put_to_some, self.open, self.confirm, self.abort, self.clear)
        self._rng.choice((*often, *often, *others))()

    def run_some(self) -> None:
        """Let some threads end, and sometimes time go by."""
        self.scrolls.now_ms += 1000
        self.scrolls.clock.advance(self._rng.choice((0, 0, 1, 10)))
        for _ in range(min(self._rng.randrange(4), len(self.scrolls.threads))):
            self.scrolls.threads.run_one()

    def _take(self, opened: bool) -> None:
        name = self._any()
        if name is not None and self.queue(name).fill() is None:
            super()._take(opened)

    def commit(self) -> None:
        names = [name for name in self.model if name not in self._committing and self._rng.random() < 0.8]
        self._commit([self.queue(name) for name in names])

    def _commit(self, queues: list[ScrollQueue]) -> None:
        for group, outcome in self.scrolls.storage.commit(queues):
            self._committing |= {queue.name: queue for queue in group}
            outcome.addCallback(self._committed, group).addErrback(self.failures.append)

    def _committed(self, _: object, group: Sequence[ScrollQueue]) -> None:
        for queue in group:
            if self._committing.get(queue.name) is queue:
                del self._committing[queue.name]

    def delete(self) -> None:
        name = self._any()
        if name is not None and self._rng.random() < 0.3:
            queue = self.queue(name)
            self.scrolls.storage.delete(queue)
            self._committing.pop(name, None)
            del self.model[name], self._open[name]
            self._commit([queue])
            self._committing.pop(name, None)

    def settle(self) -> None:
        """Let everything that is under way end, and be safe."""
        self.scrolls.threads.run_all()
        assert (self._committing, self.failures) == ({}, [])
        self._commit([self.queue(name) for name in self.model])
        self.scrolls.threads.run_all()
        assert (self._committing, self.failures) == ({}, [])


def found_by_others(folder: Path) -> dict[bytes, list[tuple[bytes, int]]]:
    return {name: [(item.data, item.errors) for item in queue.items] for name, queue in queues_in(folder).items()}


@pytest.mark.parametrize(
    "parent", [b"work", b"caf\xe9.1 +", b"+x", b"n" * 190], ids=["work", "odd bytes", "no child", "a long name"]
)
@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_an_independent_reader_finds_what_each_queue_holds(
    start: Opener, seed: int, parent: bytes
) -> None:
    lived = Lived(start, seed, parent)
    for step in range(1, 601):
        lived.step()
        if step % 40 == 0:
            lived.commit()
            assert found_by_others(lived.scrolls.folder) == lived.expected()
            for name, items in lived.model.items():
                queue = lived.queue(name)
                assert (queue.items + queue.open_reads, queue.bytes + queue.open_bytes) == (
                    len(items),
                    sum(map(len, items)),
                )
        if step % 150 == 0:
            lived.restart("stop" if step % 300 else "crash")
            assert found_by_others(lived.scrolls.folder) == lived.expected()


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_every_start_finds_the_same_with_hints_of_few_items_and_many_marks(
    start: Opener, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "HINTED_BYTES", 0)
    for module in (item_cursor, writer_file):
        monkeypatch.setattr(module, "MARK_BYTES", 200)
    lived = Stepped(start, seed, b"work")
    for step in range(1, 801):
        lived.step()
        if step % 80 == 0:
            lived.settle()
            lived.restart("stop" if step % 160 else "crash")
            hint = lived.scrolls.folder / ".kestrel" / "hints" / "work"
            assert hint.exists() or not any(lived.model.values()) or not step % 160
            for name, queue in lived.scrolls.loaded.items():
                assert (queue.items, queue.bytes) == (len(lived.model[name]), sum(map(len, lived.model[name])))
                found = [(item.data, item.errors) for item in lived.scrolls.look_through(queue)]
                assert found == lived.expected()[name]


@pytest.mark.parametrize("parent", [b"work", b"n" * 190], ids=["work", "a long name"])
@pytest.mark.parametrize("seed", range(10))
def test_whatever_is_under_way_meanwhile_the_same_is_found_when_it_has_ended(
    start: Opener, seed: int, parent: bytes
) -> None:
    lived = Stepped(start, seed, parent)
    for step in range(1, 501):
        lived.step()
        if step % 50 == 0:
            lived.settle()
            assert found_by_others(lived.scrolls.folder) == lived.expected()
            again = start.crashed(lived.scrolls)
            assert sorted(again.loaded) == sorted(lived.model)
            assert {
                name: [(item.data, item.errors) for item in again.take_all(name)] for name in lived.model
            } == lived.expected()
            again.close()
    lived.scrolls.close()
    assert lived.scrolls.disk.open_descriptors == set()
    assert lived.scrolls.memory.used_bytes == 0
