"""A worker for Twisted programs."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from inspect import isawaitable
from random import Random
from typing import Any, TypeVar

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater

from kestrel.client.arguments import Name, to_milliseconds
from kestrel.client.client import Client, run_all
from kestrel.client.errors import ClientFailure
from kestrel.client.plan import follow_async
from kestrel.worker.report import WorkerLog
from kestrel.worker.slot import (
    CallFunction,
    EndRead,
    PauseFor,
    PutAside,
    Slot,
    Step,
    TakeItem,
    WorkerCounts,
    WorkerRules,
)
from kestrel.worker.worker import ReturnItem

T = TypeVar("T")


class TwistedWorker:
    """A worker that calls `function` with each item of `queues`, with up to `concurrency` items at a time.

    The function may return a Deferred or a coroutine of Twisted, whose end is awaited. The client is not closed. Its
    `max_connections` must be above `concurrency`. The other options are those of `Worker`.
    """

    def __init__(
        self,
        reactor: IReactorTime,
        client: Client,
        queues: Name | Sequence[Name],
        function: Callable[[bytes], object],
        *,
        concurrency: int = 1,
        hold_s: float = 60.0,
        retries: int = 3,
        retry_pause_s: float = 1.0,
        error_queue: Name | None = None,
        logs_messages: bool = False,
        random: Random | None = None,
    ) -> None:
        rules = WorkerRules(queues, concurrency, retries, retry_pause_s, error_queue)
        to_milliseconds(hold_s)
        self._reactor = reactor
        self._client = client
        self._function = function
        self._hold_s = hold_s
        self._log = WorkerLog(logs_messages=logs_messages)
        self._slots = [Slot(rules, number, random or Random()) for number in range(concurrency)]
        self._interruptible: set[Deferred[Any]] = set()

    @property
    def counts(self) -> WorkerCounts:
        """The counts until now."""
        return sum((slot.counts for slot in self._slots), WorkerCounts())

    async def run(self) -> WorkerCounts:
        """Work until `stop` and the end of all calls, once. Return the counts."""
        await run_all([self._run_slot(slot) for slot in self._slots])
        return self.counts

    def stop(self) -> None:
        """Take no further items. `run` returns when the running calls have ended."""
        for slot in self._slots:
            slot.is_stopping = True
        for each in list(self._interruptible):
            each.cancel()

    async def _run_slot(self, slot: Slot) -> None:
        """Do the steps of a slot. If one raises, the other slots stop too."""
        queue = item = b""
        read = AsyncExitStack()

        async def do(step: Step) -> bool:
            nonlocal queue, item
            match step:
                case TakeItem(queue, wait_s):
                    opening = self._client.reliable_get(queue, wait_s, self._hold_s)
                    taken = await self._until_stop(read.enter_async_context(opening))
                    if not slot.is_stopping:
                        self._log.answered(slot, queue)
                    if taken is None:
                        await read.aclose()
                        return False
                    item = taken
                case CallFunction():
                    try:
                        await self._call(item)
                    except Exception as error:
                        self._log.raised(queue, step, error)
                        return False
                case PutAside(error_queue):
                    if not await self._client.put(error_queue, item):
                        self._log.full(queue, step)
                        return False
                case EndRead(confirms):
                    with suppress(ReturnItem):
                        async with read:
                            if not confirms:
                                raise ReturnItem
                case PauseFor(seconds):
                    if not slot.is_stopping:
                        await self._until_stop(_pause(self._reactor, seconds))
            return True

        async def do_and_log(step: Step) -> bool:
            try:
                return await do(step)
            except ClientFailure as failure:
                self._log.failed(slot, queue, step, failure)
                raise

        try:
            async with read:
                await follow_async(slot.steps(), do_and_log)
        except BaseException:
            self.stop()
            raise

    async def _call(self, item: bytes) -> None:
        result = self._function(item)
        if isawaitable(result):
            await result

    async def _until_stop(self, coroutine: Coroutine[Any, Any, T]) -> T | None:
        """Await the coroutine. Return None if the worker stops first."""
        waiting = Deferred.fromCoroutine(coroutine)
        self._interruptible.add(waiting)
        try:
            return await waiting
        except CancelledError:
            if not all(slot.is_stopping for slot in self._slots):
                raise
            return None
        finally:
            self._interruptible.discard(waiting)


async def _pause(reactor: IReactorTime, seconds: float) -> None:
    await deferLater(reactor, seconds)
