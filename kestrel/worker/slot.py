"""The concurrent loops of a worker, and its log. The log never contains an item.

Messages of exceptions often quote the data that caused them. Tracebacks are therefore logged without messages, unless
the worker `logs_messages`.
"""

from __future__ import annotations

import logging
import traceback
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from itertools import cycle
from random import Random
from threading import Lock
from typing import Final

from kestrel.client.arguments import Name, name_bytes, to_milliseconds
from kestrel.client.choice import Backoff
from kestrel.client.errors import ClientFailure
from kestrel.escaping import show_name
from kestrel.names import check_queue_name

LOGGER: Final = logging.getLogger("kestrel.worker")

WAIT_S: Final = 1.0
"""How long a request waits for an item. A worker that is idle needs up to this time to stop."""

MAX_OUTAGE_PAUSE_S: Final = 10.0
"""Longest pause before a server that does not answer is asked again."""

MAX_RETRY_PAUSE_S: Final = 60.0
"""Longest pause before a failed call is repeated."""


class WorkerRules:
    """The options of a worker, and the log of all its slots. Raises `BadQueueName`, TypeError and ValueError."""

    def __init__(
        self,
        queues: Name | Sequence[Name],
        concurrency: int,
        retries: int,
        retry_pause_s: float,
        error_queue: Name | None,
        *,
        hold_s: float = 60.0,
        logs_messages: bool = False,
        random: Random | None = None,
    ) -> None:
        names = [queues] if isinstance(queues, bytes | str) else queues
        self.queues = tuple(dict.fromkeys(name_bytes(name) for name in names))
        self.concurrency = concurrency
        self.retries = retries
        self.retry_pause_s = retry_pause_s
        self.error_queue = None if error_queue is None else name_bytes(error_queue)
        self.hold_s = hold_s
        self.log = WorkerLog(logs_messages=logs_messages)
        self.random = random or Random()
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
        to_milliseconds(hold_s)


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
        return WorkerCounts(*map(sum, zip(astuple(self), astuple(other), strict=True)))

    def __str__(self) -> str:
        return (
            f"{self.done} done, {self.moved} moved to the error queue, {self.returned} returned,"
            f" {self.unconfirmed} not confirmed, {self.failed_calls} failed calls"
        )


