"""The worker for functions and coroutine functions: its threads, its log and its end, with clients in memory."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import pytest

from kestrel.client.errors import CannotConnect, ClientFailure, ConnectionFailed
from kestrel.worker import Worker, WorkerCounts
from tests.child import PATIENCE_S


class Queues:
    """Queues in memory for several clients. `when_empty` is called by a request that finds no item."""

    def __init__(self, **queues: list[bytes]) -> None:
        self.queues = {name.encode(): deque(items) for name, items in queues.items()}
        self.confirmed: list[bytes] = []
        self.refuses: deque[ClientFailure] = deque()
        self.confirm_fails: ClientFailure | None = None
        self.is_full = False
        self.when_empty: Callable[[], object] = lambda: None
        self.open_clients = 0


class QueuesClient:
    """The part of a BlockingClient that a worker uses."""

    def __init__(self, queues: Queues) -> None:
        self.queues = queues

    def __enter__(self) -> Self:
        self.queues.open_clients += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.queues.open_clients -= 1

    @contextmanager
    def reliable_get(self, queue: bytes, timeout: float, hold: float) -> Iterator[bytes | None]:
        """Take an item; return it to the head after an exception."""
        assert hold == 60.0
        if self.queues.refuses:
            raise self.queues.refuses.popleft()
        items = self.queues.queues[queue]
        if not items:
            self.queues.when_empty()
            yield None
            return
        item = items.popleft()
        try:
            yield item
        except BaseException:
            items.appendleft(item)
            raise
        if self.queues.confirm_fails is not None:
            raise self.queues.confirm_fails
        self.queues.confirmed.append(item)

    def put(self, queue: bytes, data: bytes) -> bool:
        """Put an item unless the queue is full."""
        if not self.queues.is_full:
            self.queues.queues[queue].append(data)
        return not self.queues.is_full


def make_worker(queues: Queues, function: Callable[[bytes], object], **options: Any) -> Worker:
    """Return a worker that stops when its queue is empty, and does not pause."""
    options = {"pause": lambda _: None} | options
    worker = Worker("unused", "work", function, make_client=lambda: QueuesClient(queues), **options)
    queues.when_empty = worker.stop
    return worker


def fail(_: bytes) -> None:
    """Raise an error."""
    raise LookupError("not today")


def test_items_are_handled_and_confirmed() -> None:
    queues = Queues(work=[b"a", b"b"])
    handled: list[bytes] = []
    assert make_worker(queues, handled.append).run() == WorkerCounts(done=2)
    assert handled == queues.confirmed == [b"a", b"b"]
    assert queues.open_clients == 0


def test_calls_run_at_the_same_time() -> None:
    queues = Queues(work=[b"a", b"b", b"c"])
    together = threading.Barrier(3, timeout=PATIENCE_S)
    assert make_worker(queues, lambda _: together.wait(), concurrency=3).run().done == 3


def test_coroutines_run_in_one_event_loop() -> None:
    queues = Queues(work=[b"a", b"b", b"c"])
    loops = set()
    here = 0

    async def handle(_: bytes) -> None:
        nonlocal here
        loops.add(asyncio.get_running_loop())
        here += 1
        while here < 3:
            await asyncio.sleep(0)

    assert make_worker(queues, handle, concurrency=3).run().done == 3
    assert len(loops) == 1


def test_run_async_uses_the_loop_of_the_program() -> None:
    queues = Queues(work=[b"a"])

    async def main() -> bool:
        loops = []

        async def handle(_: bytes) -> None:
            loops.append(asyncio.get_running_loop())

        await make_worker(queues, handle).run_async()
        return loops == [asyncio.get_running_loop()]

    assert asyncio.run(main())


def test_a_cancelled_worker_ends_when_its_calls_have_ended() -> None:
    queues = Queues(work=[b"a", b"b"])
    ended = []

    async def main() -> None:
        async def handle(item: bytes) -> None:
            running.cancel()
            await asyncio.sleep(0)
            ended.append(item)

        running = asyncio.create_task(make_worker(queues, handle).run_async())
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())
    assert ended == queues.confirmed
    assert b"a" in ended and queues.open_clients == 0


def test_stop_ends_a_pause_and_returns_the_item() -> None:
    queues = Queues(work=[b"a", b"b"])
    worker = make_worker(queues, fail, pause=None, retry_pause_s=PATIENCE_S * 10)

    def fail_and_stop(item: bytes) -> None:
        worker.stop()
        fail(item)

    worker._slots[0].function = fail_and_stop
    assert worker.run() == WorkerCounts(returned=1, failed_calls=1)
    assert list(queues.queues[b"work"]) == [b"a", b"b"]


def test_an_item_that_always_fails_goes_to_the_error_queue() -> None:
    queues = Queues(work=[b"a"], failed=[])
    counts = make_worker(queues, fail, error_queue="failed").run()
    assert counts == WorkerCounts(moved=1, failed_calls=4)
    assert str(counts) == "0 done, 1 moved to the error queue, 0 returned, 0 not confirmed, 4 failed calls"
    assert list(queues.queues[b"failed"]) == queues.confirmed == [b"a"]


def test_an_item_returns_if_the_error_queue_is_full(caplog: pytest.LogCaptureFixture) -> None:
    queues = Queues(work=[b"a"], failed=[])
    queues.is_full = True
    pauses: list[float] = []

    def stop_at_last(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 4:
            worker.stop()

    worker = make_worker(queues, fail, error_queue="failed", pause=stop_at_last)
    assert worker.run() == WorkerCounts(returned=1, failed_calls=4)
    assert list(queues.queues[b"work"]) == [b"a"]
    assert caplog.messages[-1] == "the error queue failed is full; an item of work returns to it"


def test_a_confirm_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    queues = Queues(work=[b"a"])
    queues.confirm_fails = ConnectionFailed("mq: reset")
    assert make_worker(queues, lambda _: None).run() == WorkerCounts(unconfirmed=1)
    assert caplog.messages == ["an item of work was not confirmed, and may be delivered again: mq: reset"]


def test_outage_is_logged_once_at_start_and_end(caplog: pytest.LogCaptureFixture) -> None:
    queues = Queues(work=[b"a"])
    queues.refuses.extend(CannotConnect(f"mq: refused {number}") for number in range(6))
    assert make_worker(queues, lambda _: None, concurrency=2).run().done == 1
    began, ended = caplog.messages
    assert began.startswith("cannot take items: mq: refused ")
    assert began.endswith("; trying again until it is possible")
    assert ended == "takes items again"


@pytest.mark.parametrize("logs_messages", [False, True])
def test_a_failed_call_is_logged_without_its_item(caplog: pytest.LogCaptureFixture, logs_messages: bool) -> None:
    def parse(item: bytes) -> None:
        try:
            int(item)
        except ValueError as error:
            raise LookupError(item) from error

    queues = Queues(work=[b"secret"], failed=[])
    make_worker(queues, parse, retries=1, error_queue="failed", logs_messages=logs_messages).run()
    first, second = caplog.messages
    assert first.startswith("a call for an item of work failed; 1 retry left\nTraceback")
    assert second.startswith("a call for an item of work failed; no retries left\nTraceback")
    for text in ("ValueError", "LookupError", "in parse\n    int(item)", "test_worker.py"):
        assert text in first
    assert ("secret" in caplog.text) == logs_messages


def test_an_exception_that_ends_programs_ends_the_worker() -> None:
    queues = Queues(work=[b"a", b"b"])

    def leave(_: bytes) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        make_worker(queues, leave, concurrency=2).run()
    assert sorted(queues.queues[b"work"]) == [b"a", b"b"] and queues.open_clients == 0


def test_failed_requests_of_the_function_are_failed_calls(caplog: pytest.LogCaptureFixture) -> None:
    def use_another_server(_: bytes) -> None:
        raise CannotConnect("other: refused")

    queues = Queues(work=[b"a"], failed=[])
    assert make_worker(queues, use_another_server, retries=0, error_queue="failed").run().moved == 1
    assert "cannot take items" not in caplog.text


def test_invalid_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match="a worker needs a function, not str"):
        Worker("localhost", "work", "handle")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a time must be a finite number"):
        Worker("localhost", "work", print, hold_s=float("inf"))
    with pytest.raises(ValueError, match="port"):
        Worker("localhost:x", "work", print)


def test_the_logger_has_a_name_of_the_package(caplog: pytest.LogCaptureFixture) -> None:
    queues = Queues(work=[b"a"], failed=[])
    with caplog.at_level(logging.CRITICAL, "kestrel.worker"):
        make_worker(queues, fail, error_queue="failed").run()
    assert not caplog.messages
