"""The independent reader: it finds what libkestrel found, and reads each kind of record of the format."""

from __future__ import annotations

import ast
import base64
import json
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import pytest

from kestrel.scroll.record_cursor import ScrollRecordCursor
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
