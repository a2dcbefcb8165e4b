"""The independent reader: it finds what libkestrel found, and reads each kind of record of the format."""

from __future__ import annotations

import ast
import base64
import json
from pathlib import Path
from typing import Any, Final

import pytest

from kestrel.scroll.cursor import ScrollCursor
from tests.journal.handwritten import BytesReader
from tests.scroll import independent
from tests.scroll.handwritten import (
    DELETED,
    READER,
    WRITER,
    T,
    done_ranges,
    errors,
    put,
    read_done,
    read_head,
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
            cursor = ScrollCursor(BytesReader(damaged), magic)
            ours = [(record.command, record.data) for _, record in cursor.records()]
            assert ours == (theirs[: len(ours)] if "not higher" in (cursor.end.problem or "") else theirs)
