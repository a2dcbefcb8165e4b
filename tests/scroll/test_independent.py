"""The independent reader: it finds what libkestrel found, and what this server's records mean."""

from __future__ import annotations

import ast
import base64
import json
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import hypothesis.strategies as st
import pytest
from hypothesis import given

from kestrel.disk.files import Disk
from kestrel.scroll.name_encoding import OWN_READER, EscapedNames, reader_part, stem_of
from kestrel.scroll.reader_file import ReaderState, encode_changes, encode_state
from kestrel.scroll.reader_file import sealed as with_checksum
from kestrel.scroll.record_cursor import ScrollRecordCursor
from kestrel.scroll.records import WRITER_MAGIC, Targets, encode_put, encode_targets
from tests.journal.handwritten import BytesReader
from tests.scroll import independent
from tests.scroll.handwritten import (
    DELETED,
    READER,
    WRITER,
    T,
    checksum,
    done_ranges,
    errors,
    held,
    put,
    read_done,
    read_head,
    sealed,
    targets,
    with_data,
)
from tests.scroll.independent import FoundItem, queues_in

GOLDEN: Final = Path(__file__).with_name("golden")

FOLDERS: Final = [
    (path.parent.name, folder)
    for path in sorted(GOLDEN.glob("*/expected.json"))
    for folder in json.loads(path.read_text())
    if folder.startswith("journal")
]


def written_folder(folder: Path, **files: bytes) -> Path:
    """Make a folder with these files; `_` stands for a dot in a name, `own` for `:own`."""
    for name, contents in files.items():
        (folder / name.replace("_", ".").replace("own", ":own")).write_bytes(contents)
    return folder


def items(folder: Path) -> dict[bytes, list[bytes]]:
    """Return the data of the items of each queue."""
    return {name: [item.data for item in queue.items] for name, queue in queues_in(folder).items()}


def test_independent_reader_imports_no_code_that_it_checks() -> None:
    tree = ast.parse(Path(independent.__file__).read_text())
    names = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert names == {"__future__", "collections.abc", "hashlib", "os", "pathlib", "re", "typing", "zlib"}


@pytest.mark.parametrize(("case", "folder"), FOLDERS)
def test_independent_reader_finds_what_libkestrel_found(case: str, folder: str) -> None:
    expected = json.loads((GOLDEN / case / "expected.json").read_text())[folder]
    found = queues_in(GOLDEN / case / folder)
    readers = expected["readers"]
    assert found.keys() == {b"work+" + reader.encode() if reader else b"work" for reader in readers}
    for reader, says in readers.items():
        queue = found[b"work+" + reader.encode() if reader else b"work"]
        if case == "L20_no_bookmark":
            assert (queue.head, queue.ids, says["head"]) == (0, [1, 2, 3], 3), "it begins at the end"
            continue
        if case == "L22_head_beyond_tail":
            assert (queue.head, queue.ids) == (0, [1, 2, 3]), "its head is beyond the last item: damage"
            continue
        assert queue.head == says["head"]
        assert [each for each, _ in queue.done] == says["done"]
        in_time = [item for item in queue.items if not 0 < item.expiry_ms <= expected["now"]]
        given_again = [item for item in says["gets_at_now"] if item["id"] not in says["done"]]
        assert in_time == [item_of(item) for item in given_again]


def item_of(item: dict[str, Any]) -> FoundItem:
    """Return an item from expected.json."""
    data = base64.b64decode(item["data"])
    return FoundItem(item["id"], data, item["add_time"], item["expiry"] or 0, item["errors"])


# Folders that libkestrel does not make.


def test_item_for_some_readers_is_hidden_from_others(tmp_path: Path) -> None:
    puts = [put(1, b"all"), targets(0, b"x"), put(2, b"x"), targets(1, b"x", b":own"), put(3, b"y"), put(4, b"last")]
    puts += [targets(0, b"x"), with_data(14, b""), put(5, b"all")]
    state = READER + read_head(0)
    written_folder(tmp_path, work_1=WRITER + b"".join(puts), work_read_x=state, work_read_y=state, work_read_=state)
    assert items(tmp_path) == {
        b"work": [b"all", b"last", b"all"],
        b"work+x": [b"all", b"x", b"last", b"all"],
        b"work+y": [b"all", b"y", b"last", b"all"],
    }


def test_done_records_add_up_and_errors_are_counted(tmp_path: Path) -> None:
    puts = b"".join(put(each, b"%d" % each, errors=1) for each in range(1, 13))
    state = READER + read_head(1) + read_done(3) + errors(_5=7) + read_head(2) + done_ranges((7, 9), (11, 11))
    written_folder(tmp_path, work_1=WRITER + puts, work_read_=state + errors(_5=8, _6=0, _10=-1))
    queue = queues_in(tmp_path)[b"work"]
    assert [(item.id, item.errors) for item in queue.items] == [(4, 1), (5, 8), (6, 0), (10, 1), (12, 1)]


