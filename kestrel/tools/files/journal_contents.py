"""Contents of one queue's journal files: the records, and the queue after their replay. Nothing is written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kestrel.config.model import QueueSettings
from kestrel.item import Item
from kestrel.journal.cursor import JournalCursor
from kestrel.journal.records import ADDX_HEADER_BYTES, JournalFileRecord
from kestrel.journal.replay import replay, replay_record
from kestrel.journal.rewrite import ERRORS_BYTES
from kestrel.journal.writer import JournalWriter
from kestrel.storage.journal.load import QueueReplayTarget
from kestrel.storage.journal.queue import JournalQueue
from kestrel.tools.files.snapshot_files import FileReadResult, JournalSnapshot
from kestrel.tools.formatting import show_queue
from kestrel.tools.progress import Progress

SETTINGS: Final = QueueSettings(max_memory_size_bytes=8 * 1024 * 1024)
"""Settings that bound the memory of a replayed queue: this size, its open reads, and one item."""


class JournalContents:
    """The queue that the files of a `JournalSnapshot` hold.

    `now_ms` is the add time of items whose record has none. Read the files once, with `records` or `replay`, then
    the remaining items once, with `items`. All methods may raise OSError.
    """

    def __init__(
        self,
        journal: JournalSnapshot,
        now_ms: int,
        progress: Progress,
        settings: QueueSettings = SETTINGS,
    ) -> None:
        self.files: list[FileReadResult] = []
        self._journal = journal
        self._progress = progress
        self._shown = show_queue(journal.queue)
        self._now_ms = now_ms
        writer = JournalWriter(journal.disk, journal.folder, journal.queue, lambda: 0)  # opens nothing by itself
        self._queue = JournalQueue(journal.queue, settings, writer)
        self._queue.now_ms = now_ms
        self._replayed = QueueReplayTarget(self._queue, journal.open_file)

    @property
    def size(self) -> int:
        return self._journal.size

    def records(self, *, apply_records: bool = True) -> Iterator[tuple[FileReadResult, int, JournalFileRecord]]:
        """Yield every record with its file and offset. Apply it to the queue first if `apply_records`."""
        for read in self._files():
            cursor = JournalCursor(self._journal.readers[read.file_name])
            read.end = cursor.end
            start = self._queue.history.current_start
            for offset, record in cursor.records():
                read.records[record.name] += 1
                if apply_records:
                    replay_record(record, self._replayed, self._now_ms, start + offset)
                yield read, offset, record

    def replay(self) -> None:
        """Apply all records to the queue. This is faster than `records`."""
        for read in self._files():
            reader = self._journal.readers[read.file_name]
            read.end = replay(reader, self._replayed, self._now_ms, self._queue.history.current_start)

    def _files(self) -> Iterator[FileReadResult]:
        with self._progress(f"{self._shown}: reading", self.size) as progress:
            self._journal.watch(progress)
            number = 0
            for file in self._journal.files:
                if self.files:
                    last = self.files[-1]
                    self._queue.history.rotate(number, last.end.offset, last.file_name)
                number = file.number
                self._replayed.file_name = file.file_name
                self.files.append(FileReadResult(file.file_name, self._journal.readers[file.file_name].size))
                yield self.files[-1]
            self._journal.watch(None)

    def restart(self) -> None:
        """Put open reads back at the head, the lowest xid first, as a server start does."""
        self._queue.put_back(self._queue.open_xids(), failed=False)

    @property
    def open_reads(self) -> int:
        return self._queue.open_reads

    @property
    def items_count(self) -> int:
        return self._queue.items

    @property
    def data_bytes(self) -> int:
        """Total data size of the items and the open reads."""
        return self._queue.bytes + self._queue.open_bytes

    @property
    def packed_bytes(self) -> int:
        """Size of a packed journal file that holds the items with their errors, after the open reads are put back."""
        headers = (self.items_count + self.open_reads) * ADDX_HEADER_BYTES
        return self.data_bytes + headers + self._queue.front_to_last_with_errors * ERRORS_BYTES

    def items(self) -> Iterator[Item]:
        """Remove and yield all items in order, after putting the open reads back at the head."""
        self.restart()
        with self._progress(f"{self._shown}: reading the remaining items", self.data_bytes) as progress:
            while (item := self._replayed.pop_head()) is not None:
                progress.advance(len(item.data))
                yield item
