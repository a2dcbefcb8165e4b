"""Packing one queue: its files are replaced by one with the same items, after the two are compared."""

from __future__ import annotations

from kestrel.disk.files import Disk
from kestrel.disk.folders import FileNumbers
from kestrel.journal.fileset import (
    JournalFile,
    JournalFileKind,
    QueueFiles,
    current_name,
    files_of,
    rotated_name,
    temporary_name,
)
from kestrel.journal.pack import publish, write_temporary
from kestrel.journal.records import encode_item
from kestrel.journal.writer import JournalWriter
from kestrel.storage.journal.load import load_queue
from kestrel.tools.files.journal_contents import SETTINGS, JournalContents
from kestrel.tools.files.snapshot_files import FileReadResult, ItemsDigest, JournalSnapshot, ProgressReader
from kestrel.tools.formatting import show_queue
from kestrel.tools.progress import Progress
from kestrel.tools.tool_runner import ToolFailed


class JournalInspection:
    """A summary of a queue's files, which shows whether other files hold the same items."""

    def __init__(self, journal: JournalSnapshot, now_ms: int, progress: Progress) -> None:
        """Read all files of the journal. Raise OSError."""
        contents = JournalContents(journal, now_ms, progress)
        contents.replay()
        contents.restart()
        self.files: list[FileReadResult] = contents.files
        self.bytes = contents.size
        self.packed_bytes = contents.packed_bytes
        self.is_packed = self.bytes == self.packed_bytes and [file.kind for file in journal.files] == [
            JournalFileKind.CURRENT
        ]
        """True if the current file is the only one, and it holds nothing but the items."""
        summed = ItemsDigest()
        for item in contents.items():
            summed.add(encode_item(item.data, item.add_ms, item.expiry_ms), len(item.data), item.errors)
        self.items = summed.items
        """Number of items in the queue, with open reads put back."""
        self.digest = summed.digest
        """Digest of the data, add time, expiry and errors of every item, in order."""

    @property
    def damaged(self) -> list[FileReadResult]:
        """Files that do not end after a valid record, including those with an unfinished record."""
        return [read for read in self.files if read.end.problem is not None]


def pack_queue(
    disk: Disk,
    folder: bytes,
    files: QueueFiles,
    before: JournalInspection,
    numbers: FileNumbers,
    now_ms: int,
    progress: Progress,
) -> JournalInspection:
    """Replace the files of a queue, which were inspected as `before`, by one file. Return what the new file holds.

    Repair the files first, as at a start: the new file can then hold other items than `before`. Raise OSError or
    `ToolFailed` if the files were not replaced. The folder must be locked.
    """
    name = files.queue

    def inspected(journal_files: list[JournalFile]) -> JournalInspection:
        with JournalSnapshot(disk, folder, name, journal_files) as journal:
            return JournalInspection(journal, now_ms, progress)

    writer = JournalWriter(disk, folder, name, numbers.next)
    with progress(f"{show_queue(name)}: sorting", before.bytes) as sorting:
        queue = load_queue(
            disk,
            folder,
            files,
            SETTINGS,
            writer,
            now_ms,
            lambda file_name: ProgressReader(disk, folder + b"/" + file_name, sorting),
        )
    if queue.repaired_bytes or queue.disk_bytes != before.bytes:  # they are not the files that were inspected
        before = inspected(files_of(name, disk.list_files(folder)).live_files())
    boundary = queue.boundary()
    replacement = queue.replacement(boundary)
    try:
        replacement.boundary = queue.rotate(boundary)
    finally:
        writer.close()
    number = replacement.boundary.number
    replaced = queue.history.rotated_up_to(number)
    with progress(f"{show_queue(name)}: writing", before.packed_bytes) as writing:
        runs = writing.counted(replacement.runs(disk, folder, replaced), len)
        write_temporary(disk, folder, name, number, runs, replacement.most_bytes(), lambda: False)
    temporary = temporary_name(name, number)
    try:
        after = inspected([JournalFile(name, JournalFileKind.TEMPORARY, number, temporary)])
        sizes = {after.bytes, replacement.size, before.packed_bytes}
        if after.damaged or (after.items, after.digest) != (before.items, before.digest) or len(sizes) > 1:
            raise ToolFailed(
                f"queue {show_queue(name)}: the new file and the old ones differ, so the old ones stay; please report"
                " it"
            )
    except (OSError, ToolFailed):
        disk.erase(folder + b"/" + temporary)
        raise
    for path in publish(disk, folder, name, number, [span.file_name for span in replaced], replacement.size):
        disk.erase(folder + b"/" + path)
    if queue.segments is not None:
        queue.segments.erase()
    if replacement.size:  # the current file is empty: replace it with the packed one
        disk.rename(folder + b"/" + rotated_name(name, number), folder + b"/" + current_name(name))
        disk.sync_folder(folder)
    return after