def test_files_are_read_by_id_and_falling_ids_are_ignored(tmp_path: Path) -> None:
    written_folder(
        tmp_path,
        work_9=WRITER + put(1, b"1") + put(5, b"5") + put(4, b"again") + put(5, b"again"),
        work_8=WRITER + put(7, b"7") + put(6, b"again") + put(8, b"8") + b"\0" + put(9, b"behind the end"),
        work_10=WRITER + put(8, b"again") + put(9, b"9") + put(10, b"cut")[:-1],
        work_11=WRITER,
        work_12=READER + put(11, b"no writer file"),
    )
    assert items(tmp_path) == {b"work": [b"1", b"5", b"7", b"8", b"9"]}


def test_deleted_readers_and_foreign_files_are_no_queues(tmp_path: Path) -> None:
    file = WRITER + put(1, b"1")
    state, deleted = READER + read_head(0), sealed(read_head(0), DELETED)
    written_folder(tmp_path, work_1=file, work_read_own=state, work_read_=READER + read_head(1), work_read_x=deleted)
    written_folder(tmp_path, lonely_1=file, lonely_read_x=state, other_1=file, other_read_=DELETED)
    for name in ("foreign", "archive~old.1", "work.2~~3", "work.read.z~~3", "a:b.1", "work.1.pack"):
        (tmp_path / name).write_bytes(file)
    assert items(tmp_path) == {b"work": [b"1"], b"lonely+x": [b"1"], b"other": [b"1"]}


def test_names_are_decoded_from_file_names(tmp_path: Path) -> None:
    long = b"\xff" * 100
    digits = blake2b(long, digest_size=16).hexdigest()
    for name in ("caf:e9", f"::{digits}"):
        (tmp_path / f"{name}.1").write_bytes(WRITER + put(1, b"1"))
        (tmp_path / f"{name}.read.x:2b").write_bytes(READER)
    assert items(tmp_path) == {b"caf\xe9+x+": [b"1"]}
    (tmp_path / ".kestrel" / "names").mkdir(parents=True)
    (tmp_path / ".kestrel" / "names" / digits).write_bytes(long)
    assert items(tmp_path) == {b"caf\xe9+x+": [b"1"], long + b"+x+": [b"1"]}


def test_only_records_with_matching_checksum_count(tmp_path: Path) -> None:
    file = WRITER + put(1, b"1") + put(2, b"2") + put(3, b"3")
    state = sealed(read_head(0), read_done(2))
    later = read_done(3) + checksum(read_done(3))
    for contents, expected in (
        (state, [1, 3]),
        (state + read_done(3), [1, 3]),
        (state + later, [1]),
        (state + later[:-1] + b"?", [1, 3]),
        (state[:4] + b"?" + state[5:], [1, 2, 3]),
    ):
        written_folder(tmp_path, work_1=file, work_read_=contents)
        assert queues_in(tmp_path)[b"work"].ids == expected


def test_file_without_checksums_counts_if_libkestrel_can_have_written_it(tmp_path: Path) -> None:
    file = WRITER + put(1, b"1") + put(2, b"2") + put(3, b"3")
    for records, expected in (
        (read_head(1) + read_done(3), [2]),
        (read_head(0) + read_head(3), []),
        (read_done(1) + read_head(0), [1, 2, 3]),
        (read_head(2) + read_head(1), [1, 2, 3]),
        (read_head(2) + DELETED, [1, 2, 3]),
        (read_head(4), [1, 2, 3]),
        (read_head(1) + done_ranges((2, 4)), [1, 2, 3]),
        (read_head(2) + held(9, b"x"), [1, 2, 3]),
    ):
        written_folder(tmp_path, work_1=file, work_read_=READER + records)
        assert queues_in(tmp_path)[b"work"].ids == expected


# Both readers.

SAMPLES: Final = {
    WRITER: [
        put(1, b"a"),
        targets(0, b"x"),
        put(2, b"bb", T, T + 1),
        b"\x32????????",
        put(3, b"ccc"),
        with_data(14, b"?"),
    ],
    READER: [read_head(1), read_done(3, 4), errors(_2=1), done_ranges((9, 99)), read_head(2), DELETED],
}


@pytest.mark.parametrize("magic", SAMPLES, ids=["writer file", "reader file"])
def test_both_readers_find_same_records_after_any_damage(magic: bytes) -> None:
    contents = magic + b"".join(SAMPLES[magic])
    for position in range(len(contents)):
        for byte in {0, 1, 0x7F, 0x80, 0xFF, contents[position] ^ 0x10, contents[position] ^ 1}:
            damaged = contents[:position] + bytes([byte]) + contents[position + 1 :]
            theirs = [(command, data) for command, _, _, data in independent.records_of(damaged, magic.hex())]
            assert [
                (record.command, record.data) for _, record in ScrollRecordCursor(BytesReader(damaged), magic)
            ] == theirs


