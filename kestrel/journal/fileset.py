"""The names of journal files: which file belongs to which queue, and in which order they are replayed.

A queue ``work`` has ``work`` (the current file), ``work.<ms>`` (rotated, replayed in number order before
it), ``work~~<ms>`` (temporary, erased at start), ``work.<ms>.pack`` (replaces every rotated file numbered
up to its own) and ``work.<ms>.deleted`` (a deletion mark: files with a lower number do not count, nor does the mark).
Everything else in the folder is foreign and left alone.

Paths are bytes, because queue names are. A name byte above 127 stands in the file name as Kestrel writes it:
the byte read as Latin-1, written as UTF-8.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final, NamedTuple

from kestrel.disk.files import Disk
from kestrel.disk.reader import FileReader
from kestrel.errors import BadQueueName
from kestrel.journal.opcodes import Opcode
from kestrel.names import check_queue_name

PACK_SUFFIX: Final = b".pack"

DELETED_SUFFIX: Final = b".deleted"

MAX_FILE_NAME_BYTES: Final = 230
"""So that the longest suffix still fits the 255 bytes of common file systems."""

_NAME: Final = re.compile(rb"([^./~\s\x00-\x1f\x7f]+)(?:(~~)(\d{1,15})|\.(\d{1,15})(\.pack|\.deleted)?)?", re.DOTALL)


class JournalFileKind(Enum):
    """What a journal file is to its queue."""

    CURRENT = "current"
    ROTATED = "rotated"
    PACK = "pack"
    TEMPORARY = "temporary"
    DELETED = "deleted"


class JournalFile(NamedTuple):
    """One file's name, understood. `number` is 0 for the current file."""

    queue: bytes
    kind: JournalFileKind
    number: int
    file_name: bytes


def current_name(queue: bytes) -> bytes:
    """The file name of a queue's current file."""
    return queue.decode("latin-1").encode("utf-8")


def rotated_name(queue: bytes, number: int) -> bytes:
    """The file name of a rotated file."""
    return b"%b.%d" % (current_name(queue), number)


def pack_name(queue: bytes, number: int) -> bytes:
    """The file name of a rotated file while it stands for all that are numbered up to its own."""
    return rotated_name(queue, number) + PACK_SUFFIX


def deleted_name(queue: bytes, number: int) -> bytes:
    """Return the file name of a deletion mark."""
    return rotated_name(queue, number) + DELETED_SUFFIX


def temporary_name(queue: bytes, number: int) -> bytes:
    """The file name of a file that is being written and will be renamed when it is whole."""
    return b"%b~~%d" % (current_name(queue), number)


def parse_file_name(file_name: bytes) -> JournalFile | None:
    """Which queue's file that is, or None for a foreign one."""
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
    """All files of one queue in a folder listing; those that a deletion mark covers are only in `deleted`."""

    def __init__(self, queue: bytes) -> None:
        self.queue = queue
        self.has_current = False
        self.rotated: list[JournalFile] = []
        self.packs: list[JournalFile] = []
        self.temporary: list[JournalFile] = []
        self.deleted: list[JournalFile] = []
        """Deletion marks and the files that they cover, in the order in which to erase them: marks last."""

    def add(self, file: JournalFile) -> None:
        """Take one more file of the listing in; `sort` when all are there."""
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
        """Put rotated files and packs in number order; of two spellings of one number, that with more zeros first."""
        mark = max((file.number for file in self.deleted), default=-1)
        for files in (self.rotated, self.packs, self.temporary):
            files.sort(key=lambda each: (each.number, each.file_name))
            covered = [file for file in files if file.number < mark]
            self.deleted[:0] = covered
            del files[: len(covered)]

    @property
    def has_items(self) -> bool:
        """Whether there is more than temporary files, which are no queue."""
        return self.has_current or bool(self.rotated or self.packs)

    def numbers(self) -> list[int]:
        """Return the numbers of its rotated files, packs, and deleted files."""
        return [file.number for file in (*self.rotated, *self.packs, *self.deleted)]

    def in_replay_order(self) -> list[bytes]:
        """The file names to replay one after the other."""
        names = [file.file_name for file in self.rotated]
        return [*names, current_name(self.queue)] if self.has_current else names

    def replaced_by_pack(self) -> tuple[JournalFile | None, list[JournalFile]]:
        """The newest pack, if there is one, and the rotated files whose place it takes."""
        pack = self.packs[-1] if self.packs else None
        return pack, [file for file in self.rotated if pack is not None and file.number <= pack.number]

    def live_files(self) -> list[JournalFile]:
        """The files that count, in replay order, as they are called now, though an unfinished pack be among them."""
        pack, replaced = self.replaced_by_pack()
        files = [*([] if pack is None else [pack]), *self.rotated[len(replaced) :]]
        if self.has_current:
            files.append(JournalFile(self.queue, JournalFileKind.CURRENT, 0, current_name(self.queue)))
        return files


def group_by_queue(file_names: list[bytes]) -> dict[bytes, QueueFiles]:
    """The journal files of a folder listing, by queue; foreign files are left out."""
    queues: dict[bytes, QueueFiles] = {}
    for file_name in file_names:
        file = parse_file_name(file_name)
        if file is not None:
            queues.setdefault(file.queue, QueueFiles(file.queue)).add(file)
    for files in queues.values():
        files.sort()
    return queues


def files_of(queue: bytes, file_names: list[bytes]) -> QueueFiles:
    """Those of one queue in a folder listing."""
    prefix = current_name(queue)
    return group_by_queue([name for name in file_names if name.startswith(prefix)]).get(queue, QueueFiles(queue))


def has_journal_files(disk: Disk, folder: bytes, file_names: list[bytes]) -> bool:
    """Whether one of these files of a folder is the current file of a queue, by its name and its first record."""
    for queue, files in group_by_queue(file_names).items():
        if files.has_current:
            with FileReader(disk, folder + b"/" + current_name(queue)) as reader:
                first = reader.read(0, 1)
            if first and first[0] <= max(Opcode):
                return True
    return False
