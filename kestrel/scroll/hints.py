"""Position hints: what is known of a journal's files, so that a start need not read them from the beginning.

A hint says nothing that the files do not say as well. It may be old, or be missing: a start reads what lies behind it.
It is only wrong when somebody has changed what lay before it, and then it is not used.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

from kestrel.disk.folders import PRIVATE_FOLDER
from kestrel.scroll.survey import Counts, Mark, Tally, WriterFile

HINTS_FOLDER: Final = PRIVATE_FOLDER + b"/hints"

MOST_BYTES: Final = 16 * 1024 * 1024
"""No more than that is read."""

_VERSION: Final = 1


def hint_path(folder: bytes, stem: bytes) -> bytes:
    """The file that holds the hint of that journal."""
    return folder + b"/" + HINTS_FOLDER + b"/" + stem


def encode_hint(files: Iterable[WriterFile], heads: Iterable[int]) -> bytes:
    """What is known of these files, and the places of the first items that readers with these heads have not read."""
    heads = sorted(set(heads))
    text = json.dumps([_VERSION, [_encode_file(file, heads) for file in files if file.first_id]]).encode("ascii")
    return b"%08x %b" % (zlib.crc32(text), text)


def _encode_file(file: WriterFile, heads: list[int]) -> list[Any]:
    places = [file.before(head + 1) for head in heads if file.first_id <= head < file.last_id]
    marks = {mark.item_id: mark for mark in places}
    return [
        file.file_name.decode("ascii"),
        file.number,
        file.first_id,
        file.last_id,
        file.last_offset,
        file.size,
        file.is_closed,
        _encode_tally(file.tally),
        [[mark.item_id, mark.offset, _encode_tally(mark.before)] for mark in marks.values()],
    ]


def _encode_tally(tally: Tally) -> list[Any]:
    return [tally.items, tally.bytes, {who.decode("ascii"): list(extra) for who, extra in tally.extra.items()}]


def decode_hint(data: bytes) -> Mapping[bytes, WriterFile]:
    """What it says of each file, by file name; nothing if it is not whole."""
    checksum, _, text = data.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(text):
        return {}
    try:
        version, entries = json.loads(text)
        files = [_decode_file(*entry) for entry in entries] if version == _VERSION else []
    except (ValueError, TypeError, AttributeError, RecursionError):
        return {}
    return {file.file_name: file for file in files}


def _decode_file(name: str, number: int, *rest: Any) -> WriterFile:
    file = WriterFile(name.encode("ascii"), number)
    file.first_id, file.last_id, file.last_offset, file.size, file.is_closed, tally, marks = rest
    file.tally = _decode_tally(*tally)
    for item_id, offset, before in marks:
        file.add_mark(Mark(item_id, offset, _decode_tally(*before)))
    return file


def _decode_tally(items: int, data_bytes: int, extra: dict[str, list[int]]) -> Tally:
    return Tally(items, data_bytes, {who.encode("ascii"): Counts(*counts) for who, counts in extra.items()})
