"""A queue of Python objects in memory, whose consumers are served in order of arrival."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Final, Generic, TypeVar

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

from kestrel.queues.timer import Timer

MAX_SYNCHRONOUS_CALLBACKS: Final = 100
"""Maximum number of results in a row that are available when the call returns."""


class RecursionLimit:
    """A counter of results that are available when a call returns.

    A callback that runs at once may call again, deeper on the stack each time. At the limit, the next result must wait
    for a later tick.
    """

    __slots__ = ("_answers",)

    def __init__(self) -> None:
        self._answers = 0

    def may_recurse(self) -> bool:
        """Count a result. Return False, and restart the count, if the result must wait for a later tick."""
        self._answers = (self._answers + 1) % (MAX_SYNCHRONOUS_CALLBACKS + 1)
        return self._answers > 0


class FullPolicy(Enum):
    """The action of a put to a full queue."""

    REFUSE_PUTS = "refuse puts"
    """Refuse the item."""
    DROP_OLDEST = "drop the oldest"
    """Append the item, and drop the item at the head."""


T = TypeVar("T")


class _Consumer(Generic[T]):
    """A consumer in line. It gets None at once if it does not wait, or if its `predicate` rejects the next item."""

    __slots__ = ("arrival", "predicate", "timer", "waits")

    def __init__(self, *, waits: bool, predicate: Callable[[T], bool] | None = None) -> None:
        self.arrival: Deferred[T | None]
        self.waits = waits
        self.predicate = predicate
        self.timer: Timer | None = None


class ConcurrentBlockingQueue(Generic[T]):
    """A FIFO of objects in memory. Consumers that find it empty wait in line.

    `clock` runs the timers of deadlines. `max_items` limits the number of items, None means no limit. `full_policy`
    says what a put to a full queue does.

    None, a Deferred or a Failure cannot be an item. A get that returns None found nothing. Call all methods on the
    reactor's thread; none of them blocks.

    If an item is available, the Deferred that `get` returns has already fired. After 100 such gets in a row the next
    item is delivered in a later tick, to keep a chain of gets in callbacks from overflowing the stack. A put or get
    made by a callback during delivery is processed after that callback returns, in order.
    """

    def __init__(
        self,
        clock: IReactorTime,
        *,
        max_items: int | None = None,
        full_policy: FullPolicy = FullPolicy.REFUSE_PUTS,
    ) -> None:
        if max_items is not None and max_items < 0:
            raise ValueError(f"max_items must be None or a number from 0, not {max_items}")
        self._clock = clock
        self._max_items = max_items
        self._full_policy = full_policy
        self._items: deque[T] = deque()
        self._line: OrderedDict[_Consumer[T], None] = OrderedDict()
        self._polls: dict[_Consumer[T], None] = {}
        """Consumers in line that do not wait for a put."""
        self._choosy: set[_Consumer[T]] = set()
        """Consumers in line that have a predicate."""
        self._recursion_limit = RecursionLimit()
        self._is_handing_over = False
        """Whether `_hand_over` is running further up the stack."""
        self._continuation = Timer(clock, self._hand_over)
        """Continues the delivery in a later tick."""
        self._is_closed = False
        self.dropped_count = 0
        """Number of items dropped because the queue was full."""

    def __len__(self) -> int:
        return len(self._items)

    @property
    def size(self) -> int:
        """Number of items."""
        return len(self._items)

    @property
    def waiter_count(self) -> int:
        """Number of consumers that wait for a put."""
        return len(self._line) - len(self._polls)

    # Putting.

    def put(self, item: T) -> bool:
        """Append an item. Return False if the queue refuses it because it is full or closed."""
        if not self._takes(item):
            return False
        too_many = 0 if self._max_items is None else self._kept + 1 - self._max_items
        if too_many > 0 and self._full_policy is FullPolicy.REFUSE_PUTS:
            return False
        self._items.append(item)
        for _ in range(too_many):
            self._items.popleft()
            self.dropped_count += 1
        self._hand_over()
        return True

    @property
    def _kept(self) -> int:
        """Number of items that no consumer in line will take: items whose delivery is delayed do not fill the queue."""
        return max(0, len(self._items) - (len(self._line) - len(self._choosy)))

    def put_head(self, item: T) -> bool:
        """Put an item at the head, even if the queue is full, to return an item that was taken.

        Return False only if the queue is closed.
        """
        if not self._takes(item):
            return False
        self._items.appendleft(item)
        self._hand_over()
        return True

    def _takes(self, item: T) -> bool:
        if item is None:
            raise TypeError("None cannot be an item: get() returns None if there is no item")
        if isinstance(item, Deferred | Failure):
            raise TypeError(f"a {type(item).__name__} cannot be an item: a Deferred cannot fire with it")
        return not self._is_closed

    # Getting.

    def get(self, deadline_s: float | None = None) -> Deferred[T | None]:
        """Take the next item. Fire with None after `deadline_s` seconds, or when the queue is closed or its waiters are
        evicted.

        Without a deadline it waits until there is an item; with 0 or less it does not wait. Cancel the Deferred to
        leave the line.
        """
        if deadline_s is not None and deadline_s <= 0:
            return self.poll()
        return self._join(_Consumer(waits=True), deadline_s)

    def poll(self) -> Deferred[T | None]:
        """Take the next item without waiting for a put. Fire with None if there is none."""
        return self._join(_Consumer(waits=False))

    def poll_if(self, predicate: Callable[[T], bool]) -> Deferred[T | None]:
        """Take the next item if `predicate` accepts it, without waiting for a put.

        Fires with None if there is no item or the predicate rejects it. Fails with the predicate's exception.
        """
        return self._join(_Consumer(waits=False, predicate=predicate))

    def _join(self, consumer: _Consumer[T], deadline_s: float | None = None) -> Deferred[T | None]:
        if self._is_closed:
            return succeed(None)
        consumer.arrival = Deferred(lambda _: self._leave(consumer))
        self._line[consumer] = None
        if not consumer.waits:
            self._polls[consumer] = None
        if consumer.predicate is not None:
            self._choosy.add(consumer)
        if deadline_s is not None:
            consumer.timer = Timer(self._clock, partial(self._answer, consumer))
            consumer.timer.start(deadline_s)
        is_at_hand = bool(self._items) or not consumer.waits
        if is_at_hand and not self._is_put_off() and not self._recursion_limit.may_recurse():
            self._continuation.start(0)
        self._hand_over()
        return consumer.arrival

    def _leave(self, consumer: _Consumer[T]) -> None:
        self._line.pop(consumer, None)
        self._polls.pop(consumer, None)
        self._choosy.discard(consumer)
        if consumer.timer is not None:
            consumer.timer.stop()
            consumer.timer = None

    def _answer(self, consumer: _Consumer[T]) -> None:
        self._leave(consumer)
        consumer.arrival.callback(None)

    # Delivery.

    def _is_put_off(self) -> bool:
        """Return True if a call further up the stack, or a delayed call, will deliver the items."""
        return self._is_handing_over or self._continuation.is_running

    def _hand_over(self) -> None:
        """Deliver items to the consumers in line, unless a call further up the stack or a delayed call will."""
        if self._is_put_off():
            return
        self._is_handing_over = True
        try:
            while self._line and self._hand_over_one():
                pass
        finally:
            self._is_handing_over = False

    def _hand_over_one(self) -> bool:
        """Serve the first consumer in line. Return False if nothing is left to do."""
        if not self._items:
            self._answer_all(list(self._polls))
            return bool(self._items)  # a callback may have put one
        consumer = next(iter(self._line))
        self._leave(consumer)
        item, is_wanted = self._items[0], True
        if consumer.predicate is not None:
            try:
                is_wanted = consumer.predicate(item)
            except Exception:
                consumer.arrival.errback(Failure())
                return True
        if is_wanted and self._items and self._items[0] is item:  # the predicate may change the queue
            self._items.popleft()
            consumer.arrival.callback(item)
        else:
            consumer.arrival.callback(None)
        return True

    # Flushing and closing.

    def flush(self) -> None:
        """Drop every item."""
        self._items.clear()

    def evict_waiters(self) -> None:
        """Answer every consumer in line with None, as if the queue were empty."""
        self._answer_all(list(self._line))

    def _answer_all(self, consumers: list[_Consumer[T]]) -> None:
        for consumer in consumers:
            if consumer in self._line:  # the callback of one may have cancelled another
                self._answer(consumer)

    def close(self) -> None:
        """Drop every item and answer every consumer in line with None. Later puts are refused; later gets fire with
        None.
        """
        self._is_closed = True
        self.flush()
        self.evict_waiters()
        self._continuation.stop()
