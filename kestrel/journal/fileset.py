"""The journal files of a queue: their names, their order, their offsets, and their deletion in one step.

A queue ``work`` has these files:

- ``work`` is the current file.
- ``work.<ms>`` is a rotated file. Rotated files are replayed in the order of their numbers, before the current file.
- ``work~~<ms>`` is a temporary file, which is erased at start.
- ``work.<ms>.pack`` replaces every rotated file up to its own number.
- ``work.<ms>.deleted`` is a deletion mark. The mark and all files with a lower number are ignored.

Other files in the folder are foreign and are not touched.

Paths are bytes, because queue names are. As in the original Kestrel, a byte above 127 of a queue's name is read as
Latin-1 and written as UTF-8.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable
from enum import Enum
from operator import attrgetter
from typing import Final, NamedTuple

from kestrel.disk import crash_points
from kestrel.disk.files import Disk
from kestrel.disk.reader import FileReader
from kestrel.errors import BadQueueName
from kestrel.journal.opcodes import Opcode
from kestrel.names import check_queue_name

PACK_SUFFIX: Final = b".pack"

DELETED_SUFFIX: Final = b".deleted"

MAX_FILE_NAME_BYTES: Final = 230
"""Limit that leaves room for the longest suffix in the 255 bytes of common file systems."""

_NAME: Final = re.compile(rb"([^./~\s\x00-\x1f\x7f]+)(?:(~~)(\d{1,15})|\.(\d{1,15})(\.pack|\.deleted)?)?", re.DOTALL)


class JournalFileKind(Enum):
    """The role of a journal file."""

    CURRENT = "current"
    ROTATED = "rotated"
    PACK = "pack"
    TEMPORARY = "temporary"
    DELETED = "deleted"


class JournalFile(NamedTuple):
    """A parsed file name. `number` is 0 for the current file."""

    queue: bytes
    kind: JournalFileKind
    number: int
    file_name: bytes


def current_name(queue: bytes) -> bytes:
    """Return the name of a queue's current file."""
    return queue.decode("latin-1").encode("utf-8")


def rotated_name(queue: bytes, number: int) -> bytes:
    """Return the name of a rotated file."""
    return b"%b.%d" % (current_name(queue), number)


def pack_name(queue: bytes, number: int) -> bytes:
    """Return the name of a published pack, which replaces all rotated files up to its own number."""
    return rotated_name(queue, number) + PACK_SUFFIX


def deleted_name(queue: bytes, number: int) -> bytes:
    """Return the name of a deletion mark."""
    return rotated_name(queue, number) + DELETED_SUFFIX


def temporary_name(queue: bytes, number: int) -> bytes:
    """Return the name of a temporary file, which is renamed when it is complete."""
    return b"%b~~%d" % (current_name(queue), number)


def parse_file_name(file_name: bytes) -> JournalFile | None:
    """Return the parsed name of a journal file, or None for a foreign file."""
    match = _NAME.fullmatch(file_name)
    if match is None:
        return None
    base, temporary, temporary_number, number, suffix = match.groups()
    try:
        queue = base.decode("utf-8").encode("latin-1")
        check_queue_name(queue)
    except (UnicodeError, BadQueueName):
        return None
    if temporary:
        return JournalFile(queue, JournalFileKind.TEMPORARY, int(temporary_number), file_name)
    if number is None:
        return JournalFile(queue, JournalFileKind.CURRENT, 0, file_name)
    kind = {PACK_SUFFIX: JournalFileKind.PACK, DELETED_SUFFIX: JournalFileKind.DELETED, None: JournalFileKind.ROTATED}[
        suffix
    ]
    return JournalFile(queue, kind, int(number), file_name)


class QueueFiles:
    """The files of one queue in a folder listing. Files that a deletion mark covers are only in `deleted`."""

    def __init__(self, queue: bytes) -> None:
        self.queue = queue
        self.has_current = False
        self.rotated: list[JournalFile] = []
        self.packs: list[JournalFile] = []
        self.temporary: list[JournalFile] = []
        self.deleted: list[JournalFile] = []
        """Files that deletion marks cover, then the marks. They must be erased in this order."""

    def add(self, file: JournalFile) -> None:
        """Add a file of the listing. Call `sort` after the last one."""
        if file.kind is JournalFileKind.CURRENT:
            self.has_current = True
            return
        kinds = {
            JournalFileKind.ROTATED: self.rotated,
            JournalFileKind.PACK: self.packs,
            JournalFileKind.TEMPORARY: self.temporary,
            JournalFileKind.DELETED: self.deleted,
        }
        kinds[file.kind].append(file)

    def sort(self) -> None:
        """Sort the files by number, then by name. Move files that a deletion mark covers to `deleted`."""
        mark = max((file.number for file in self.deleted), default=-1)
        for files in (self.rotated, self.packs, self.temporary):
            files.sort(key=lambda each: (each.number, each.file_name))
            covered = [file for file in files if file.number < mark]
            self.deleted[:0] = covered
            del files[: len(covered)]

    @property
    def has_items(self) -> bool:
        """True if there is a current file, a rotated file or a pack. Temporary files alone are not a queue."""
        return self.has_current or bool(self.rotated or self.packs)

    def numbers(self) -> list[int]:
        """Return the numbers of the rotated files, packs and deleted files."""
        return [file.number for file in (*self.rotated, *self.packs, *self.deleted)]

    def in_replay_order(self) -> list[bytes]:
        """Return the names of the rotated files and of the current file, in the order of replay."""
        names = [file.file_name for file in self.rotated]
        return [*names, current_name(self.queue)] if self.has_current else names

    def replaced_by_pack(self) -> tuple[JournalFile | None, list[JournalFile]]:
        """Return the newest pack, or None, and the rotated files that it replaces."""
        pack = self.packs[-1] if self.packs else None
        return pack, [file for file in self.rotated if pack is not None and file.number <= pack.number]

    def live_files(self) -> list[JournalFile]:
        """Return the valid files by their present names, in the order of replay, including an unfinished pack."""
        pack, replaced = self.replaced_by_pack()
        files = [*([] if pack is None else [pack]), *self.rotated[len(replaced) :]]
        if self.has_current:
            files.append(JournalFile(self.queue, JournalFileKind.CURRENT, 0, current_name(self.queue)))
        return files


