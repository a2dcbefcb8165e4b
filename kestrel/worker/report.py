"""The log of a worker: failed calls, failed requests, outages. It never contains an item.

Messages of exceptions often quote the data that caused them. Tracebacks are therefore logged without messages, unless
the worker `logs_messages`.
"""

from __future__ import annotations

import logging
import traceback
from threading import Lock
from typing import Final

from kestrel.client.errors import ClientFailure
from kestrel.escaping import show_name
from kestrel.worker.slot import CallFunction, PutAside, Slot, Step, TakeItem

LOGGER: Final = logging.getLogger("kestrel.worker")


class WorkerLog:
    """The log of all slots of a worker. Its methods may be called in any thread."""

    def __init__(self, *, logs_messages: bool) -> None:
        self._logs_messages = logs_messages
        self._outage: set[tuple[Slot, bytes]] = set()
        self._lock = Lock()

    def raised(self, queue: bytes, step: CallFunction, error: BaseException) -> None:
        """Log a call that raised, with its traceback."""
        next_ = {0: "no retries left", 1: "1 retry left"}.get(step.retries_left, f"{step.retries_left} retries left")
        lines = "".join(traceback.format_exception(error)) if self._logs_messages else traceback_without_messages(error)
        LOGGER.error("a call for an item of %s failed; %s\n%s", show_name(queue), next_, lines.rstrip())

    def full(self, queue: bytes, step: PutAside) -> None:
        """Log an error queue that refused an item."""
        LOGGER.error(
            "the error queue %s is full; an item of %s returns to it", show_name(step.error_queue), show_name(queue)
        )

    def failed(self, slot: Slot, queue: bytes, step: Step, failure: ClientFailure) -> None:
        """Log a failed request. If requests for items fail, only the first failure of an outage is logged."""
        match step:
            case TakeItem():
                with self._lock:
                    is_first = not self._outage
                    self._outage.add((slot, queue))
                if is_first:
                    LOGGER.warning("cannot take items: %s; trying again until it is possible", failure)
            case PutAside(error_queue):
                LOGGER.error(
                    "an item of %s returns to it, because it cannot be put to %s: %s",
                    *(show_name(queue), show_name(error_queue), failure),
                )
            case _:
                LOGGER.warning(
                    "an item of %s was not confirmed, and may be delivered again: %s", show_name(queue), failure
                )

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
