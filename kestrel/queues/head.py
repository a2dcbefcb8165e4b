"""The head of a queue: what is found there once what has expired and what is to be discarded is gone, and what is on
disk alone has come into memory."""

from __future__ import annotations

from abc import abstractmethod

from twisted.logger import Logger
from twisted.python.failure import Failure

from kestrel.errors import KestrelError, QueueFailed
from kestrel.item import Item
from kestrel.queues.counters import QueueCounters
from kestrel.queues.expiry import MOVED_AT_ONCE, SWEPT_AT_ONCE, is_expired
from kestrel.queues.filling import Filling
from kestrel.queues.limits import Limits
from kestrel.queues.moves import Moves
from kestrel.queues.services import QueueServices
from kestrel.storage.barrier import Batch, Committed

log = Logger(__name__)


class Headed(Committed):
    """What a head needs of its queue."""

    name: bytes
    limits: Limits
    counters: QueueCounters
    moves: Moves

    @abstractmethod
    def touch(self) -> Batch:
        """Something was recorded."""

    @abstractmethod
    def serve(self) -> None:
        """Serve those in line."""

    @abstractmethod
    def serve_later(self) -> None:
        """Serve those in line in another turn."""

    @abstractmethod
    def answer_all(self, error: Exception | None = None) -> None:
        """Answer everyone in line."""


class Head:
    """The head of one queue."""

    def __init__(self, queue: Headed, services: QueueServices) -> None:
        self._queue = queue
        self._now_ms = services.now_ms
        self._filling = Filling(queue.serve, self._fill_failed)
        self._owed_for: int | None = None
        """The size of the last item taken over a limit, while heads are still to be discarded for it."""

    def forget(self) -> None:
        """The queue has other contents, or none."""
        self._filling.forget()
        self._owed_for = None

    def at_hand(self) -> Item | None:
        """The head, if it is in memory, nothing is to be discarded first and it has not expired."""
        if self._owed_for is not None:
            return None
        contents = self._queue.contents
        item = contents.peek()
        if item is not None and self.expires_now(item):
            self.sweep()
            item = contents.peek()
            if item is not None and self.expires_now(item):
                return None
        return item

    # What has expired.

    @property
    def has_expired(self) -> bool:
        """Whether it has expired, and a sweep has not come to it yet."""
        contents = self._queue.contents
        item = contents.peek() if contents.failure is None else None
        return item is not None and self.expires_now(item)

    def expires_now(self, item: Item) -> bool:
        """Whether that item of the queue has expired."""
        max_age_ms = self._queue.limits.max_age_ms
        may_expire = item.expiry_ms or max_age_ms is not None  # most never do: spare them the look at the clock
        return bool(may_expire) and is_expired(item, max_age_ms, self._now_ms())

    def sweep(self, most: int = SWEPT_AT_ONCE) -> int:
        """Expire items in memory, at most `most`, and return how many. Placeholders are dropped and not counted as
        expired."""
        queue = self._queue
        contents, moves, target = queue.contents, queue.moves, queue.limits.expires_to
        if target is not None:
            most = min(most, MOVED_AT_ONCE)
        swept = expired = 0
        item = contents.peek()
        while item is not None and swept < most and self.expires_now(item):
            is_placeholder = item.is_placeholder
            if target is None or is_placeholder:
                contents.take(False)
            elif moves.is_full:
                break
            else:
                contents.take(True)
                moves.begin(item, target, drops=True)
            swept += 1
            expired += not is_placeholder
            item = contents.peek()
        if swept:
            queue.counters.expired_items += expired
            queue.touch()
        return swept

    # What is to be discarded.

    @property
    def is_owed(self) -> bool:
        """Whether heads are still to be discarded, so that nobody gets an item before."""
        return self._owed_for is not None

    def discard_for(self, size: int) -> None:
        """Drop heads until there was room for the last item that was put, which has that size."""
        self._owed_for = size
        self.go_on_discarding()

    def forget_what_is_owed(self) -> None:
        """The queue was flushed."""
        self._owed_for = None

    def go_on_discarding(self) -> None:
        """Drop what is owed, in turns; what has expired leaves as it would have."""
        size, queue = self._owed_for, self._queue
        if size is None:
            return
        contents, limits = queue.contents, queue.limits
        before = queue.counters.discarded
        for _ in range(SWEPT_AT_ONCE):
            if not limits.is_full(contents.items - 1, contents.bytes - size):
                self._owed_for = None
                break
            if self.has_expired and self.sweep(1):
                continue
            if self.has_expired and queue.moves.failure is None:
                break  # as many are on their way as may be; when one arrives it goes on
            if contents.take(False) is not None:
                queue.counters.discarded += 1
            elif self.fill():
                break
            elif contents.peek() is None:
                self._owed_for = None
                break
        else:
            queue.serve_later()
        if queue.counters.discarded != before:
            queue.touch()

    # What is on disk alone.

    @property
    def is_loading(self) -> bool:
        """Whether it is being brought into memory."""
        return self._filling.contents is self._queue.contents

    def load(self) -> None:
        """Bring it into memory, if it is not there: nobody waits for it, but it may have expired."""
        contents = self._queue.contents
        if contents.items and contents.failure is None and contents.peek() is None:
            self.fill()

    def fill(self) -> bool:
        """Bring it into memory. False when what is in memory tells the truth."""
        return self._filling.begin(self._queue.contents)

    def _fill_failed(self, failure: Failure) -> None:
        queue, error = self._queue, failure.value
        log.error("The head of queue {queue!r} cannot be read: {error}", queue=queue.name, error=str(error))
        queue.touch()  # if its storage has found that it cannot go on, a commit is where it may say so
        queue.answer_all(error if isinstance(error, KestrelError) else QueueFailed("the head cannot be read"))
