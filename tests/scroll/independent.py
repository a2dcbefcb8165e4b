"""A reader of scroll folders written from docs/scroll_format.md alone, without `kestrel.scroll`.

Other tests read the server's files with it, so that a mistake stays unseen only if it is made twice.
"""

from __future__ import annotations

import hashlib
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class FoundItem(NamedTuple):
    """An item that a queue still has."""

    id: int
    data: bytes
    add_ms: int
    expiry_ms: int
    """0 means never."""
    errors: int


class FoundQueue(NamedTuple):
    """A queue: the content of its reader file, and its items in order."""

    head: int
    done: list[tuple[int, int]]
    """Ranges as the file has them, both ends included, in any order."""
    items: list[FoundItem]

    @property
    def ids(self) -> list[int]:
        """The ids of the items."""
        return [item.id for item in self.items]


class Put(NamedTuple):
    """A PUT and its targets.

    `targets` is None for all readers, else a kind of 0 or 1 and the named readers.
    """

    item: FoundItem
    targets: tuple[int, set[bytes]] | None


class ReaderContent:
    """The content of a reader file."""

    def __init__(self) -> None:
        self.head = 0
        self.done: list[tuple[int, int]] = []
        self.errors: dict[int, int] = {}
        self.is_deleted = False
        self.is_checked = False
        self.held_id = 0
        self.last_id = 0
        """The highest id in the file, except in error counts."""


def queues_in(folder: Path | bytes) -> dict[bytes, FoundQueue]:
    """Return every queue of a folder by name."""
    path = Path(os.fsdecode(folder))
    writers: dict[bytes, list[Path]] = {}
    readers: dict[bytes, dict[bytes, Path]] = {}
    for file in path.iterdir():
        name = os.fsencode(file.name)
        if not file.is_file():
            continue
        if match := re.fullmatch(rb"([A-Za-z0-9_:-]+)\.[0-9]{1,15}", name):
            writers.setdefault(match[1], []).append(file)
        elif match := re.fullmatch(rb"([A-Za-z0-9_:-]+)\.read\.([A-Za-z0-9_:-]*)", name):
            readers.setdefault(match[1], {})[match[2]] = file
    found: dict[bytes, FoundQueue] = {}
    for stem in writers.keys() | readers.keys():
        journal = decoded_name(path, stem)
        if journal is None:
            continue
        puts = puts_of(writers.get(stem, []))
        for reader, content in readers_of(readers.get(stem, {}), puts).items():
            child = None if reader == b":own" else decoded_name(path, reader)
            if content.is_deleted or (child is None and reader != b":own"):
                continue
            queue = journal if child is None else journal + b"+" + child
            found[queue] = FoundQueue(content.head, content.done, items_for(reader, content, puts))
    return found


def readers_of(files: dict[bytes, Path], puts: list[Put]) -> dict[bytes, ReaderContent]:
    """Return the content of each reader's file. The reader of the queue itself is always `:own`."""
    if not files:
        return {b":own": ReaderContent()}
    last_id = puts[-1].item.id if puts else LARGEST_ID
    found = {}
    for reader, file in files.items():
        if reader or b":own" not in files:
            content = content_of(file.read_bytes())
            found[reader or b":own"] = content if content.is_checked or content.last_id <= last_id else ReaderContent()
    return found


def decoded_name(folder: Path, part: bytes) -> bytes | None:
    """Return the name that this part of a file name encodes, or None."""
    if re.fullmatch(rb"::[0-9a-f]{32}", part):
        file = folder / ".kestrel" / "names" / part[2:].decode()
        if not file.exists():
            return None
        name = file.read_bytes()
        return name if hashlib.blake2b(name, digest_size=16).hexdigest().encode() == part[2:] else None
    name, position = b"", 0
    while position < len(part):
        if part[position : position + 1] != b":":
            name += part[position : position + 1]
            position += 1
            continue
        digits = part[position + 1 : position + 3]
        if not re.fullmatch(rb"[0-9a-f]{2}", digits):
            return None
        byte = bytes.fromhex(digits.decode())
        if re.fullmatch(rb"[A-Za-z0-9_-]", byte):
            return None
        name += byte
        position += 3
    return name


def number(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)


def numbers(data: bytes, *sizes: int) -> Iterator[tuple[int, ...]]:
    """Split data into rows of numbers with these sizes in bytes."""
    while data:
        row = []
        for size in sizes:
            row.append(number(data[:size]))
            data = data[size:]
        yield tuple(row)


MOST_BYTES = 16_777_216
LARGEST_ID = 4_611_686_018_427_387_903
ENTRIES = {9: (8,), 10: (8, 4), 11: (8, 8)}