JOURNAL: Final = b"n\xff" * 100
CHILDREN: Final = [b"x", b"y+\xff", b"z" * 200]
PARTS: Final = [OWN_READER, *(reader_part(stem_of(JOURNAL), child) for child in CHILDREN)]


READER_NUMBERS: Final = st.integers(0, len(PARTS) - 1)
STEPS: Final = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.none() | st.tuples(st.sets(READER_NUMBERS), st.booleans()), st.integers(0, 2)),
        st.tuples(st.just("finish"), READER_NUMBERS, st.integers(0, 1 << 20)),
        st.tuples(st.just("come back"), READER_NUMBERS, st.integers(0, 1 << 20)),
        st.tuples(st.just("checkpoint"), READER_NUMBERS, st.none()),
        st.tuples(st.just("rotate"), st.none(), st.none()),
    ),
    max_size=60,
)


class WrittenJournal:
    """A journal written with this server's records, and the items that each of its readers should have."""

    def __init__(self, folder: Path) -> None:
        self._stem = folder / stem_of(JOURNAL).decode()
        names = EscapedNames(Disk(), str(folder).encode())
        for part, name in zip((stem_of(JOURNAL), *PARTS[1:]), (JOURNAL, *CHILDREN), strict=True):
            names.remember(part, name)
        self._last_id = 0
        self._files = 0
        self._states = [ReaderState() for _ in PARTS]
        self.items: list[dict[int, FoundItem]] = [{} for _ in PARTS]
        self.rotate()
        for number in range(len(PARTS)):
            self.checkpoint(number)

    def rotate(self) -> None:
        self._files += 1
        self._append(f".{self._files}", WRITER_MAGIC)

    def put(self, targets: tuple[set[int], bool] | None, gap: int) -> None:
        self._last_id += 1 + gap
        item = FoundItem(self._last_id, b"%d" % self._last_id, T, gap and T + gap, gap)
        record = encode_put(item.id, item.data, item.add_ms, item.expiry_ms, item.errors)
        has = [True] * len(PARTS)
        if targets is not None:
            its = Targets(frozenset(PARTS[number] for number in targets[0]), targets[1])
            record = encode_targets(its) + record
            has = [its.has(part) for part in PARTS]
        self._append(f".{self._files}", record)
        for number, has_it in enumerate(has):
            if has_it:
                self.items[number][item.id] = item
            else:
                self._states[number].done.add(item.id)  # the reader file says so at its next checkpoint

    def finish(self, number: int, which: int) -> None:
        if self.items[number]:
            item_id = sorted(self.items[number])[which % len(self.items[number])]
            del self.items[number][item_id]
            done = self._states[number].done
            head = done.head
            done.add(item_id)
            beyond = [(item_id, item_id)] if item_id > done.head else []
            changes = encode_changes(done.head if done.head != head else None, beyond, {})
            self._append(self._reader(number), with_checksum(changes))

    def come_back(self, number: int, which: int) -> None:
        if self.items[number]:
            item_id = sorted(self.items[number])[which % len(self.items[number])]
            item = self.items[number][item_id]
            self.items[number][item_id] = item._replace(errors=item.errors + 1)
            self._states[number].errors[item_id] = item.errors + 1
            changes = encode_changes(None, [], {item_id: item.errors + 1})
            self._append(self._reader(number), with_checksum(changes))

    def checkpoint(self, number: int) -> None:
        Path(f"{self._stem}{self._reader(number)}").write_bytes(encode_state(self._states[number]))

    def _reader(self, number: int) -> str:
        return f".read.{PARTS[number].decode()}"

    def _append(self, suffix: str, data: bytes) -> None:
        with Path(f"{self._stem}{suffix}").open("ab") as file:
            file.write(data)


@given(STEPS)
def test_independent_reader_finds_items_of_this_servers_records(steps: list[tuple[str, Any, Any]]) -> None:
    with TemporaryDirectory() as folder:
        journal = WrittenJournal(Path(folder))
        for step, what, more in steps:
            if step == "put":
                journal.put(what, more)
            elif step == "finish":
                journal.finish(what, more)
            elif step == "come back":
                journal.come_back(what, more)
            elif step == "checkpoint":
                journal.checkpoint(what)
            else:
                journal.rotate()
        found = queues_in(Path(folder))
    names = [JOURNAL, *(JOURNAL + b"+" + child for child in CHILDREN)]
    assert found.keys() == set(names)
    for name, items in zip(names, journal.items, strict=True):
        assert found[name].items == [items[item_id] for item_id in sorted(items)]