def group_by_queue(file_names: list[bytes]) -> dict[bytes, QueueFiles]:
    """Return the journal files of a folder listing, by queue. Foreign files are omitted."""
    queues: dict[bytes, QueueFiles] = {}
    for file_name in file_names:
        file = parse_file_name(file_name)
        if file is not None:
            queues.setdefault(file.queue, QueueFiles(file.queue)).add(file)
    for files in queues.values():
        files.sort()
    return queues


def files_of(queue: bytes, file_names: list[bytes]) -> QueueFiles:
    """Return the files of one queue in a folder listing."""
    prefix = current_name(queue)
    return group_by_queue([name for name in file_names if name.startswith(prefix)]).get(queue, QueueFiles(queue))


def has_journal_files(disk: Disk, folder: bytes, file_names: list[bytes]) -> bool:
    """Return whether one of the files is a queue's current file, by its name and the opcode of its first record."""
    for queue, files in group_by_queue(file_names).items():
        if files.has_current:
            with FileReader(disk, folder + b"/" + current_name(queue)) as reader:
                first = reader.read(0, 1)
            if first and first[0] <= max(Opcode):
                return True
    return False


# Deletion. A restart after a crash replays either all files of a queue or none of them. A pack is valid only together
# with the files after it, because it has an empty item for each item that they remove. So a deletion begins with one
# atomic rename: the newest file becomes a deletion mark. The mark is erased last. A rename needs neither space nor an
# inode, so a queue can be deleted on a full disk.


def mark_deleted(disk: Disk, folder: bytes, queue: bytes, next_number: Callable[[], int]) -> None:
    """Delete all files of a queue in one step, for `erase_deleted` to erase. Its name can be used again at once.

    Raise OSError if the queue is unchanged.
    """
    path = folder + b"/"
    mark = path + deleted_name(queue, next_number())
    try:
        disk.rename(path + current_name(queue), mark)
    except FileNotFoundError:
        live_files = files_of(queue, disk.list_files(folder)).live_files()
        if not live_files:
            return
        disk.rename(path + live_files[-1].file_name, mark)
    disk.crash_point(crash_points.DELETION_MARKED)


def erase_deleted(disk: Disk, folder: bytes, queue: bytes) -> None:
    """Erase the files that deletion marks cover, then the marks. It may take long. The next start can finish it."""
    files = files_of(queue, disk.list_files(folder)).deleted
    if len(files) > 1:
        # The mark must be durable before a file that it covers is erased.
        disk.sync_folder(folder)
    for file in files[:-1]:
        disk.erase(folder + b"/" + file.file_name)
        disk.crash_point(crash_points.THROWN_AWAY)
    if len(files) > 1:
        disk.sync_folder(folder)
    for file in files[-1:]:
        disk.erase(folder + b"/" + file.file_name)


class Span(NamedTuple):
    """A rotated file and its start and end offsets in the history."""

    number: int
    file_name: bytes
    start: int
    end: int


class History:
    """The history of a queue: its journal files as one sequence of bytes, and the mapping of its offsets to them.

    An *offset* counts the bytes of all files of the queue in replay order, including records that are not yet written.
    Offsets remain valid when the current file is rotated. When a shorter file replaces older ones, it ends at the same
    offset as they did, so that later offsets remain valid too.
    """

    def __init__(self, queue: bytes) -> None:
        self._queue = queue
        self.rotated: list[Span] = []
        """Rotated files in replay order."""
        self.rotated_bytes = 0
        """Total size of the rotated files."""
        self.current_start = 0
        """Offset at which the current file begins."""

    def rotate(self, number: int, size: int, file_name: bytes | None = None) -> None:
        """Record that the current file of `size` bytes was rotated to `number`, and that a new one follows it."""
        file_name = file_name or rotated_name(self._queue, number)
        self.rotated.append(Span(number, file_name, self.current_start, self.current_start + size))
        self.current_start += size
        self.rotated_bytes += size

    def replace_up_to(self, number: int, size: int) -> Span:
        """Record that one file of `size` bytes has replaced all rotated files up to `number`, and return its span."""
        replaced = self.rotated_up_to(number)
        self.rotated_bytes += size - sum(span.end - span.start for span in replaced)
        end = replaced[-1].end
        span = Span(number, rotated_name(self._queue, number), end - size, end)
        self.rotated[: len(replaced)] = [span] if size else []
        return span

    def rotated_up_to(self, number: int) -> list[Span]:
        """Return the rotated files with a number up to `number`."""
        return [span for span in self.rotated if span.number <= number]

    def file_at(self, offset: int) -> tuple[bytes, int, int | None]:
        """Return the name, the start and the end of the file that contains `offset`.

        The end of the current file is None, because it grows.
        """
        index = bisect_right(self.rotated, offset, key=attrgetter("end"))
        if index == len(self.rotated):
            return current_name(self._queue), self.current_start, None
        span = self.rotated[index]
        return span.file_name, span.start, span.end
