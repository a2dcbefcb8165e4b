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

from kestrel.client.arguments import Name
from kestrel.client.client import Client, run_all
from kestrel.worker.slot import Slot, WorkerCounts, WorkerRules
from kestrel.worker.worker import ReturnItem

T = TypeVar("T")


class _TwistedSlot(Slot):
    """A slot with a Twisted client."""

    def __init__(self, rules: WorkerRules, number: int, worker: TwistedWorker) -> None:
        super().__init__(rules, number)
        self._worker = worker
        self.read = AsyncExitStack()

    async def take(self, queue: bytes, wait_s: float) -> bytes | None:
        opening = self._worker.client.reliable_get(queue, wait_s, self._rules.hold_s)
        item = await self._worker.until_stop(self.read.enter_async_context(opening))
        if not self.is_stopping:
            self._log.answered(self, queue)
        if item is None:
            await self.read.aclose()
        return item

    async def call(self, item: bytes) -> None:
        result = self._worker.function(item)
        if isawaitable(result):
            await result

    async def put_aside(self, error_queue: bytes, item: bytes) -> bool:
        return await self._worker.client.put(error_queue, item)

    async def end_read(self, confirms: bool) -> None:
        with suppress(ReturnItem):
            async with self.read:
                if not confirms:
                    raise ReturnItem

    async def pause(self, seconds: float) -> None:
        if not self.is_stopping:
            await self._worker.until_stop(_pause(self._worker.reactor, seconds))


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
        rules = WorkerRules(
            queues,
            concurrency,
            retries,
            retry_pause_s,
            error_queue,
            hold_s=hold_s,
            logs_messages=logs_messages,
            random=random,
        )
        self.reactor = reactor
        self.client = client
        self.function = function
        self._slots = [_TwistedSlot(rules, number, self) for number in range(concurrency)]
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

    async def _run_slot(self, slot: _TwistedSlot) -> None:
        """Run a slot. If it raises, the other slots stop too."""
        try:
            async with slot.read:
                await slot.run()
        except BaseException:
            self.stop()
            raise

    async def until_stop(self, coroutine: Coroutine[Any, Any, T]) -> T | None:
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