def records_of(contents: bytes, magic: str) -> Iterator[tuple[int, int, bytes, bytes]]:
    """Return command, words, header and data of each record up to the end of the good ones."""
    if contents[:4] != bytes.fromhex(magic):
        return
    position = 4
    while position < len(contents) and contents[position]:
        command, words = contents[position] >> 4, contents[position] & 15
        header = contents[position + 1 : position + 1 + 4 * words]
        least = {0: 2, 8: 6}.get(command, 1 if command > 8 else 0)
        if len(header) < 4 * words or words < least or (command == 8 and words == 7):
            return
        size = number(header[:4]) if command >= 8 else 0
        start = position + 1 + 4 * words
        if not 0 <= size <= MOST_BYTES or start + size > len(contents):
            return
        data = contents[start : start + size]
        if size % sum(ENTRIES.get(command, (1,))):
            return
        ids = [number(header[8:16])] if command == 8 else [number(header[:8])] if command == 0 else []
        if command in (9, 11):
            ids = [each for row in numbers(data, 8) for each in row]
        if command == 14 and size > 8:
            ids = [number(data[:8])]
        if max(ids, default=0) > LARGEST_ID:
            return
        yield command, words, header, data
        position = start + size


def puts_of(files: list[Path]) -> list[Put]:
    """Return the items of a journal in the order of their puts."""
    in_number_order = sorted(files, key=lambda file: int(file.suffix[1:]))
    found = [puts for puts in map(puts_in, in_number_order) if puts]
    found.sort(key=lambda puts: puts[0].item.id)
    kept: list[Put] = []
    last = 0
    for put in (put for puts in found for put in puts):
        if put.item.id > last:
            kept.append(put)
            last = put.item.id
    return kept


def puts_in(file: Path) -> list[Put]:
    """Return the items of a writer file."""
    found = []
    targets = None
    for command, words, header, data in records_of(file.read_bytes(), "27 64 26 03"):
        if command == 8:
            expiry_ms = number(header[24:32]) if words >= 8 else 0
            item = FoundItem(number(header[8:16]), data, number(header[16:24]), expiry_ms, number(header[4:8]))
            found.append(Put(item, targets))
        targets = targets_in(data) if command == 12 else None
    return found


def targets_in(data: bytes) -> tuple[int, set[bytes]] | None:
    if data[:1] not in (b"\0", b"\1"):
        return None
    kind, names, rest = data[0], set(), data[1:]
    while rest:
        name = rest[1 : 1 + rest[0]]
        if len(name) < rest[0]:
            return None
        names.add(name)
        rest = rest[1 + len(name) :]
    return kind, names


def good_part(contents: bytes) -> tuple[bytes, bool]:
    """Return the part of a reader file whose records count, and whether checksums cover it."""
    position, covered, head = 4, 0, 0
    is_odd = False
    for command, words, header, data in records_of(contents, "26 3C 26 03"):
        end = position + 1 + 4 * words + len(data)
        if command == 15:
            if data != zlib.crc32(contents[covered:position]).to_bytes(4, "little"):
                return contents[:covered], covered > 0
            covered = end
        is_odd = is_odd or (position == 4 and command != 0) or command == 13
        if command == 0:
            is_odd = is_odd or number(header[:8]) < head
            head = number(header[:8])
        position = end
    if covered:
        return contents[:covered], True
    return b"" if is_odd else contents, False


def content_of(contents: bytes) -> ReaderContent:
    content = ReaderContent()
    good, content.is_checked = good_part(contents)
    for command, _, header, data in records_of(good, "26 3C 26 03"):
        if command == 0:
            content.head = number(header[:8])
        elif command == 9:
            content.done += [(each, each) for (each,) in numbers(data, 8)]
        elif command == 10:
            content.errors.update({each: count for each, count in numbers(data, 8, 4) if count >= 0})
        elif command == 11:
            content.done += [(first, last) for first, last in numbers(data, 8, 8)]
        elif command == 13:
            content.is_deleted = True
        elif command == 14:
            content.held_id = number(data[:8]) if len(data) > 8 else 0
    lasts = [last for first, last in content.done if first <= last]
    content.last_id = max([content.head, content.held_id, *lasts])
    return content


def items_for(reader: bytes, content: ReaderContent, puts: list[Put]) -> list[FoundItem]:
    """Return the items that this reader still has."""
    found = []
    done = {first for first, last in content.done if first == last}
    ranges = [(first, last) for first, last in content.done if first < last]
    for item, targets in puts:
        if item.id <= content.head or item.id in done or any(first <= item.id <= last for first, last in ranges):
            continue
        if targets is not None and (reader in targets[1]) is (targets[0] == 1):
            continue
        found.append(item._replace(errors=content.errors.get(item.id, item.errors)))
    return found
