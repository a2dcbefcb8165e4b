"""Read-behind: items that are only on disk are read into memory, in a thread and if possible before they are needed."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from kestrel.disk.reader import FileReader
from kestrel.errors import QueueFailed
from kestrel.journal.item_reader import DamagedJournalFile, JournalItemsRead, read_items
from kestrel.storage.failures import error_of, reason_of
from kestrel.storage.folder_resources import FolderResources
from kestrel.storage.journal.queue import JournalQueue
from kestrel.storage.journal.rewriter import JournalRewriter


class JournalReadBehind:
    """The reader of one queue's items that are only on disk. It reads one part at a time."""

    def __init__(
        self,
        queue: JournalQueue,
        resources: FolderResources,
        rewriter: JournalRewriter,
        fail_next_commit: Callable[[Exception], None],
    ) -> None:
        self._queue = queue
        self._resources = resources
        self._rewriter = rewriter
        self._fail_next_commit = fail_next_commit
        self._is_reading = False
        self._waiting: list[Deferred[None]] = []

    def read_more(self) -> Deferred[None]:
        """Read the next part. Return a Deferred that fires when it is read, or fails with `QueueFailed`."""
        done: Deferred[None] = Deferred()
        self._waiting.append(done)
        self._begin_read()
        return done

    def read_ahead(self) -> None:
        """Read the next part, before a client needs it, if half of the memory is free."""
        queue = self._queue
        if queue.behind_items and queue.room_bytes and 2 * queue.mem_bytes <= queue.settings.max_memory_size_bytes:
            self._begin_read()

    def _begin_read(self) -> None:
        if not self._is_reading:
            self._is_reading = True
            Deferred.fromCoroutine(self._read()).addCallbacks(self._read_succeeded, self._read_failed)

    async def _read(self) -> None:
        """Read the next part in a thread, and append its items to the window. Discard them if they are out of date."""
        queue, resources = self._queue, self._resources
        await resources.read_slots.acquire()
        try:
            await self._rewriter.published()
            if queue.failure is not None or not queue.behind_items or queue.behind_offset >= queue.written_end:
                return
            generation, began_s = queue.behind_generation, resources.jobs.seconds()
            read = await resources.jobs.run(self._read_part, *self._open_part())
            resources.record_duration(queue.name, "fill_readbehind_usec", began_s)
            if queue.behind_generation == generation:
                queue.append_read_items(read)
                queue.report_memory()
        finally:
            resources.read_slots.release()

    def _open_part(self) -> tuple[FileReader, int, int, int, int, int, int, int]:
        """Open the file with the next item behind the window. Return the arguments of `read_items`."""
        queue, resources = self._queue, self._resources
        name, start, end = queue.history.file_at(queue.behind_offset)
        reader = FileReader(resources.disk, resources.folder + b"/" + name)
        end = queue.written_end if end is None else end
        room_bytes = queue.room_bytes
        return reader, start, queue.behind_offset, end, queue.behind_skip, queue.behind_items, room_bytes, queue.now_ms

    @staticmethod
    def _read_part(reader: FileReader, *args: int) -> JournalItemsRead:
        with reader:
            return read_items(reader, *args)

    def _read_succeeded(self, _: object) -> None:
        self._is_reading = False
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done.callback(None)

    def _read_failed(self, failure: Failure) -> None:
        self._is_reading = False
        waiting, self._waiting = self._waiting, []
        if failure.check(DamagedJournalFile):
            # The queue is then replayed, which repairs the file.
            self._fail_next_commit(error_of(failure))
        error = QueueFailed(f"the head cannot be read: {reason_of(error_of(failure))}")
        for done in waiting:
            done.errback(error)
