"""A queue of Python objects in memory, whose consumers wait in line, like travellers for taxis."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Generic, TypeVar

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.python.failure import Failure

from kestrel.library.full_policy import FullPolicy
from kestrel.library.recursion_limit import RecursionLimit

T = TypeVar("T")


class _Consumer(Generic[T]):
    """One in line. Who does not wait is answered when there is no item; who has a `predicate` may not take it."""

    __slots__ = ("arrival", "predicate", "timer", "waits")

    def __init__(self, *, waits: bool, predicate: Callable[[T], bool] | None = None) -> None:
        self.arrival: Deferred[T | None]
        self.waits = waits
        self.predicate = predicate
        self.timer: IDelayedCall | None = None


class ConcurrentBlockingQueue(Generic[T]):
    """Objects in memory, first in, first out; who finds none waits in line and is served in the order of coming.

    `clock` has the timers of deadlines. `max_items` is how many it holds, None as many as there is memory for;
    `full_policy` says what a put does then.

    None is no item: a get that brings None has found nothing; nor is a Deferred or a Failure. All is done on one
    thread, the reactor's, and no call waits. An item that is at hand when `get` is called is in the Deferred when that
    returns; but after a hundred of those in a row the next comes in the reactor's next turn, so that a chain of gets,
    each in the callback of the one before, may be as long as it likes. What callbacks put and get while items are
    handed over waits until the callback returns, and keeps its order.
    """

    def __init__(
        self,
        clock: IReactorTime,
        *,
        max_items: int | None = None,
        full_policy: FullPolicy = FullPolicy.REFUSE_PUTS,
    ) -> None:
        if max_items is not None and max_items < 0:
            raise ValueError(f"max_items is a number of items, or None, and not {max_items}")
        self._clock = clock
        self._max_items = max_items
        self._full_policy = full_policy
        self._items: deque[T] = deque()
        self._line: OrderedDict[_Consumer[T], None] = OrderedDict()
        self._polls: dict[_Consumer[T], None] = {}
        """Those in line that wait for no item,"""
        self._choosy: set[_Consumer[T]] = set()
        """and that may not take the one that they are offered."""
        self._recursion_limit = RecursionLimit()
        self._is_handing_over = False
        """Somebody further up the stack hands over whatever there is,"""
        self._rest: IDelayedCall | None = None
        """or the next turn does."""
        self._is_closed = False
        self.dropped_count = 0
        """How many items were dropped because the queue was full."""

    def __len__(self) -> int:
        return len(self._items)

    @property
    def size(self) -> int:
        """How many items it holds."""
        return len(self._items)

    @property
    def waiter_count(self) -> int:
        """How many consumers wait for an item to come."""
        return len(self._line) - len(self._polls)

    # Items in.

    def put(self, item: T) -> bool:
        """Append an item. False when the queue refuses it, because it is full or closed."""
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
        """How many items are for nobody in line: a hand-over that is put off makes no queue full."""
        return max(0, len(self._items) - (len(self._line) - len(self._choosy)))

    def put_head(self, item: T) -> bool:
        """Put an item in front of all others, however full the queue is: the way back for what was taken.

        False only when the queue is closed.
        """
        if not self._takes(item):
            return False
        self._items.appendleft(item)
        self._hand_over()
        return True

    def _takes(self, item: T) -> bool:
        if item is None:
            raise TypeError("None is no item: a get answers None when there is none")
        if isinstance(item, Deferred | Failure):
            raise TypeError(f"a {type(item).__name__} is no item: it would be the answer of a get, and not in it")
        return not self._is_closed

    # Items out.

    def get(self, deadline_s: float | None = None) -> Deferred[T | None]:
        """The next item, when it is this consumer's turn; None when so many seconds have gone by, or at the end.

        Without a deadline it waits for ever, with 0 or less not at all. Cancel it to leave the line: the item goes to
        the next.
        """
        if deadline_s is not None and deadline_s <= 0:
            return self.poll()
        return self._join(_Consumer(waits=True), deadline_s)

    def poll(self) -> Deferred[T | None]:
        """The next item if there is one for this consumer now, else None."""
        return self._join(_Consumer(waits=False))

    def poll_if(self, predicate: Callable[[T], bool]) -> Deferred[T | None]:
        """The same, if the next item is such a one; else it stays, and this is None. Fails as `predicate` does."""
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
            consumer.timer = self._clock.callLater(deadline_s, self._time_is_over, consumer)
        is_at_hand = bool(self._items) or not consumer.waits
        if is_at_hand and not self._is_put_off() and not self._recursion_limit.may_recurse():
            self._rest = self._clock.callLater(0, self._go_on)
        self._hand_over()
        return consumer.arrival

    def _leave(self, consumer: _Consumer[T]) -> None:
        self._line.pop(consumer, None)
        self._polls.pop(consumer, None)
        self._choosy.discard(consumer)
        timer, consumer.timer = consumer.timer, None
        if timer is not None:
            timer.cancel()

    def _time_is_over(self, consumer: _Consumer[T]) -> None:
        consumer.timer = None
        self._answer(consumer)

    def _answer(self, consumer: _Consumer[T]) -> None:
        """There is nothing for that one."""
        self._leave(consumer)
        consumer.arrival.callback(None)

    # Handing over.

    def _is_put_off(self) -> bool:
        """Whether somebody else will hand over what there is."""
        return self._is_handing_over or self._rest is not None

    def _go_on(self) -> None:
        self._rest = None
        self._hand_over()

    def _hand_over(self) -> None:
        """Serve the line as far as there are items. Nobody else does while this one is at it."""
        if self._is_put_off():
            return
        self._is_handing_over = True
        try:
            while self._line and self._hand_over_one():
                pass
        finally:
            self._is_handing_over = False

    def _hand_over_one(self) -> bool:
        """Serve the first in line. False when there is nothing left to be done."""
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
        if is_wanted and self._items and self._items[0] is item:  # a predicate may do anything
            self._items.popleft()
            consumer.arrival.callback(item)
        else:
            consumer.arrival.callback(None)
        return True

    # The end.

    def flush(self) -> None:
        """Drop every item."""
        self._items.clear()

    def evict_waiters(self) -> None:
        """Answer everyone in line as an empty queue does."""
        self._answer_all(list(self._line))

    def _answer_all(self, consumers: list[_Consumer[T]]) -> None:
        for consumer in consumers:
            if consumer in self._line:  # the callback of one may have cancelled another
                self._answer(consumer)

    def close(self) -> None:
        """Drop every item, answer everyone in line, and take nothing more: puts are refused, gets bring None."""
        self._is_closed = True
        self.flush()
        self.evict_waiters()
        rest, self._rest = self._rest, None
        if rest is not None:
            rest.cancel()
