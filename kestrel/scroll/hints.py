"""Position hints: saved indexes of a journal's files, so that a start need not read the files from the beginning.

A hint has no information that the files do not have. It may be old or missing; a start then reads the rest of the
files. A hint is wrong only if another program has changed the part of a file that it covers, and then it is not used.
"""

from __future__ import annotations

import json
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from kestrel.disk.folders import PRIVATE_FOLDER
from kestrel.scroll.writer_file import Counts, WriterFile, WriterMark, WriterTally

HINTS_FOLDER: Final = PRIVATE_FOLDER + b"/hints"

MAX_HINT_BYTES: Final = 16 * 1024 * 1024
"""Limit of the bytes that are read of a hint."""

_VERSION: Final = 1


def hint_path(folder: bytes, stem: bytes) -> bytes:
    """Return the path of the hint of a journal."""
    return folder + b"/" + HINTS_FOLDER + b"/" + stem


class FileHint(NamedTuple):
    """A snapshot of the index of one file, which another thread may encode."""

    file: WriterFile
    marks: Sequence[WriterMark]

    @classmethod
    def of(cls, file: WriterFile, next_ids: Sequence[int]) -> FileHint:
        """Return a snapshot of a file's index, with marks for the items in `next_ids` that are in the file.

        `next_ids` is sorted. The first item of the file needs no mark.
        """
        ids = next_ids[bisect_right(next_ids, file.first_id) : bisect_right(next_ids, file.last_id)]
        marks = {mark.item_id: mark for mark in map(file.before, ids)}
        return cls(file.snapshot(), list(marks.values()))


def encode_hint(hints: Iterable[FileHint]) -> bytes:
    """Return the encoded hint, with its checksum."""
    text = json.dumps([_VERSION, [_encode_file(*hint) for hint in hints]]).encode("ascii")
    return b"%08x %b" % (zlib.crc32(text), text)


def _encode_file(file: WriterFile, marks: Sequence[WriterMark]) -> list[Any]:
    return [
        file.file_name.decode("ascii"),
        file.number,
        file.first_id,
        file.last_id,
        file.last_offset,
        file.size,
        file.is_closed,
        _encode_tally(file.tally),
        [[mark.item_id, mark.offset, mark.before and _encode_tally(mark.before)] for mark in marks],
    ]


def _encode_tally(tally: WriterTally) -> list[Any]:
    return [
        tally.items,
        tally.bytes,
        {target_reader.decode("ascii"): list(extra) for target_reader, extra in tally.extra.items()},
    ]


def decode_hint(data: bytes) -> Mapping[bytes, WriterFile]:
    """Return the indexes in a hint, by file name; empty if the hint is damaged or has another version."""
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
        file.add_mark(WriterMark(item_id, offset, before and _decode_tally(*before)))
    return file


def _decode_tally(items: int, data_bytes: int, extra: dict[str, list[int]]) -> WriterTally:
    return WriterTally(
        items, data_bytes, {target_reader.encode("ascii"): Counts(*counts) for target_reader, counts in extra.items()}
    )
