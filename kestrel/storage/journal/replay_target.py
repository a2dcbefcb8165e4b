"""The target of a journal replay: a queue that reads items back from its files when the replay needs them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeAlias

from kestrel.disk.reader import FileReader
from kestrel.item import Item
from kestrel.journal.item_reader import read_items
from kestrel.storage.journal.queue import JournalQueue

OpenFile: TypeAlias = Callable[[bytes], AbstractContextManager[FileReader]]
"""Function that returns a context manager with a reader of the journal file of that name. Raises OSError."""


class QueueReplayTarget:
    """A queue that a replay rebuilds (`kestrel.journal.replay.ReplayTarget`).

    It reads items from the files when its window is empty and the head is only on disk. So the memory of a replay is
    limited to the window and the open reads, whatever the size of the files.
    """

    def __init__(self, queue: JournalQueue, open_file: OpenFile) -> None:
        self.queue = queue
        self.open_file = open_file
        self.file_name = b""
        """Name of the file that is being replayed."""
        self.counts_xids = False
        """True if a record of an open read had no xid, so that earlier records determine it."""
        self.append = queue.append
        self.extend = queue.extend
        self.next_xid = queue.next_xid
        self.open_as = queue.open_as
        self.finish = queue.finish
        self.push_back = queue.push_back

    @property
    def last_xid(self) -> int:
        """Xid of the read that was opened last."""
        return self.queue.last_xid

    @last_xid.setter
    def last_xid(self, xid: int) -> None:
        self.queue.last_xid = xid

    def drop_head(self) -> None:
        """Remove the head, if there is one."""
        queue = self.queue
        if queue.behind_items and not queue.has_head:
            self._read_on()
        queue.drop_head()

    def pop_head(self) -> Item | None:
        """Remove and return the head, or None if the queue is empty."""
        if self.queue.behind_items and not self.queue.has_head:
            self._read_on()
        return self.queue.pop_head()

    def expect_implicit_xid(self) -> None:
        """Forget all boundaries, because a pack of earlier files would change the xids that later records imply."""
        self.counts_xids = True
        self.queue.boundaries.clear()

    def _read_on(self) -> None:
        queue = self.queue
        while not queue.has_head:
            name, start, end = queue.history.file_at(queue.behind_offset)
            with self.open_file(self.file_name if end is None else name) as reader:
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
            queue.append_read_items(read)
