"""Puts to servers that accept, refuse or fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

import pytest

from kestrel.client.errors import CannotConnect, ConnectionFailed, RequestError, ServerError
from kestrel.client.put_batch import BATCH_BYTES, BATCH_ITEMS
from kestrel.client.retrying_server import LONGEST_PAUSE_S
from kestrel.spark.options import SourceFailed
from kestrel.spark.stream.queue_writer import BatchPutter
from tests.client.sleeping import Time

FOREVER = 1 << 60


@dataclass
class Server:
    """A server with room for that many items of limited size, and a limit of items per request. It can fail the next
    requests.
    """

    name: str
    room: int = FOREVER
    most_bytes: int = FOREVER
    most_items: int = FOREVER
    largest: int = FOREVER
    """The size of an item that no request can carry."""
    failure: Exception | None = None
    failures_left: int = FOREVER
    stores_before_it_fails: bool = False
    requests: int = 0
    items: list[bytes] = field(default_factory=list)
    expiries: set[int] = field(default_factory=set)

    def put(self, items: Sequence[bytes], expiry_ms: int) -> int:
        if len(items) > self.most_items:
            raise RequestError(f"{self.name}: too many items in one call; limit={self.most_items}")
        if any(len(item) > self.largest for item in items):
            raise RequestError(f"{self.name}: item too large; limit={self.largest}")
        self.requests += 1
        if self.failure is not None and self.failures_left:
            self.failures_left -= 1
            if self.stores_before_it_fails:
                self.items += items
            raise self.failure
        count = 0
        while count < len(items) and self.room and len(items[count]) <= self.most_bytes:
            self.room -= 1
            count += 1
        self.items += items[:count]
        self.expiries.add(expiry_ms)
        return count


@pytest.fixture
def time() -> Time:
    return Time()


def putting(time: Time, *servers: Server, patience_s: float = 60, seed: int = 1) -> BatchPutter:
    return BatchPutter(
        {server.name: server.put for server in servers},
        "work",
        patience_s,
        random=Random(seed),
        seconds=time.seconds,
        sleep=time.sleep,
    )


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_one_server_gets_the_items_in_order_and_counts_them(time: Time) -> None:
    server = Server("mq1")
    task = putting(time, server)
    task.put(numbered(3 * BATCH_ITEMS + 1), 1500)
    task.put([b"more"])
    assert server.items == [*numbered(3 * BATCH_ITEMS + 1), b"more"]
    assert server.expiries == {1500, 0}
    assert task.counts == {"mq1": 3 * BATCH_ITEMS + 2} and task.unsure == 0
    assert server.requests == 5 and time.pauses_s == []


@pytest.mark.parametrize(("items", "requests"), [([], 0), ([b"x" * (BATCH_BYTES // 2)] * 5, 3)])
def test_requests_have_at_most_one_batch_and_are_not_empty(
    time: Time, items: list[bytes], requests: int
) -> None:
    server = Server("mq1")
    putting(time, server).put(items)
    assert server.requests == requests


def test_batches_go_to_the_servers_in_turn(time: Time) -> None:
    servers = [Server(name) for name in ("mq1", "mq2", "mq3")]
    putting(time, *servers).put(numbered(6 * BATCH_ITEMS))
    assert [len(server.items) for server in servers] == [2 * BATCH_ITEMS] * 3


def test_tasks_begin_with_different_servers(time: Time) -> None:
    begun = set()
    for seed in range(50):
        servers = [Server(name) for name in ("mq1", "mq2", "mq3")]
        putting(time, *servers, seed=seed).put([b"x"])
        begun |= {server.name for server in servers if server.items}
    assert begun == {"mq1", "mq2", "mq3"}


@pytest.mark.parametrize("failure", [CannotConnect("mq1: refused"), ServerError("mq1: the server is ReadOnly")])
def test_refused_items_go_to_another_server_at_once(time: Time, failure: Exception) -> None:
    mq1, mq2 = Server("mq1", failure=failure), Server("mq2")
    task = putting(time, mq1, mq2)
    task.put(numbered(10 * BATCH_ITEMS))
    assert mq2.items == numbered(10 * BATCH_ITEMS)
    assert task.counts == {"mq1": 0, "mq2": 10 * BATCH_ITEMS} and task.unsure == 0
    assert time.pauses_s == []


def test_failed_server_is_tried_again_after_a_while(time: Time) -> None:
    mq1, mq2 = Server("mq1", failure=CannotConnect("mq1: refused"), failures_left=1), Server("mq2")
    task = putting(time, mq1, mq2)
    task.put(numbered(20 * BATCH_ITEMS))
    assert mq1.requests == 1
    time.now_s += 10
    task.put(numbered(4 * BATCH_ITEMS))
    assert len(mq1.items) == 2 * BATCH_ITEMS


def test_pause_is_short_again_after_a_reply(time: Time) -> None:
    mq1, mq2 = Server("mq1"), Server("mq2")
    task = putting(time, mq1, mq2)
    for failures_left in (7, 1):
        mq1.failure, mq1.failures_left = CannotConnect("mq1: refused"), failures_left
        while mq1.failures_left:
            time.now_s += 60
            task.put(numbered(2 * BATCH_ITEMS))
        time.now_s += 60 if failures_left > 1 else 0.5
        before = len(mq1.items)
        task.put(numbered(2 * BATCH_ITEMS))
        assert len(mq1.items) == before + BATCH_ITEMS


def test_pauses_double_up_to_a_limit_while_no_server_accepts(time: Time) -> None:
    failure = ServerError("the server is Quiescent")
    task = putting(time, *(Server(name, failure=failure, failures_left=10) for name in ("mq1", "mq2")))
    task.put([b"x"])
    assert sum(task.counts.values()) == 1
    assert len(time.pauses_s) == 10
    for pause_s, most_s in zip(time.pauses_s, [0.5, 1, 2, 4, *[LONGEST_PAUSE_S] * 6], strict=True):
        assert most_s / 2 <= pause_s <= most_s


def test_items_that_may_be_stored_are_put_again_and_counted(time: Time) -> None:
    failure = ConnectionFailed("mq1: no answer")
    mq1 = Server("mq1", failure=failure, failures_left=1, stores_before_it_fails=True)
    task = putting(time, mq1)
    task.put([b"a", b"b"])
    assert mq1.items == [b"a", b"b", b"a", b"b"]
    assert task.counts == {"mq1": 2} and task.unsure == 2


def test_rest_of_a_batch_goes_to_another_server(time: Time) -> None:
    mq1, mq2 = Server("mq1", room=3), Server("mq2", room=7)
    putting(time, mq1, mq2).put(numbered(10))
    assert sorted([*mq1.items, *mq2.items]) == sorted(numbered(10))
    assert time.pauses_s == []


def test_full_queue_is_waited_for_while_consumers_make_room(time: Time) -> None:
    server = Server("mq1", room=1)

    def consume() -> None:
        server.room += 1

    time.at_each_pause = consume
    task = putting(time, server, patience_s=1)
    task.put(numbered(100))
    assert server.items == numbered(100)
    assert sum(time.pauses_s) > 20 and max(time.pauses_s) <= 0.5  # far more than the patience, and always the first


def test_queue_that_stays_full_fails_the_task_after_the_patience(time: Time) -> None:
    mq1, mq2 = Server("mq1:2229", room=3), Server("mq2:2229", room=2)
    with pytest.raises(SourceFailed) as caught:
        putting(time, mq1, mq2, patience_s=90).put([b"x" * 17] * 12)
    assert str(caught.value) in {
        f"the queue work is full on {first}, {second}: 7 of the 12 items that this task has read were not put, "
        "because no server accepted an item for 1m30s (patience). The first of them has 17 bytes: "
        "check that maxItemSize is not less. 5 items of this task are in: they are duplicated if Spark runs it again"
        for first, second in (("mq1:2229", "mq2:2229"), ("mq2:2229", "mq1:2229"))
    }
    assert sum(time.pauses_s) == pytest.approx(90)


def test_without_patience_every_server_is_tried_once(time: Time) -> None:
    failures = {"mq1": CannotConnect("mq1: refused"), "mq2": None, "mq3": None}
    servers = [Server(name, room=0, failure=failure) for name, failure in failures.items()]
    with pytest.raises(SourceFailed, match=r"full on mq., mq., and could not be put to: mq1: refused: 2 of the 2"):
        putting(time, *servers, patience_s=0).put([b"a", b"b"])
    assert [server.requests for server in servers] == [1, 1, 1]
    assert time.pauses_s == []


def test_failure_of_the_task_has_the_reasons_of_all_servers(time: Time) -> None:
    mq1 = Server("mq1", failure=CannotConnect("mq1: refused"))
    mq2 = Server("mq2", failure=ServerError("mq2: the server is ReadOnly"))
    with pytest.raises(SourceFailed) as caught:
        putting(time, mq1, mq2, patience_s=60).put([b"secret"])
    text = str(caught.value)
    assert text.startswith("the queue work could not be put to: mq")
    assert "mq1: refused" in text and "mq2: the server is ReadOnly" in text and "secret" not in text
    assert ": 1 of the 1 items that this task has read were not put" in text
    assert text.endswith("because no server accepted an item for 1m (patience)")


def test_old_reason_of_a_failure_is_not_reported(time: Time) -> None:
    mq1 = Server("mq1", room=2, failure=CannotConnect("mq1: refused"), failures_left=1)
    with pytest.raises(SourceFailed, match=r"^the queue work is full on mq1: 1 of the 3") as caught:
        putting(time, mq1).put(numbered(3))
    assert "refused" not in str(caught.value)


def test_failure_of_the_task_mentions_possible_duplicates(time: Time) -> None:
    mq1 = Server("mq1", failure=ConnectionFailed("mq1: no answer"))
    with pytest.raises(SourceFailed, match=r"\. 0 items of this task are in, and perhaps 2 more: they are dupl"):
        putting(time, mq1, patience_s=0).put([b"a", b"b"])


def test_item_above_queue_limit_waits_and_reports_size(time: Time) -> None:
    """The client cannot distinguish it from an item that finds the queue full."""
    server = Server("mq1", most_bytes=100)
    with pytest.raises(SourceFailed, match=r"3 of the 5 items .* has 101 bytes: check that maxItemSize is not less"):
        putting(time, server).put([b"a", b"b", b"c" * 101, b"d", b"e"])
    assert server.items == [b"a", b"b"]


def test_item_too_large_for_any_request_fails_task(time: Time) -> None:
    server = Server("mq1", largest=100)
    with pytest.raises(SourceFailed) as caught:
        putting(time, server).put([b"a", b"b", b"c" * 101, b"d", b"e"])
    assert str(caught.value) == (
        "an item of 101 bytes cannot be put to the queue work: mq1: item too large; limit=100. Filter out such items, "
        "for example by length(data). 2 items of this task are in: they are duplicated if Spark runs it "
        "again"
    )
    assert server.items == [b"a", b"b"] and time.pauses_s == []


def test_large_batch_is_put_in_ordered_requests(time: Time) -> None:
    server = Server("mq1", most_items=7)
    putting(time, server).put(numbered(BATCH_ITEMS))
    assert server.items == numbered(BATCH_ITEMS)


def test_rest_of_a_split_batch_goes_to_another_server(time: Time) -> None:
    servers = small, large = Server("mq1", room=6, most_items=4), Server("mq2")
    for _ in range(2):
        putting(time, *servers).put(numbered(16))
    assert small.room == 0
    assert sorted([*small.items, *large.items]) == sorted(numbered(16) * 2)
    assert all(int(one) < int(next_) for one, next_ in pairwise(small.items[:4]))
