"""From the journal files of one queue to the queue: replay, repair, and the open reads of the last run."""

from __future__ import annotations

import errno

from twisted.logger import Logger

from kestrel.config.model import QueueSettings
from kestrel.disk.files import Disk
from kestrel.disk.reader import FileReader
from kestrel.disk.repair import repair
from kestrel.journal.fileset import QueueFiles, current_name
from kestrel.journal.pack import clean_up
from kestrel.journal.reader import ReplayEnd
from kestrel.journal.replay import replay
from kestrel.journal.writer import JournalWriter
from kestrel.scroll.records import WRITER_MAGIC
from kestrel.storage.journal.queue import JournalQueue
from kestrel.storage.journal.replayed import OpenFile, ReplayedQueue
from kestrel.storage.total_memory import MemoryLimit

log = Logger(__name__)


def load_queue(
    disk: Disk,
    folder: bytes,
    files: QueueFiles,
    settings: QueueSettings,
    writer: JournalWriter,
    now_ms: int,
    open_file: OpenFile | None = None,
    memory: MemoryLimit | None = None,
) -> JournalQueue:
    """Replay all files of a queue; a queue without files is new and empty, and gets its current file.

    Open reads go back to the head, the lowest xid first in line, and are recorded as such. Raises OSError when
    a file cannot be read. May run in a thread. `open_file` opens the files to be replayed; without it they are read
    from the folder.
    """
    clean_up(disk, folder, files)
    queue = JournalQueue(files.queue, settings, writer, memory)
    queue.now_ms = now_ms
    replayed = ReplayedQueue(queue, open_file or (lambda name: FileReader(disk, folder + b"/" + name)))
    is_closed = False
    for file in files.rotated:
        size = _replay_file(replayed, disk, folder, file.file_name).offset
        writer.unsynced_files.append(file.file_name)  # nobody knows
        queue.history.rotate(file.number, size, file.file_name)
        queue.add_boundary(queue.boundary()._replace(number=file.number, end=queue.history.current_start))
    if files.has_current:
        is_closed = _replay_file(replayed, disk, folder, current_name(files.queue)).is_closed
    try:
        writer.open_existing()
        queue.loaded_to(queue.history.current_start + writer.size)
        if is_closed:
            # Records behind the one that closes a file would not be read.
            queue.rotate(queue.boundary(), begins_file=False)
    finally:
        writer.close()
    queue.put_back(queue.open_xids(), failed=False)  # written with the first commit; a crash before does it again
    queue.replayed_items = queue.items
    return queue


def _replay_file(replayed: ReplayedQueue, disk: Disk, folder: bytes, file_name: bytes) -> ReplayEnd:
    queue = replayed.queue
    replayed.file_name = file_name
    with replayed.open_file(file_name) as reader:
        end = replay(reader, replayed, queue.now_ms, queue.history.current_start)
        is_scroll = reader.read(0, len(WRITER_MAGIC)) == WRITER_MAGIC
    if end.problem is not None:
        if not end.offset and is_scroll:
            raise OSError(errno.EINVAL, "its file is one of a scroll (--storage scroll:FOLDER)")
        repaired = repair(disk, folder, file_name, end, queue.now_ms)
        queue.repaired_bytes += repaired.size
        log.warn(
            "Journal file {file!r}: {problem} at offset {offset}; the {size} bytes from there on were set aside in"
            " {copy!r} and the {count} records before it were kept",
            file=file_name,
            problem=end.problem,
            offset=end.offset,
            size=repaired.size,
            copy=repaired.copy,
            count=end.records,
        )
    return end
