"""A client that has a queue to itself, fills it, takes from it and deletes it, and knows what must be in it."""

from __future__ import annotations

import random
import time
from collections import deque
from typing import Final

from kestrel.client.connection import BlockingConnection
from tests.server.running import set_request
from tests.torture.accounts import Books
from tests.torture.cables import Cable
from tests.torture.workers import Gone, No, Wire, Worker

CHECK: Final = "deletions"
"""What is looked at, by its name in the books."""

LARGE_BYTES: Final = 2 << 20
"""Of the queue: more than a storage loads at once when the queue has failed."""
SIZES: Final = (1000, 60_000, 60_000)


class PassingQueue:
    """What must be in the queue, in order, and what may be: whatever had no answer, or one that leaves it open."""

    def __init__(self) -> None:
        self.line: deque[bytes] = deque()
        self.maybe: set[bytes] = set()

    @property
    def bytes(self) -> int:
        """Of what must be in it."""
        return sum(map(len, self.line))

    def given(self, data: bytes) -> str | None:
        """It gave out that item; what is wrong about that."""
        if data in self.maybe:
            self.maybe.remove(data)
            return None
        if data not in self.line:
            return f"{data[:30]!r} came, which was taken, deleted or refused"
        place = self.line.index(data)
        for _ in range(place + 1):
            self.line.popleft()
        return f"{place} in front of {data[:30]!r} are lost" if place else None

    def was_empty(self) -> str | None:
        """It said that it has no item; what is wrong about that."""
        lost, self.line = len(self.line), deque()
        return f"{lost} are lost" if lost else None

    def gave_or_not(self) -> None:
        """A get came to nothing: its item may be gone, or come again."""
        if self.line:
            self.maybe.add(self.line.popleft())

    def was_deleted(self) -> None:
        """And it was said so. What is sent and not answered may still come."""
        self.line.clear()

    def deleted_or_not(self) -> None:
        """Who knows?"""
        self.maybe.update(self.line)
        self.line.clear()


class PassingClient(Worker):
    """Of queues with names that begin with ``passing``, one after the other.

    A get or a deletion that was sent and not answered may be carried out at any time to come, so that queue is left as
    it is, and the next one begins.
    """

    def __init__(self, name: str, cable: Cable, books: Books, dice: random.Random) -> None:
        super().__init__(name, cable, books, dice)
        self.queue = PassingQueue()
        self._queues = self._items = 0
        self._has_failed = False

    def _name(self) -> bytes:
        return b"passing%d" % self._queues

    def _expect(self, problem: str | None) -> None:
        if problem is not None:
            now_s = time.monotonic()
            before = "; ".join(f"{now_s - at_s:.2f} s ago {what}" for at_s, what in self.books.times.told[-4:])
            self.books.fails(CHECK, f"{self._name().decode()}: {problem} ({before})")

    def step(self, connection: Wire | BlockingConnection) -> bool:
        assert isinstance(connection, Wire)
        # What has just failed is opened anew while we pause: then it is not to be looked at, but deleted.
        weights = (1, 1, 8) if self._has_failed else (20, 3, 1) if self.queue.bytes < LARGE_BYTES else (1, 4, 1)
        self._has_failed = False
        self.dice.choices((self._fill, self._take, self._delete), weights)[0](connection)
        self.pause(0.4 if self._has_failed else self.dice.choice((0.02, 0.1, 0.6)))
        return self.dice.random() < 0.98

    def _fill(self, connection: Wire) -> None:
        data = [self._new(self.dice.choice(SIZES)) for _ in range(self.dice.randrange(1, 40))]
        unanswered = deque(data)
        try:
            connection.send(b"".join(set_request(self._name(), each) for each in data))
            while unanswered:
                answer = connection.word(b"STORED")
                each = unanswered.popleft()
                if isinstance(answer, No):
                    self._has_failed = True
                else:
                    self.queue.line.append(each)
                    self.books.counts["passing"] += 1
        except Gone:
            self.queue.maybe.update(unanswered)
            raise

    def _new(self, size: int) -> bytes:
        self._items += 1
        return b"%s/%d/" % (self._name(), self._items) + bytes([97 + self._items % 26]) * self.dice.randrange(size)

    def _take(self, connection: Wire) -> None:
        try:
            self.take_some(connection, self.dice.choice((1, 5, 60)))
        except Gone:
            self._next_queue()
            raise

    def take_some(self, connection: Wire, most: int) -> bool:
        """Take so many at most, one by one. Whether there were as many."""
        for _ in range(most):
            connection.send(b"get %b\r\n" % self._name())
            data = connection.item()
            if data is None:
                self._expect(self.queue.was_empty())
                return False
            if isinstance(data, No):
                self._has_failed = True
                self.queue.gave_or_not()
            else:
                self._expect(self.queue.given(data))
        return True

    def _delete(self, connection: Wire) -> None:
        try:
            connection.send(b"delete %b\r\n" % self._name())
            answer = connection.word(b"DELETED")
        except Gone:
            self._next_queue()
            raise
        if isinstance(answer, No):
            self.queue.deleted_or_not()
        else:
            self.queue.was_deleted()
            self.books.counts["deletions"] += 1

    def _next_queue(self) -> None:
        self._queues += 1
        self.queue = PassingQueue()

    def take_all(self, connection: Wire) -> None:
        """The end: what is left is taken, and must be what should be."""
        while self.take_some(connection, 100):
            pass