class Slot(ABC):
    """One of the concurrent loops of a worker, which handles one item at a time.

    Slots differ by their `number` in the queue that they ask first. Subclasses take items with their client, and wait.
    """

    def __init__(self, rules: WorkerRules, number: int) -> None:
        first = number % len(rules.queues)
        self._queues = rules.queues[first:] + rules.queues[:first]
        self._rules = rules
        self._log = rules.log
        self._outage = Backoff(rules.random, longest_s=MAX_OUTAGE_PAUSE_S)
        self._failures = Backoff(rules.random, rules.retry_pause_s, max(MAX_RETRY_PAUSE_S, rules.retry_pause_s))
        self.is_stopping = False
        """Set this to end the loop after the current item. A failed call is then not repeated."""
        self.counts = WorkerCounts()

    @abstractmethod
    async def take(self, queue: bytes, wait_s: float) -> bytes | None:
        """Open an item of the queue, and log that the queue answered. Return None if there was none in this time."""

    @abstractmethod
    async def call(self, item: bytes) -> None:
        """Call the function with the open item."""

    @abstractmethod
    async def put_aside(self, error_queue: bytes, item: bytes) -> bool:
        """Put the item to the error queue. Return False if that queue is full."""

    @abstractmethod
    async def end_read(self, confirms: bool) -> None:
        """Confirm the open item, or return it to its queue."""

    @abstractmethod
    async def pause(self, seconds: float) -> None:
        """Wait this long, or until the worker stops."""

    async def run(self) -> None:
        """Handle items until `is_stopping`.

        The queues are asked in turn. The slot waits for an item only if all other queues had none, and pauses only if
        the requests for all queues failed.
        """
        without_item = failed = 0  # queues in a row
        for queue in cycle(self._queues):
            if self.is_stopping:
                return
            try:
                item = await self.take(queue, WAIT_S if without_item + 1 >= len(self._queues) else 0)
            except ClientFailure as failure:
                self._log.cannot_take(self, queue, failure)
                failed += 1
                without_item += 1
                if failed >= len(self._queues):
                    await self.pause(self._outage.failed(0))
                continue
            failed = 0
            self._outage.answered()
            without_item = without_item + 1 if item is None else 0
            if item is not None:
                await self._work(queue, item)

    async def _work(self, queue: bytes, item: bytes) -> None:
        """Call the function until it succeeds or its retries are used up. Then end the open read."""
        is_done = await self._call(queue, item)
        is_finished = is_done or await self._put_aside(queue, item)
        try:
            await self.end_read(is_finished)
        except ClientFailure as failure:
            LOGGER.warning("an item of %s was not confirmed, and may be delivered again: %s", show_name(queue), failure)
            self.counts.unconfirmed += 1
            return
        self.counts.done += is_done
        if is_finished:
            self._failures.answered()
        else:  # it is now at the head of its queue: do not take it again at once
            self.counts.returned += 1
            await self.pause(self._failures.failed(0))

    async def _call(self, queue: bytes, item: bytes) -> bool:
        for retries_left in range(self._rules.retries, -1, -1):
            try:
                await self.call(item)
            except Exception as error:
                self._log.raised(queue, retries_left, error)
            else:
                return True
            self.counts.failed_calls += 1
            if retries_left and not self.is_stopping:
                await self.pause(self._failures.failed(0))
            if self.is_stopping:
                break
        return False

    async def _put_aside(self, queue: bytes, item: bytes) -> bool:
        error_queue = self._rules.error_queue
        if error_queue is None or self.is_stopping:
            return False
        names = show_name(queue), show_name(error_queue)
        try:
            is_stored = await self.put_aside(error_queue, item)
        except ClientFailure as failure:
            LOGGER.error("an item of %s returns to it, because it cannot be put to %s: %s", *names, failure)
            return False
        if not is_stored:
            LOGGER.error("the error queue %s is full; an item of %s returns to it", *reversed(names))
        self.counts.moved += is_stored
        return is_stored


class WorkerLog:
    """The log of failed calls and of outages. Its methods may be called in any thread."""

    def __init__(self, *, logs_messages: bool) -> None:
        self._logs_messages = logs_messages
        self._outage: set[tuple[Slot, bytes]] = set()
        self._lock = Lock()

    def raised(self, queue: bytes, retries_left: int, error: BaseException) -> None:
        """Log a call that raised, with its traceback."""
        next_ = {0: "no retries left", 1: "1 retry left"}.get(retries_left, f"{retries_left} retries left")
        lines = "".join(traceback.format_exception(error)) if self._logs_messages else traceback_without_messages(error)
        LOGGER.error("a call for an item of %s failed; %s\n%s", show_name(queue), next_, lines.rstrip())

    def cannot_take(self, slot: Slot, queue: bytes, failure: ClientFailure) -> None:
        """Log the first failed request for an item of an outage."""
        with self._lock:
            is_first = not self._outage
            self._outage.add((slot, queue))
        if is_first:
            LOGGER.warning("cannot take items: %s; trying again until it is possible", failure)

    def answered(self, slot: Slot, queue: bytes) -> None:
        """Note the answer to a request for an item. Log the end of an outage: all failed requests succeeded."""
        if (slot, queue) in self._outage:
            with self._lock:
                self._outage.remove((slot, queue))
                is_over = not self._outage
            if is_over:
                LOGGER.warning("takes items again")


def traceback_without_messages(error: BaseException) -> str:
    """Return the traceback of an exception and of its causes, with the types of the exceptions only."""
    earlier = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    before = "" if earlier is None else f"{traceback_without_messages(earlier)}\nfollowed by\n\n"
    frames = "".join(traceback.format_tb(error.__traceback__))
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"{before}Traceback (most recent call last):\n{frames}{name}\n"
