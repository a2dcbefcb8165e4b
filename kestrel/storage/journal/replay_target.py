"""A queue while its journal files are replayed: what lies behind its window is read forward as the replay needs it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeAlias

from kestrel.disk.reader import FileReader
from kestrel.item import Item
from kestrel.journal.item_reader import read_items
from kestrel.storage.journal.queue import JournalQueue

OpenFile: TypeAlias = Callable[[bytes], AbstractContextManager[FileReader]]
"""A reader of the queue's file of that name, for as long as the context lasts. Raises OSError."""


class QueueReplayTarget:
    """The queue that a replay rebuilds (`kestrel.journal.replay.ReplayTarget`).

    It reads on by itself when its window is empty and the head is only on disk. So a replay needs the memory of the
    window and of the open reads, whatever the size of the files.
    """

    def __init__(self, queue: JournalQueue, open_file: OpenFile) -> None:
        self.queue = queue
        self.open_file = open_file
        self.file_name = b""
        """Of the file that is being replayed."""
        self.counts_xids = False
        """True if an open read has the xid that follows from earlier records."""
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
        if queue.behind_items and not queue.has_head:
            self._read_on()
        queue.drop_head()

    def pop_head(self) -> Item | None:
        """The head leaves the queue."""
        if self.queue.behind_items and not self.queue.has_head:
            self._read_on()
        return self.queue.pop_head()

    def expect_implicit_xid(self) -> None:
        """Forget the boundaries: no file before may be replaced without those after it."""
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
