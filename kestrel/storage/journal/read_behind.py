"""Read-behind: items of a queue that are only in its journal are read into its window."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kestrel.disk.reader import FileReader
from kestrel.journal.item_reader import DamagedJournalFile, JournalItemsRead, read_items
from kestrel.storage.folder_resources import FolderResources
from kestrel.storage.journal.queue import JournalQueue
from kestrel.storage.journal.rewriter import JournalRewriter
from kestrel.storage.log.read_ahead import ReadAhead


class JournalReadBehind(ReadAhead):
    """The reader of one queue's items that are only on disk."""

    _queue: JournalQueue

    def __init__(
        self,
        queue: JournalQueue,
        resources: FolderResources,
        rewriter: JournalRewriter,
        fail_next_commit: Callable[[Exception], None],
    ) -> None:
        super().__init__(queue, resources)
        self._rewriter = rewriter
        self._fail_next_commit = fail_next_commit
        queue.read_more = self.read_more

    def read_ahead(self) -> None:
        """Read the next items, before a client needs them, if half of the memory is free."""
        queue = self._queue
        if queue.behind_items and queue.room_bytes and 2 * queue.mem_bytes <= queue.settings.max_memory_size_bytes:
            self._begin_read()

    async def _next_read(self) -> Callable[[], JournalItemsRead] | None:
        queue, resources = self._queue, self._resources
        await self._rewriter.published()
        if queue.failure is not None or not queue.behind_items or queue.behind_offset >= queue.written_end:
            return None
        name, start, end = queue.history.file_at(queue.behind_offset)
        reader = FileReader(resources.disk, resources.folder + b"/" + name)
        end = queue.written_end if end is None else end
        span = start, queue.behind_offset, end, queue.behind_skip
        return partial(_read, reader, *span, queue.behind_items, queue.room_bytes, queue.now_ms)

    def _failed(self, error: Exception) -> None:
        if isinstance(error, DamagedJournalFile):
            # The queue is then replayed, which repairs the file.
            self._fail_next_commit(error)


def _read(reader: FileReader, *args: int) -> JournalItemsRead:
    with reader:
        return read_items(reader, *args)
