"""The history of the last hour: samples every ten seconds, gaps, and a limited number of queues."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from kestrel.admin.history import SAMPLES, STEP_S, StatsHistory
from kestrel.admin.history import history as told
from kestrel.admin.request_response import AdminRequest
from kestrel.admin.time_slices import make_cooperator
from kestrel.testing.server import EPOCH_MS, MemoryClient, MemoryServer
from tests.admin.browsing import Admin, WorkingClock
from tests.memcache_text import set_


def started(config: str = "") -> Admin:
    """Return a server that records its history."""
    admin = Admin(config)
    admin.port.start()
    admin.server.settle()
    return admin


def hour(admin: Admin, *names: str) -> dict[str, Any]:
    """Return the series of these queues, or of the server."""
    series: dict[str, Any] = admin.get("/api/history?" + "&".join(f"queue={name}" for name in names)).json["series"]
    return series


def of(admin: Admin, name: str = "") -> dict[str, Any]:
    series: dict[str, Any] = hour(admin, name)[name]
    return series


def test_history_has_a_sample_every_ten_seconds() -> None:
    admin = started()
    admin.send(set_(b"work", b"123") * 20)
    admin.advance(10)
    admin.send(b"get work\r\n" * 10)
    admin.advance(10)
    assert of(admin, "work") == {
        "items": [20, 10],
        "bytes": [60, 30],
        "puts": [None, 0],
        "gets": [None, 1],
    }
    assert of(admin) == {"items": [0, 20, 10], "bytes": [0, 60, 30], "puts": [None, 2, 0], "gets": [None, 0, 1]}
    reply = admin.get("/api/history").json
    assert (reply["step_ms"], reply["end_ms"]) == (10_000, EPOCH_MS + 20_000)


def test_history_is_empty_before_the_queues_are_loaded() -> None:
    assert of(Admin()) == {"items": [], "bytes": [], "puts": [], "gets": []}


def test_history_covers_one_hour() -> None:
    admin = started()
    for _ in range(SAMPLES + 40):
        admin.send(set_(b"work", b"1"))
        admin.advance(STEP_S)
    series = of(admin, "work")
    assert series["items"] == list(range(41, SAMPLES + 41))
    assert series["puts"] == [None] + [0.1] * (SAMPLES - 1)
    assert {len(column) for column in of(admin).values()} == {SAMPLES}


def test_missed_samples_are_a_gap_in_the_history() -> None:
    """The process was stopped, or the machine was suspended."""
    admin = started()
    admin.send(set_(b"work", b"1"))
    admin.advance(10)
    admin.send(set_(b"work", b"1") * 99)
    admin.server.advance(45)
    admin.advance(5, step=5)
    assert of(admin, "work")["items"] == [1, None, None, None, 100, 100]
    assert of(admin, "work")["puts"] == [None, None, None, None, None, 0]
    assert of(admin)["items"] == [0, 1, None, None, None, 100, 100]
    assert admin.get("/api/history").json["end_ms"] == EPOCH_MS + 60_000


def test_a_gap_of_more_than_an_hour_clears_the_history() -> None:
    admin = started()
    admin.send(set_(b"work", b"1"))
    admin.advance(10)
    admin.server.advance(STEP_S * SAMPLES * 3)
    assert of(admin, "work")["items"] == [None] * (SAMPLES - 1) + [1]


def test_recreated_queue_has_no_rate_in_first_sample() -> None:
    admin = started()
    admin.send(set_(b"work", b"1") * 5)
    admin.advance(10)
    admin.send(b"delete work\r\n" + set_(b"work", b"1") * 3)
    admin.advance(10)
    admin.send(set_(b"work", b"1") * 10)
    admin.advance(10)
    assert of(admin, "work")["puts"] == [None, None, 1]
    assert of(admin, "work")["items"] == [5, 3, 13]


def test_a_deleted_queue_has_no_history() -> None:
    admin = started()
    admin.send(set_(b"work", b"1"))
    admin.advance(10)
    admin.send(b"delete work\r\n")
    admin.advance(10)
    assert hour(admin, "work") == {}


def test_totals_of_the_server_include_deleted_queues() -> None:
    admin = started()
    admin.send(set_(b"work", b"1") * 20 + b"get work\r\n" * 10)
    admin.send(b"delete work\r\n")
    admin.advance(10)
    assert (of(admin)["puts"], of(admin)["gets"]) == ([None, 2], [None, 1])


def test_history_of_a_queue_starts_when_another_one_is_deleted() -> None:
    admin = started("[admin]\nmaxQueueSeries = 2")
    for name in (b"a", b"b", b"c"):
        admin.send(set_(name, b"1"))
    admin.advance(10)
    assert list(hour(admin, "a", "b", "c")) == ["a", "b"]
    assert of(admin)["items"] == [0, 3]
    admin.send(b"delete a\r\n")
    admin.advance(20)
    assert list(hour(admin, "a", "b", "c")) == ["b", "c"]


def test_too_many_queues_in_one_history_request_are_refused() -> None:
    admin = started()
    names = [f"queue{number}" for number in range(101)]
    assert hour(admin, *names[:100]) == {}
    reply = admin.get("/api/history?" + "&".join(f"queue={name}" for name in names))
    assert (reply.status, reply.error) == (400, "101 queues are too many for one request; limit=100")
    assert hour(admin, *["queue"] * 150) == {}, "one name is one queue, however often it is said"


def test_history_of_a_queue_with_any_name_is_found() -> None:
    admin = started()
    admin.send(set_(b"\xe9t\xe9", b"1"))
    admin.advance(10)
    assert list(hour(admin, "%e9t%e9")) == [r"\xe9t\xe9"]


def sampled(server: MemoryServer) -> tuple[StatsHistory, MemoryClient]:
    """Return a history whose samples the test takes, and a client that has put an item into each of many queues."""
    client = server.connect()
    client.ask(b"".join(set_(b"%d" % number, b"1") for number in range(200)))
    return StatsHistory(server.manager, server.clock, make_cooperator(server.clock), lambda: 1000), client


def take(history: StatsHistory) -> None:
    for _ in history.sampling():
        pass


def test_an_unfinished_sample_is_not_shown() -> None:
    server = MemoryServer()
    history, client = sampled(server)
    for _ in range(SAMPLES):
        take(history)
    client.ask(b"get 0\r\nget 199\r\n")
    next(history.sampling())
    for name, series in history.series([b"0", b"199"]).items():
        assert series["items"] == [1] * SAMPLES, name
    take(history)
    assert history.series([b"0"])[b"0"]["items"] == [1] * (SAMPLES - 1) + [0]


def test_queue_deleted_during_sample_counts_once() -> None:
    history, client = sampled(MemoryServer())
    for goes in (b"0", b"199"):
        steps = history.sampling()
        next(steps)
        client.ask(b"delete %b\r\n" % goes)
        for _ in steps:
            pass
    take(history)
    server = history.series([b""])[b""]
    assert server["puts"] == [None, 0, 0]
    assert server["items"][-1] == 198


def test_no_step_of_a_sample_is_long() -> None:
    history, _ = sampled(MemoryServer())
    assert sum(1 for _ in history.sampling()) >= 200 // 64


def test_a_stop_during_a_sample_logs_no_failure() -> None:
    """The fixture of every test here checks that."""
    server = MemoryServer()
    clock = WorkingClock(server)
    admin = Admin(server=server, clock=clock)
    for number in range(200):
        server.manager.queue(b"%d" % number)
    admin.port.start()
    assert clock.turns == 0
    admin.port.hang_up()
    admin.port.abort()
    server.advance(60)
    assert not server.clock.getDelayedCalls()


def pieces_of(history: StatsHistory, *names: str) -> Iterator[bytes]:
    nobody: Any = None
    asked = AdminRequest("GET", (b"api", b"history"), {"queue": [name.encode() for name in names]})
    return iter(told(history, nobody, asked).pieces)


def test_history_is_sent_one_queue_at_a_time() -> None:
    history, _ = sampled(MemoryServer())
    take(history)
    names = [str(number) for number in range(100)]
    pieces = list(pieces_of(history, *names))
    assert len(pieces) > len(names)
    assert json.loads(b"".join(pieces))["series"].keys() == set(names)


@pytest.mark.parametrize("told_before", [1, 2])
def test_slow_history_response_has_one_end_time(told_before: int) -> None:
    server = MemoryServer()
    history, _ = sampled(server)
    take(history)
    pieces = pieces_of(history, "1", "2")
    answer = b"".join(next(pieces) for _ in range(told_before))
    server.advance(STEP_S)
    take(history)
    reply = json.loads(answer + b"".join(pieces))
    assert reply["end_ms"] == EPOCH_MS
    assert {name: series["items"] for name, series in reply["series"].items()} == {"1": [1], "2": [1]}
