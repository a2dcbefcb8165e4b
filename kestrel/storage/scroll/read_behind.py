"""Read-behind of a scroll queue: items after its window are read in a thread, if possible before they are needed."""

from __future__ import annotations

import errno

from twisted.internet.defer import Deferred, fail
from twisted.python.failure import Failure

from kestrel.errors import QueueFailed
from kestrel.scroll.item_reader import DamagedScrollFile, ScrollItemsRead, read_items
from kestrel.scroll.writer_file import WriterFile
from kestrel.storage.failures import error_of, reason_of
from kestrel.storage.scroll.journal import ScrollJournal
from kestrel.storage.scroll.queue import WINDOW_BYTES, WINDOW_ITEMS, ScrollQueue
from kestrel.storage.scroll.scroll_resources import ScrollResources


class ScrollReadBehind:
    """The read-behind of one queue. It makes one read at a time."""

    def __init__(self, queue: ScrollQueue, journal: ScrollJournal, resources: ScrollResources) -> None:
        self._queue = queue
        self._journal = journal
        self._resources = resources
        self._is_reading = False
        self._waiting: list[Deferred[None]] = []
        queue.read_more = self.read_more

    def read_more(self) -> Deferred[None] | None:
        """Bring the next items into the window.

        Return None if they came from memory. Otherwise return a Deferred that fires when a read is done, or fails with
        `QueueFailed`.
        """
        if self._is_next_unwritten:
            self._journal.fill_from_pending(self._queue)
            return self._check_count()
        done: Deferred[None] = Deferred()
        self._waiting.append(done)
        self._begin()
        return done

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
            self._begin()

    def _begin(self) -> None:
        """Start a read, unless one is running."""
        if not self._is_reading:
            self._is_reading = True
            Deferred.fromCoroutine(self._read()).addCallbacks(self._done, self._failed)

    async def _read(self) -> None:
        queue, resources = self._queue, self._resources
        await resources.read_slots.acquire()
        file, generation = None, queue.generation
        try:
            if queue.failure is not None or not queue.behind_items:
                return
            queue.next_id, last_id = queue.done.hole(queue.next_id)
            file = self._journal.file_with(queue.next_id)
            if file is None:
                return  # the next item is not written yet, so it is in memory
            offset = file.before(queue.next_id).offset
            if queue.file_position[0] == file.file_name:
                offset = max(offset, queue.file_position[1])
            most_items = max(1, WINDOW_ITEMS - queue.mem_items)
            if last_id is not None:
                most_items = min(most_items, last_id - queue.next_id + 1)
            span = offset, file.size, queue.next_id
            room = most_items, queue.room_bytes
            began_s = resources.jobs.seconds()
            read = await resources.jobs.run(self._read_part, file.file_name, file.last_id, *span, *room)
            resources.record_duration(queue.name, "fill_readbehind_usec", began_s)
            if queue.generation == generation:
                self._take(file, read)
        except OSError as error:
            if queue.generation != generation:
                return  # the items have been dropped, and perhaps their file was erased
            if isinstance(error, DamagedScrollFile) and file is not None:
                self._journal.mark_untrusted(file)
            raise
        finally:
            resources.read_slots.release()

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

    def _take(self, file: WriterFile, read: ScrollItemsRead) -> None:
        """Append the items of a read to the queue's window."""
        queue = self._queue
        queue.file_position = file.file_name, read.offset
        queue.append_read_items(read)
        queue.report_memory()

    def _done(self, _: object) -> None:
        self._is_reading = False
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done.callback(None)

    def _failed(self, failure: Failure) -> None:
        self._is_reading = False
        waiting, self._waiting = self._waiting, []
        error = QueueFailed(f"the head cannot be read: {reason_of(error_of(failure))}")
        # A failed read-ahead has no caller. The next get repeats the read and reports the error.
        if failure.check(DamagedScrollFile) and self._queue.failure is None and waiting:
            self._resources.kill(self._journal, error_of(failure))  # reopening repairs the file
        for done in waiting:
            done.errback(error)
