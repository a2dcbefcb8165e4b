"""A journaled queue of objects, with a codec, with and without transactions."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.defer import CancelledError

from kestrel.errors import BadQueueName, QueueFailed
from kestrel.library import JournaledQueueReaderConfig, QueueItem
from tests.library.journaled import Program, config
from tests.programs import arrivals


class Json:
    """A codec for JSON."""

    def encode(self, item: Any) -> bytes:
        """Encode an object."""
        return json.dumps(item).encode()

    def decode(self, data: bytes) -> Any:
        """Decode an object."""
        return json.loads(data)


BOTH = pytest.mark.parametrize("kind", ["to_blocking_queue", "to_transactional_blocking_queue"])
TAKES = pytest.mark.parametrize("take", [lambda objects: objects.get(0), lambda objects: objects.poll()])

# Both.


@BOTH
def test_put_returns_true_when_safe_and_false_when_refused(program: Program, kind: str) -> None:
    queue = program.queue(config(max_item_size_bytes=5))
    objects = getattr(queue, kind)(Json())
    told = arrivals(objects.put([1]))
    assert told == []
    program.reactor.settle()
    assert told == [True]
    assert program.result(objects.put("too large")) is False
    assert (objects.size, len(objects)) == (1, 1)


@BOTH
def test_lost_put_fails(program: Program, kind: str) -> None:
    queue = program.queue()
    objects = getattr(queue, kind)(Json())
    program.disk.fail("write", errno.EIO, times=1)
    with pytest.raises(QueueFailed):
        program.result(objects.put(1))
    with pytest.raises(QueueFailed):
        program.result(queue.checkpoint())


@BOTH
def test_put_head_is_a_type_error(program: Program, kind: str) -> None:
    objects = getattr(program.queue(), kind)(Json())
    with pytest.raises(TypeError, match="head"):
        objects.put_head(1)


def test_none_is_rejected_without_transactions(program: Program) -> None:
    objects = program.queue().to_blocking_queue(Json())
    with pytest.raises(TypeError, match="None"):
        objects.put(None)
    assert objects.size == 0


def test_none_is_an_item_of_a_transaction(program: Program) -> None:
    objects = program.queue().to_transactional_blocking_queue(Json())
    assert program.result(objects.put(None))
    assert program.result(objects.poll()).item is None


def test_poll_if_is_a_type_error(program: Program) -> None:
    objects = program.queue().to_blocking_queue(Json())
    with pytest.raises(TypeError, match="predicate"):
        objects.poll_if(lambda item: True)


@BOTH
def test_queue_of_objects_uses_only_the_default_reader(program: Program, kind: str) -> None:
    queue = program.queue()
    queue.reader(b"a")
    with pytest.raises(BadQueueName):
        getattr(queue, kind)(Json())


@BOTH
def test_waiters_time_out_and_are_evicted_and_cancelled(program: Program, kind: str) -> None:
    objects = getattr(program.queue(), kind)(Json())
    timed, gone, evicted = objects.get(5), objects.get(), objects.get()
    seen = [arrivals(each) for each in (timed, gone, evicted)]
    assert objects.waiter_count == 3
    gone.cancel()
    program.reactor.pass_time(5)
    objects.evict_waiters()
    assert (seen[0], [type(each) for each in seen[1]], seen[2]) == ([None], [CancelledError], [None])


@BOTH
def test_flush_and_close_affect_the_queue(program: Program, kind: str) -> None:
    queue = program.queue()
    objects = getattr(queue, kind)(Json())
    program.result(objects.put(1))
    objects.flush()
    assert objects.size == 0
    program.result(objects.close())
    assert queue.is_closed


@BOTH
@TAKES
def test_undecodable_item_returns_with_one_more_error(program: Program, kind: str, take: Callable[[Any], Any]) -> None:
    queue = program.queue(config(reader=JournaledQueueReaderConfig(error_handler=lambda item: item.errors > 1)))
    objects = getattr(queue, kind)(Json())
    program.put(queue, b"{")
    for size in (1, 0):
        with pytest.raises(json.JSONDecodeError):
            program.result(take(objects))
        assert objects.size == size


# Without transactions.


@TAKES
def test_item_is_done_when_it_is_returned(program: Program, take: Callable[[Any], Any]) -> None:
    queue = program.queue()
    objects = queue.to_blocking_queue(Json())
    for item in (["first"], {"second": 2}, "third"):
        program.result(objects.put(item))
    assert program.result(take(objects)) == ["first"]
    assert program.result(take(objects)) == {"second": 2}
    queue = program.restart(queue)
    objects = queue.to_blocking_queue(Json())
    assert [program.result(take(objects)) for _ in range(2)] == ["third", None]


def test_waiter_gets_the_next_item(program: Program) -> None:
    objects = program.queue().to_blocking_queue(Json())
    waiting = arrivals(objects.get())
    objects.put(7)
    assert waiting == [7]


# With transactions.


@TAKES
def test_transaction_is_committed(program: Program, take: Callable[[Any], Any]) -> None:
    queue = program.queue()
    objects = queue.to_transactional_blocking_queue(Json())
    for item in (1, 2):
        program.result(objects.put(item))
    first, second = program.result(take(objects)), program.result(take(objects))
    assert (first.item, second.item, objects.size) == (1, 2, 2)
    assert second.commit()
    assert not second.commit()
    queue = program.restart(queue)
    objects = queue.to_transactional_blocking_queue(Json())
    assert program.result(take(objects)).item == 1
    assert program.result(take(objects)) is None


@TAKES
def test_transaction_is_rolled_back(program: Program, take: Callable[[Any], Any]) -> None:
    seen: list[QueueItem] = []
    handler = JournaledQueueReaderConfig(error_handler=lambda item: bool(seen.append(item)))  # type: ignore[func-returns-value]
    objects = program.queue(config(reader=handler)).to_transactional_blocking_queue(Json())
    for item in (1, 2):
        program.result(objects.put(item))
    first = program.result(take(objects))
    assert first.rollback()
    assert not first.rollback()
    again, second = program.result(take(objects)), program.result(take(objects))
    assert (again.item, second.item, [item.errors for item in seen]) == (1, 2, [1])
    assert again.commit() and second.commit()
    assert objects.size == 0
