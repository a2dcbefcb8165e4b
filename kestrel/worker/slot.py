"""The next step of a worker after each result, without I/O, threads or clocks.

A worker has `concurrency` slots. Each handles one item at a time. `Slot.steps` is a `Plan`: it yields a step, and is
sent its result or thrown the `ClientFailure` with which it failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from random import Random
from typing import Final, NamedTuple, TypeAlias

from kestrel.client.arguments import Name, name_bytes, to_milliseconds
from kestrel.client.backoff import Backoff
from kestrel.client.errors import ClientFailure
from kestrel.client.plan import Plan
from kestrel.names import check_queue_name

WAIT_S: Final = 1.0
"""How long a request waits for an item. A worker that is idle needs up to this time to stop."""

MAX_OUTAGE_PAUSE_S: Final = 10.0
"""Longest pause before a server that does not answer is asked again."""

MAX_RETRY_PAUSE_S: Final = 60.0
"""Longest pause before a failed call is repeated."""


class WorkerRules:
    """The options of a worker that decide its steps. Raises `BadQueueName`, TypeError and ValueError."""

    def __init__(
        self,
        queues: Name | Sequence[Name],
        concurrency: int,
        retries: int,
        retry_pause_s: float,
        error_queue: Name | None,
    ) -> None:
        names = [queues] if isinstance(queues, bytes | str) else queues
        self.queues = tuple(dict.fromkeys(name_bytes(name) for name in names))
        self.concurrency = concurrency
        self.retries = retries
        self.retry_pause_s = retry_pause_s
        self.error_queue = None if error_queue is None else name_bytes(error_queue)
        if not self.queues:
            raise ValueError("there must be at least one queue")
        for name in (*self.queues, *([] if self.error_queue is None else [self.error_queue])):
            check_queue_name(name)
        if self.error_queue in self.queues:
            raise ValueError("the error queue must not be one of the worker's queues")
        if concurrency < 1:
            raise ValueError("concurrency must be at least 1")
        if retries < 0:
            raise ValueError("retries must not be negative")
        if to_milliseconds(retry_pause_s) < 1:
            raise ValueError("retry_pause_s must be at least 0.001")


class TakeItem(NamedTuple):
    """Open an item of the queue. The result is False if there was none in this time."""

    queue: bytes
    wait_s: float


class CallFunction(NamedTuple):
    """Call the function with the open item. The result is False if it raised."""

    retries_left: int


class PutAside(NamedTuple):
    """Put the item to the error queue. The result is False if that queue is full."""

    error_queue: bytes


class EndRead(NamedTuple):
    """Confirm the open item, or return it to its queue."""

    confirms: bool


class PauseFor(NamedTuple):
    """Wait this long, or until the worker stops."""

    seconds: float


Step: TypeAlias = TakeItem | CallFunction | PutAside | EndRead | PauseFor


@dataclass
class WorkerCounts:
    """Numbers of items of a worker by outcome, and of failed calls."""

    done: int = 0
    """Items whose call succeeded and that were confirmed."""
    moved: int = 0
    """Items put to the error queue."""
    returned: int = 0
    """Items returned to their queue after their last call had failed."""
    unconfirmed: int = 0
    """Items whose confirm failed. They may be delivered again."""
    failed_calls: int = 0
    """Calls that raised, including those that were repeated."""

    def __add__(self, other: WorkerCounts) -> WorkerCounts:
        return WorkerCounts(*(mine + theirs for mine, theirs in zip(self._values(), other._values(), strict=True)))

    def _values(self) -> tuple[int, ...]:
        return self.done, self.moved, self.returned, self.unconfirmed, self.failed_calls

    def __str__(self) -> str:
        return (
            f"{self.done} done, {self.moved} moved to the error queue, {self.returned} returned,"
            f" {self.unconfirmed} not confirmed, {self.failed_calls} failed calls"
        )


class Slot:
    """One of the concurrent loops of a worker. Slots differ by their `number` in the queue that they ask first."""

    def __init__(self, rules: WorkerRules, number: int, random: Random) -> None:
        first = number % len(rules.queues)
        self._queues = rules.queues[first:] + rules.queues[:first]
        self._rules = rules
        self._outage = Backoff(random, longest_s=MAX_OUTAGE_PAUSE_S)
        self._failures = Backoff(random, rules.retry_pause_s, max(MAX_RETRY_PAUSE_S, rules.retry_pause_s))
        self.is_stopping = False
        """Set this to end the steps after the current item. A failed call is then not repeated."""
        self.counts = WorkerCounts()

    def steps(self) -> Plan[Step, bool, None]:
        """Yield the steps until `is_stopping`.

        The queues are asked in turn. The slot waits for an item only if all other queues had none, and pauses only if
        the requests for all queues failed.
        """
        without_item = failed = 0  # queues in a row
        for queue in cycle(self._queues):
            if self.is_stopping:
                return
            try:
                is_item = yield TakeItem(queue, WAIT_S if without_item + 1 >= len(self._queues) else 0)
            except ClientFailure:
                failed += 1
                without_item += 1
                if failed >= len(self._queues):
                    yield PauseFor(self._outage.failed(0))
                continue
            failed = 0
            self._outage.answered()
            without_item = 0 if is_item else without_item + 1
            if is_item:
                yield from self._work()

    def _work(self) -> Plan[Step, bool, None]:
        """Call the function until it succeeds or its retries are used up. Then end the open read."""
        is_done = yield from self._call()
        is_finished = is_done or (yield from self._put_aside())
        try:
            yield EndRead(is_finished)
        except ClientFailure:
            self.counts.unconfirmed += 1
            return
        self.counts.done += is_done
        if is_finished:
            self._failures.answered()
        else:  # it is now at the head of its queue: do not take it again at once
            self.counts.returned += 1
            yield PauseFor(self._failures.failed(0))

    def _call(self) -> Plan[Step, bool, bool]:
        for retries_left in range(self._rules.retries, -1, -1):
            if (yield CallFunction(retries_left)):
                return True
            self.counts.failed_calls += 1
            if retries_left and not self.is_stopping:
                yield PauseFor(self._failures.failed(0))
            if self.is_stopping:
                break
        return False

    def _put_aside(self) -> Plan[Step, bool, bool]:
        if self._rules.error_queue is None or self.is_stopping:
            return False
        try:
            is_stored = yield PutAside(self._rules.error_queue)
        except ClientFailure:
            return False
        self.counts.moved += is_stored
        return is_stored
