"""A worker for plain functions and for coroutine functions, on blocking clients. It does not need Twisted."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from random import Random
from threading import Event
from typing import Literal

from kestrel.client.arguments import Name
from kestrel.client.blocking import BlockingClient
from kestrel.client.choice import run_blocking
from kestrel.tls import TlsOptions
from kestrel.worker.slot import Slot, WorkerCounts, WorkerRules


class ReturnItem(Exception):
    """Raised in the block of a reliable read to return its item."""


class _BlockingSlot(Slot):
    """A slot with a blocking client, for a thread of its own. Coroutines of the function run in `loop`."""

    loop: asyncio.AbstractEventLoop

    def __init__(
        self,
        rules: WorkerRules,
        number: int,
        client: BlockingClient,
        function: Callable[[bytes], object],
        pause: Callable[[float], object],
    ) -> None:
        super().__init__(rules, number)
        self.client = client
        self.function = function
        self.read = ExitStack()
        self._pause = pause

    async def take(self, queue: bytes, wait_s: float) -> bytes | None:
        item = self.read.enter_context(self.client.reliable_get(queue, wait_s, self._rules.hold_s))
        self._log.answered(self, queue)
        if item is None:
            self.read.close()
        return item

    async def call(self, item: bytes) -> None:
        result = self.function(item)
        if inspect.iscoroutine(result):
            asyncio.run_coroutine_threadsafe(result, self.loop).result()

    async def put_aside(self, error_queue: bytes, item: bytes) -> bool:
        return self.client.put(error_queue, item)

    async def end_read(self, confirms: bool) -> None:
        with suppress(ReturnItem), self.read:
            if not confirms:
                raise ReturnItem

    async def pause(self, seconds: float) -> None:
        self._pause(seconds)


class Worker:
    """A worker that calls `function` with each item of `queues`, in `concurrency` threads with a client each.

    A coroutine that the function returns runs in an event loop: that of `run_async`, or one that `run` makes. An item
    is confirmed when its call has ended. A call that raises is repeated up to `retries` times, after pauses that begin
    with `retry_pause_s` and double each time, up to a minute. Then the item is put to `error_queue`, or returned to its
    queue if there is none.

    `servers`, `protocol`, `tls` and `timeout_s` are those of `BlockingClient`, and `hold_s` is the `hold` of its
    `reliable_get`: on thrift it must be longer than all calls and pauses for an item. Failures are logged by the logger
    ``kestrel.worker``, and with `logs_messages` also the messages of exceptions, which may quote items.

    Raises `BadQueueName`, TypeError, ValueError and the errors of `BlockingClient` for invalid arguments.
    `make_client`, `pause` and `random` are for tests.
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        queues: Name | Sequence[Name],
        function: Callable[[bytes], object],
        *,
        concurrency: int = 1,
        protocol: Literal["memcache", "thrift"] = "memcache",
        tls: TlsOptions | None = None,
        timeout_s: float = 10.0,
        hold_s: float = 60.0,
        retries: int = 3,
        retry_pause_s: float = 1.0,
        error_queue: Name | None = None,
        logs_messages: bool = False,
        make_client: Callable[[], BlockingClient] | None = None,
        pause: Callable[[float], object] | None = None,
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
        if not callable(function):
            raise TypeError(f"a worker needs a function, not {type(function).__name__}")
        self._stopping = Event()
        make = make_client or (lambda: BlockingClient(servers, protocol, tls=tls, timeout_s=timeout_s))
        self._slots = [
            _BlockingSlot(rules, number, make(), function, pause or self._stopping.wait)
            for number in range(concurrency)
        ]

    @property
    def counts(self) -> WorkerCounts:
        """The counts until now."""
        return sum((slot.counts for slot in self._slots), WorkerCounts())

    def run(self) -> WorkerCounts:
        """Work until `stop` and the end of all calls, once. Return the counts.

        Ctrl-C also stops the worker, and raises KeyboardInterrupt when all calls have ended.
        """
        return asyncio.run(self.run_async())

    async def run_async(self) -> WorkerCounts:
        """Work like `run`, with coroutines in this event loop. Cancelling stops the worker and waits for its calls."""
        loop = asyncio.get_running_loop()
        pool = ThreadPoolExecutor(len(self._slots), "kestrel-worker")
        running = [loop.run_in_executor(pool, self._run_slot, slot, loop) for slot in self._slots]
        try:
            await asyncio.wait(running)
        except asyncio.CancelledError:
            self.stop()
            await asyncio.wait(running)
            raise
        finally:
            pool.shutdown(wait=False)
        for each in running:
            each.result()
        return self.counts

    def stop(self) -> None:
        """Take no further items, and return from `run` when the running calls have ended.

        A request that already waits for an item may still bring one, within a second. May be called in any thread, and
        in a signal handler.
        """
        for slot in self._slots:
            slot.is_stopping = True
        self._stopping.set()

    def _run_slot(self, slot: _BlockingSlot, loop: asyncio.AbstractEventLoop) -> None:
        """Run a slot in this thread. If it raises, the other slots stop too."""
        slot.loop = loop
        try:
            with slot.client, slot.read:
                run_blocking(slot.run())
        except BaseException:
            self.stop()
            raise
