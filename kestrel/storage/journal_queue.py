"""One queue kept in Kestrel's journal: its window in memory, and each change as a record to be written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from twisted.internet.defer import Deferred
from zope.interface import implementer

from kestrel.config.model import QueueSettings
from kestrel.item import Item
from kestrel.journal.records import (
    REMOVE_RECORD,
    encode_confirm,
    encode_item,
    encode_open,
    encode_put_back,
)
from kestrel.journal.writer import JournalWriter
from kestrel.storage.interfaces import IQueueStorage
from kestrel.storage.window import Window


@implementer(IQueueStorage)
class JournalQueue(Window):
    """A window whose changes are recorded (`IQueueStorage`). The storage writes the records at commit."""

    def __init__(self, name: bytes, settings: QueueSettings, writer: JournalWriter) -> None:
        super().__init__()
        self.name = name
        self.settings = settings
        self.writer = writer
        self.refusal: str | None = None
        """None, or why this queue takes no put now."""
        self.replayed_items = 0
        self.has_older_files = False
        """Whether there were rotated files when it was loaded."""
        self.older_bytes = 0
        """What those take on the medium."""
        self.is_deleted = False
        self._pending: list[bytes] = []

    # What is done is recorded.

    def put(self, record: bytes) -> None:
        """Append an item, given as its record, which may be shared with other queues."""
        self.append(record)
        self._pending.append(record)

    def take(self, opened: bool) -> Item | None:
        """Remove and return the head; as an open read when `opened`."""
        item = super().take(opened)
        if item is not None:
            self._pending.append(encode_open(item.xid) if opened else REMOVE_RECORD)
        return item

    def confirm(self, xids: Sequence[int]) -> int:
        """End open reads; returns how many of them were open."""
        self.check()
        confirmed = [encode_confirm(xid) for xid in xids if self.finish(xid)]
        self._pending += confirmed
        return len(confirmed)

    def put_back(self, xids: Sequence[int], failed: bool) -> None:
        """Return open reads to the head; xids[0] is the next one taken."""
        self.check()
        self._pending += [encode_put_back(xid) for xid in reversed(xids) if self.push_back(xid, failed)]

    def clear(self) -> None:
        """Drop every item that is not an open read: one REMOVE for each, as one run of bytes."""
        self.check()
        if self.items:
            self._pending.append(REMOVE_RECORD * self.items)
        super().clear()

    def fill(self) -> Deferred[None] | None:
        """None: the whole queue is in memory."""
        self.check()
        return None

    # What the storage does with it.

    @property
    def may_have_other_files(self) -> bool:
        """Whether there may be more files of this queue than the current one."""
        return self.has_older_files or self.writer.set_aside_files > 0

    def take_pending(self) -> bytes:
        """All that was recorded since the last call."""
        pending, self._pending = self._pending, []
        return pending[0] if len(pending) == 1 else b"".join(pending)

    def snapshot(self) -> list[bytes]:
        """Records that bring an empty queue to the present state: the open reads, then the items.

        What is pending is part of it, and no longer pending.
        """
        self._pending = []
        records: list[bytes] = []
        for xid, item in self._open.items():
            records += (encode_item(item.data, item.add_ms, item.expiry_ms), encode_open(xid))
        records += (encode_item(item.data, item.add_ms, item.expiry_ms) for item in self._front)
        records += self._records
        return records

    @property
    def mem_bytes(self) -> int:
        """All data is in memory."""
        return self.bytes

    @property
    def disk_bytes(self) -> int:
        """The journal's files together."""
        return self.older_bytes + self.writer.set_aside_bytes + self.writer.size

    @property
    def stats(self) -> Mapping[str, int]:
        """The journal's own figures."""
        return {"logsize": self.writer.size, "journal_rewrites": 0, "journal_rotations": 0}
