"""From the journal files of one queue to the queue: replay, repair, and the open reads of the last run."""

from __future__ import annotations

from twisted.logger import Logger

from kestrel.config.model import QueueSettings
from kestrel.disk.files import Disk
from kestrel.journal.fileset import QueueFiles, current_name
from kestrel.journal.pack import clean_up
from kestrel.journal.repair import repair
from kestrel.journal.replay import replay
from kestrel.journal.writer import JournalWriter
from kestrel.storage.journal_queue import JournalQueue

log = Logger()


def load_queue(
    disk: Disk,
    folder: bytes,
    files: QueueFiles,
    settings: QueueSettings,
    writer: JournalWriter,
    now_ms: int,
) -> JournalQueue:
    """Replay all files of a queue; a queue without files is new and empty, and gets its current file.

    Open reads go back to the head, the lowest xid first in line, and are recorded as such. Raises OSError when
    a file cannot be read. May run in a thread.
    """
    clean_up(disk, folder, files)
    queue = JournalQueue(files.queue, settings, writer)
    current = current_name(files.queue)
    is_closed = False
    for file_name in files.in_replay_order():
        contents = disk.map(folder + b"/" + file_name)
        end = replay(contents, queue, now_ms)
        if end.problem is not None:
            copy = repair(disk, folder, file_name, contents, end, now_ms)
            log.warn(
                "Journal file {file!r}: {problem} at offset {offset}; everything from there on was set aside"
                " in {copy!r} and the {count} records before it were kept",
                file=file_name,
                problem=end.problem,
                offset=end.offset,
                copy=copy,
                count=end.records,
            )
        is_closed = end.is_closed and file_name == current
        if file_name != current:
            queue.has_older_files = True
            queue.older_bytes += end.offset
    try:
        writer.open_existing()
        if is_closed:
            writer.set_aside()  # what is appended to a file that a record has closed would not be read
    finally:
        writer.close()
    queue.put_back(queue.open_xids(), failed=False)  # written with the first commit; a crash before does it again
    queue.replayed_items = queue.items
    return queue
