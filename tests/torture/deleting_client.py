"""A client that fills, reads and deletes queues that no other client uses, and checks their contents."""

from __future__ import annotations

import random
import time
from collections import deque
from typing import Final

from tests.memcache_text import set_
from tests.torture.clients import ConnectionLost, ErrorReply, LineConnection, LineWorker
from tests.torture.item_tracker import ItemTracker
from tests.torture.proxies import ClientProxy

CHECK: Final = "deletions"
"""Name of the check in the tracker."""

LARGE_BYTES: Final = 2 << 20
"""A queue size that is more than a storage reads at once when it reopens a failed queue."""
SIZES: Final = (1000, 60_000, 60_000)


class ExpectedQueue:
    """The items that the queue must hold, in order, and those that it may hold because a request had no clear reply."""

    def __init__(self) -> None:
        self.required: deque[bytes] = deque()
        self.possible: set[bytes] = set()

    @property
    def bytes(self) -> int:
        """Total size of the items that the queue must hold."""
        return sum(map(len, self.required))

    def deliver(self, data: bytes) -> str | None:
        """Remove a delivered item. Return the problem if it was not expected next."""
        if data in self.possible:
            self.possible.remove(data)
            return None
        if data not in self.required:
            return f"{data[:30]!r} was delivered, but it had been taken, deleted or refused"
        skipped = self.required.index(data)
        for _ in range(skipped + 1):
            self.required.popleft()
        return f"{skipped} items before {data[:30]!r} are lost" if skipped else None

    def empty(self) -> str | None:
        """Note that the server reported an empty queue. Return the problem if items were expected."""
        lost, self.required = len(self.required), deque()
        return f"{lost} items are lost" if lost else None

    def get_failed(self) -> None:
        """Note that a get failed: its item may be lost, or be delivered later."""
        if self.required:
            self.possible.add(self.required.popleft())

    def deleted(self) -> None:
        """Note that a deletion was acknowledged. Unanswered puts may still be stored."""
        self.required.clear()

    def delete_failed(self) -> None:
        """Note that a deletion failed: every item may be deleted or not."""
        self.possible.update(self.required)
        self.required.clear()


class DeletingClient(LineWorker):
    """Uses queues with the names ``deleting0``, ``deleting1`` and so on, one after another.

    A get or deletion without a reply may take effect at any later time. The client then leaves its queue and uses the
    next one.
    """

    def __init__(self, name: str, proxy: ClientProxy, tracker: ItemTracker, rng: random.Random) -> None:
        super().__init__(name, proxy, tracker, rng)
        self.expected = ExpectedQueue()
        self._queues = self._items = 0
        self._has_failed = False

    def _name(self) -> bytes:
        return b"deleting%d" % self._queues

    def _check(self, problem: str | None) -> None:
        if problem is not None:
            now_s = time.monotonic()
            before = "; ".join(f"{now_s - at_s:.2f} s ago {what}" for at_s, what in self.tracker.timeline.notes[-4:])
            self.tracker.fail(CHECK, f"{self._name().decode()}: {problem} ({before})")

    def step(self, connection: LineConnection) -> bool:
        # After a failure, mostly delete: a read would reopen the queue.
        weights = (1, 1, 8) if self._has_failed else (20, 3, 1) if self.expected.bytes < LARGE_BYTES else (1, 4, 1)
        self._has_failed = False
        self.rng.choices((self._fill, self._take_some, self._delete), weights)[0](connection)
        self.pause(0.4 if self._has_failed else self.rng.choice((0.02, 0.1, 0.6)))
        return self.rng.random() < 0.98

    def _fill(self, connection: LineConnection) -> None:
        data = [self._new(self.rng.choice(SIZES)) for _ in range(self.rng.randrange(1, 40))]
        unanswered = deque(data)
        try:
            connection.send(b"".join(set_(self._name(), each) for each in data))
            while unanswered:
                answer = connection.expect_line(b"STORED")
                each = unanswered.popleft()
                if isinstance(answer, ErrorReply):
                    self._has_failed = True
                else:
                    self.expected.required.append(each)
                    self.tracker.counts["puts to deleted queues"] += 1
        except ConnectionLost:
            self.expected.possible.update(unanswered)
            raise

    def _new(self, size: int) -> bytes:
        self._items += 1
        return b"%s/%d/" % (self._name(), self._items) + bytes([97 + self._items % 26]) * self.rng.randrange(size)

    def _take_some(self, connection: LineConnection) -> None:
        try:
            self.take(connection, self.rng.choice((1, 5, 60)))
        except ConnectionLost:
            self._next_queue()
            raise

    def take(self, connection: LineConnection, max_count: int) -> bool:
        """Take up to that many items, one by one. Return False at the end of the queue."""
        for _ in range(max_count):
            connection.send(b"get %b\r\n" % self._name())
            data = connection.read_item()
            if data is None:
                self._check(self.expected.empty())
                return False
            if isinstance(data, ErrorReply):
                self._has_failed = True
                self.expected.get_failed()
            else:
                self._check(self.expected.deliver(data))
        return True

    def _delete(self, connection: LineConnection) -> None:
        try:
            connection.send(b"delete %b\r\n" % self._name())
            answer = connection.expect_line(b"DELETED")
        except ConnectionLost:
            self._next_queue()
            raise
        if isinstance(answer, ErrorReply):
            self.expected.delete_failed()
        else:
            self.expected.deleted()
            self.tracker.counts["deletions"] += 1

    def _next_queue(self) -> None:
        self._queues += 1
        self.expected = ExpectedQueue()

    def take_all(self, connection: LineConnection) -> None:
        """Take and check all remaining items."""
        while self.take(connection, 100):
            pass
