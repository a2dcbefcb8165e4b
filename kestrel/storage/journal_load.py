"""From the journal files of one queue to the queue: replay, repair, and the open reads of the last run."""

from __future__ import annotations

from twisted.logger import Logger

from kestrel.config.model import QueueSettings
from kestrel.disk.files import Disk
from kestrel.item import Item
from kestrel.journal.fileset import QueueFiles, current_name
from kestrel.journal.forward import read_items
from kestrel.journal.pack import clean_up
from kestrel.journal.reader import JournalReader, ReplayEnd
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
    queue.now_ms = now_ms
    replayed = _Replayed(queue, disk, folder)
    is_closed = False
    for file in files.rotated:
        size = _replay_file(replayed, file.file_name).offset
        writer.unsynced_files.append(file.file_name)  # nobody knows
        queue.history.rotate(file.number, size, file.file_name)
        queue.add_boundary(queue.boundary()._replace(number=file.number, end=queue.history.current_start))
    if files.has_current:
        is_closed = _replay_file(replayed, current_name(files.queue)).is_closed
    try:
        writer.open_existing()
        queue.loaded_to(queue.history.current_start + writer.size)
        if is_closed:
            queue.rotate(queue.boundary())  # what is appended to a file that a record has closed would not be read
    finally:
        writer.close()
    queue.put_back(queue.open_xids(), failed=False)  # written with the first commit; a crash before does it again
    queue.replayed_items = queue.items
    return queue


def _replay_file(replayed: _Replayed, file_name: bytes) -> ReplayEnd:
    queue, disk, folder = replayed.queue, replayed.disk, replayed.folder
    replayed.file_name = file_name
    with JournalReader(disk, folder + b"/" + file_name) as reader:
        end = replay(reader, replayed, queue.now_ms, queue.history.current_start)
    if end.problem is not None:
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


class _Replayed:
    """A queue that records are done to (`kestrel.journal.replay.Replayed`): it reads on by itself when its window is
    empty and the head on disk alone."""

    def __init__(self, queue: JournalQueue, disk: Disk, folder: bytes) -> None:
        self.queue = queue
        self.disk = disk
        self.folder = folder
        self.file_name = b""
        """Of the file that is being replayed."""
        self.append = queue.append
        self.extend = queue.extend
        self.next_xid = queue.next_xid
        self.open_as = queue.open_as
        self.finish = queue.finish
        self.push_back = queue.push_back

    @property
    def last_xid(self) -> int:
        """The xid that was used last."""
        return self.queue.last_xid

    @last_xid.setter
    def last_xid(self, xid: int) -> None:
        self.queue.last_xid = xid

    def drop_head(self) -> None:
        """The head, if there is one, leaves the queue for good."""
        queue = self.queue
        if queue.behind_items and not queue.mem_items:
            self._read_on()
        queue.drop_head()

    def pop_head(self) -> Item | None:
        """The head leaves the queue."""
        if self.queue.behind_items and not self.queue.mem_items:
            self._read_on()
        return self.queue.pop_head()

    def xid_is_counted(self) -> None:
        """What follows cannot be told from the items alone: no file before it may be replaced without those after."""
        self.queue.boundaries.clear()

    def _read_on(self) -> None:
        queue = self.queue
        while not queue.mem_items:
            name, start, end = queue.history.file_at(queue.behind_offset)
            path = self.folder + b"/" + (self.file_name if end is None else name)
            with JournalReader(self.disk, path) as reader:
                read = read_items(
                    reader,
                    start,
                    queue.behind_offset,
                    start + reader.size if end is None else end,
                    queue.behind_skip,
                    queue.behind_items,
                    queue.room_bytes,
                    queue.now_ms,
                )
            queue.take_forward(read)
