"""The index of an archive stream: the files that the stream has seen, in the order in which it saw them.

The index is an append-only file of JSON lines. The first line has the format and an id. Each further line is a file, or
the part that a file has grown by. So a stream position is a number of lines, whatever happens to the archive. Lines are
made durable before they are used, and a lock lets one process append at a time.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from sys import intern
from typing import Any, Final, NamedTuple
from uuid import uuid4

from kestrel.disk.files import Disk
from kestrel.spark.options import SourceFailed
from kestrel.tools.formatting import show_path

_FORMAT: Final = "kestrel arrivals 1"

_HEAD_BYTES: Final = 1024
"""Upper bound of the length of the first line."""


class Arrival(NamedTuple):
    """An archived file, or the part that a known file has grown by."""

    server: str
    folder: bytes
    """An absolute path."""
    file_name: bytes
    start: int
    """Offset of the first byte that was not read before."""
    size: int
    sample: bytes | None
    """Digest as in `kestrel.spark.table.planned_file.PlannedFile`."""


Append = Callable[[Iterable[Arrival]], None]


class Arrivals:
    """The index in memory. `locked` and `catch_up` read the lines that other processes have appended."""

    def __init__(self, path: str) -> None:
        self._disk = Disk()
        self._path = os.fsencode(path)
        self._good = 0
        self._latest: dict[tuple[bytes, bytes], Arrival] = {}
        self.id = ""
        self.files: list[Arrival] = []

    def __len__(self) -> int:
        return len(self.files)

    def known(self, folder: bytes, file_name: bytes) -> Arrival | None:
        """Return the latest entry of that file name, also if the folder was reached through a link."""
        return self._latest.get((_real(folder), file_name))

    def catch_up(self) -> None:
        """Read the lines that other processes have appended; make the index if needed.

        Raises `SourceFailed` or OSError.
        """
        with self.locked():
            pass

    @contextmanager
    def locked(self) -> Iterator[Append]:
        """Lock the index, catch up, and yield a function that appends entries durably.

        This and the function raise `SourceFailed` or OSError; a failed call appends nothing.
        """
        descriptor = self._disk.open_append(self._path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            self._catch_up(descriptor)
            yield lambda arrivals: self._append(descriptor, [_line(each) for each in arrivals])
        finally:
            self._disk.close(descriptor)

    def _catch_up(self, descriptor: int) -> None:
        disk = self._disk
        head, newline, _ = disk.read(descriptor, 0, _HEAD_BYTES).partition(b"\n")
        if not newline and disk.size(descriptor) < _HEAD_BYTES and _FORMAT.startswith(_beginning(head)):
            disk.cut(descriptor, 0)  # a process ended while it made the index
            self._write(descriptor, [json.dumps([_FORMAT, uuid4().hex])])
            disk.sync_folder(os.path.dirname(self._path))
            head = disk.read(descriptor, 0, _HEAD_BYTES).partition(b"\n")[0]
        index_id = _id_in(head)
        size = disk.size(descriptor)
        if index_id is None:
            raise SourceFailed(f"{self._shown} is not an archive stream's index: name another file")
        if self.id not in ("", index_id) or size < self._good:
            raise SourceFailed(f"the index {self._shown} was replaced while the stream ran: restore the old index")
        self.id = index_id
        start = self._good or len(head) + 1
        text = disk.read(descriptor, start, size - start)
        whole = text[: text.rfind(b"\n") + 1]
        if len(whole) < len(text):
            disk.cut(descriptor, start + len(whole))  # a process ended during the append, so the line was never used
        self._take(whole)
        self._good = start + len(whole)

    def _take(self, lines: bytes) -> None:
        for number, line in enumerate(lines.splitlines(), len(self.files) + 2):
            arrival = _arrival_in(line)
            if arrival is None:
                raise SourceFailed(
                    f"line {number} of the index {self._shown} is damaged: restore a copy, or start with a new"
                    " checkpoint and a new index, which reads the whole archive again"
                )
            self.files.append(arrival)
            self._latest[_real(arrival.folder), arrival.file_name] = arrival

    def _append(self, descriptor: int, lines: list[str]) -> None:
        if lines:
            self._take(self._write(descriptor, lines))
            self._good = self._disk.size(descriptor)

    def _write(self, descriptor: int, lines: list[str]) -> bytes:
        disk = self._disk
        size = disk.size(descriptor)
        data = "".join(line + "\n" for line in lines).encode("ascii")
        try:
            disk.write(descriptor, data)
            disk.sync(descriptor)
        except OSError:
            with suppress(OSError):
                disk.cut(descriptor, size)
            raise
        return data

    @property
    def _shown(self) -> str:
        return show_path(self._path)


@cache
def _real(folder: bytes) -> bytes:
    return os.path.realpath(folder)


_folder = cache(os.fsencode)
"""Cached encoder, so that all files of a folder share one object."""


def _beginning(head: bytes) -> str:
    """Return the part of the format's name in a truncated first line."""
    return head.decode("latin-1").removeprefix("[").removeprefix('"')[: len(_FORMAT)]


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _id_in(head: bytes) -> str | None:
    match _parsed(head):
        case [str(form), str(index_id)] if form == _FORMAT and index_id:
            return index_id
    return None


def _line(arrival: Arrival) -> str:
    folder, name = os.fsdecode(arrival.folder), os.fsdecode(arrival.file_name)
    sample = None if arrival.sample is None else arrival.sample.hex()
    return json.dumps([arrival.server, folder, name, arrival.start, arrival.size, sample])


def _arrival_in(line: bytes) -> Arrival | None:
    match _parsed(line):
        case [str(server), str(folder), str(name), int(start), int(size), None | str() as sample] if 0 <= start <= size:
            try:
                known = None if sample is None else bytes.fromhex(sample)
                return Arrival(intern(server), _folder(folder), os.fsencode(name), start, size, known)
            except ValueError:
                return None
    return None
