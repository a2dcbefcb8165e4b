"""Read-behind of a scroll queue: items after its window are read from the journal's files."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial

from twisted.internet.defer import Deferred, fail

from kestrel.scroll.item_reader import DamagedScrollFile, ScrollItemsRead, read_items
from kestrel.scroll.writer_file import WriterFile
from kestrel.storage.folder_resources import FolderResources
from kestrel.storage.log.read_ahead import ReadAhead
from kestrel.storage.scroll.journal import ScrollJournal
from kestrel.storage.scroll.queue import WINDOW_BYTES, WINDOW_ITEMS, ScrollQueue


class ScrollReadBehind(ReadAhead):
    """The reader of one queue's items that are only in its journal."""

    _queue: ScrollQueue

    def __init__(self, queue: ScrollQueue, journal: ScrollJournal, resources: FolderResources) -> None:
        super().__init__(queue, resources)
        self._journal = journal
        self._file: WriterFile | None = None
        """File of the read that runs, or was the last."""

    def read_more(self) -> Deferred[None] | None:
        """Bring the next items into the window.

        Return None if they came from memory. Otherwise return a Deferred that fires when a read is done, or fails with
        `QueueFailed`.
        """
        if not self._is_next_unwritten:
            return super().read_more()
        self._journal.fill_from_pending(self._queue)
        return self._check_count()

    @property
    def _is_next_unwritten(self) -> bool:
        """True if the next item is not yet written to a file."""
        return self._journal.file_with(self._queue.next_id) is None

    def _check_count(self) -> Deferred[None] | None:
        """Return None, or fail the journal if the queue counts items that neither its files nor memory contain.

        All files of a failed journal are indexed again when it is reopened.
        """
        if self._queue.has_head or not self._queue.behind_items:
            return None
        for file in self._journal.files:
            self._journal.mark_untrusted(file)
        return fail(self._resources.kill(self._journal, DamagedScrollFile(errno.EIO, "its files lack items")))

    def read_ahead(self) -> None:
        """Start a read if at least half of the window is empty."""
        queue = self._queue
        is_low = 2 * queue.mem_bytes <= WINDOW_BYTES and 2 * queue.mem_items <= WINDOW_ITEMS
        if queue.behind_items and is_low and queue.has_room and not self._is_next_unwritten:
            self._begin_read()

    async def _next_read(self) -> Callable[[], ScrollItemsRead] | None:
        queue = self._queue
        if queue.failure is not None or not queue.behind_items:
            return None
        queue.next_id, last_id = queue.done.hole(queue.next_id)
        file = self._file = self._journal.file_with(queue.next_id)
        if file is None:
            return None  # the next item is not written yet, so it is in memory
        offset = file.before(queue.next_id).offset
        if queue.file_position[0] == file.file_name:
            offset = max(offset, queue.file_position[1])
        queue.file_position = file.file_name, offset
        most_items = max(1, WINDOW_ITEMS - queue.mem_items)
        if last_id is not None:
            most_items = min(most_items, last_id - queue.next_id + 1)
        span = offset, file.size, queue.next_id
        return partial(self._read_part, file.file_name, file.last_id, *span, most_items, queue.room_bytes)

    def _read_part(
        self, file_name: bytes, last_id: int, offset: int, end: int, first_id: int, *room: int
    ) -> ScrollItemsRead:
        """Read items from a file, which may grow meanwhile. Runs in a thread.

        Raise `DamagedScrollFile` if the file does not contain the ids that its index promises.
        """
        with self._journal.open_file(file_name) as reader:
            read = read_items(reader, offset, end, first_id, self._queue.reader, *room)
        if read.next_id > last_id + 1 or (not read.records and read.next_id <= last_id):
            raise DamagedScrollFile(errno.EIO, "the journal file is damaged")
        return read

    def _failed(self, error: Exception) -> None:
        if not isinstance(error, DamagedScrollFile):
            return
        if self._file is not None:
            self._journal.mark_untrusted(self._file)
        # A failed read-ahead has no caller. The next get repeats the read and reports the error.
        if self._waiting and self._queue.failure is None:
            self._resources.kill(self._journal, error)  # reopening repairs the file
