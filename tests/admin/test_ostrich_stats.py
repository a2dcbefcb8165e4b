"""The statistics of Kestrel's admin port: totals, of a period, and since the last request."""

from __future__ import annotations

from typing import Any

import pytest

from kestrel.admin import ostrich_stats, stats
from kestrel.admin.ostrich_stats import MAX_NAMESPACES, MAX_PERIODS, NAMESPACE_TIMEOUT_S, gather_all_stats
from kestrel.admin.stats import MAX_ANSWERS
from tests.admin.browsing import Admin, reply_in, request
from tests.memcache_text import set_

COUNTERS = {
    *("bytes_read", "bytes_written", "cmd_get", "cmd_set", "get_hits", "get_misses", "queue_creates"),
    *("total_connections", "total_items"),
}
GAUGES = {
    *("bytes", "connections", "items", "reserved_memory_ratio", "status/readable", "status/writeable"),
    "kestrel-memcache/connections",
}
QUEUE_COUNTERS = {
    *("canceled_transactions", "discarded", "expired_items", "get_items_hit", "get_items_miss", "journal_rewrites"),
    *("journal_rotations", "put_bytes", "put_items", "total_flushes", "total_items", "transactions"),
}
QUEUE_GAUGES = {
    *("age_msec", "bytes", "create_time", "items", "journal_size", "max_bytes", "max_items", "mem_bytes", "mem_items"),
    *("oldest_age_msec", "open_transactions", "waiters"),
}
QUEUE_METRICS = {
    *("delivery_latency_msec", "fill_readbehind_usec", "get_hit_latency_usec", "get_miss_latency_usec"),
    *("get_timeout_msec", "journal_rewrite_usec", "journal_rotation_usec", "request_size", "set_latency_usec"),
}
METRICS = {"delivery_latency_msec", "get_hit_latency_usec", "get_timeout_msec", "set_latency_usec"}
"""The statistics of Kestrel 2.4.8 after some puts and gets of two queues, without those of the JVM, of its network
library, and of the lists inside its queues.
"""


def figures(admin: Admin, query: str = "") -> Any:
    """Return the content of stats.json."""
    return admin.get(f"/stats.json{query}").json


@pytest.fixture
def admin() -> Admin:
    """Put 50 items of five bytes, take one at once, and 20 after a second."""
    admin = Admin()
    admin.send(set_(b"work", b"12345") * 50 + b"get work/open\r\nget work/abort\r\n")
    admin.server.advance(1)
    admin.send(b"get work\r\n" * 20)
    waiting = admin.server.connect()
    waiting.ask(b"get empty/t=250\r\n")
    admin.server.advance(0.25)
    waiting.disconnect()
    return admin


def test_stats_json_has_every_name_of_kestrel(admin: Admin) -> None:
    told = figures(admin)
    assert list(told) == ["counters", "gauges", "labels", "metrics"]
    for queue in ("work", "empty"):
        assert not {f"q/{queue}/{name}" for name in QUEUE_COUNTERS} - told["counters"].keys()
        assert not {f"q/{queue}/{name}" for name in QUEUE_GAUGES} - told["gauges"].keys()
        assert not {f"q/{queue}/{name}" for name in QUEUE_METRICS} - told["metrics"].keys()
    assert not COUNTERS - told["counters"].keys()
    assert not GAUGES - told["gauges"].keys()
    assert not METRICS - told["metrics"].keys()
    assert told["labels"] == {"version": "1.2.3"}


def test_stats_json_has_the_values_of_kestrel(admin: Admin) -> None:
    told = figures(admin)
    expected = {
        "cmd_set": 50,
        "cmd_get": 22,
        "get_hits": 21,
        "get_misses": 1,
        "queue_creates": 2,
        "total_items": 50,
        "q/work/put_items": 50,
        "q/work/put_bytes": 250,
        "q/work/get_items_hit": 21,
        "q/work/get_items_miss": 0,
        "q/empty/get_items_hit": 0,
        "q/empty/get_items_miss": 1,
        "q/empty/put_items": 0,
        "q/work/transactions": 1,
        "q/work/canceled_transactions": 1,
        "q/work/total_items": 50,
        "q/work/journal_rewrites": 0,
    }
    assert {name: told["counters"][name] for name in expected} == expected
    expected = {
        "items": 30,
        "bytes": 150,
        "q/work/items": 30,
        "q/work/bytes": 150,
        "q/work/mem_items": 30,
        "q/work/max_items": 2147483647,
        "q/work/max_bytes": 9223372036854775807,
        "q/work/age_msec": 1000,
        "q/work/create_time": 1_700_000_000,
        "q/work/waiters": 0,
        "status/readable": 1,
        "status/writeable": 1,
        "connections": 0,
        "kestrel-memcache/connections": 0,
        "q/work/open_transactions": 0,
    }
    assert {name: told["gauges"][name] for name in expected} == expected
    assert told["metrics"]["q/work/request_size"] == {
        "average": 5,
        "count": 50,
        "maximum": 5,
        "minimum": 5,
        "p50": 5,
        "p90": 5,
        "p95": 5,
        "p99": 5,
        "p999": 5,
        "p9999": 5,
        "sum": 250,
    }
    assert told["metrics"]["q/empty/set_latency_usec"] == {"count": 0}
    timeouts = told["metrics"]["q/empty/get_timeout_msec"]
    assert (timeouts["count"], timeouts["sum"], timeouts["average"], timeouts["p9999"]) == (1, 250, 250, 250)
    assert told["metrics"]["get_timeout_msec"] == timeouts
    delivery = told["metrics"]["delivery_latency_msec"]
    assert (delivery["count"], delivery["sum"], delivery["minimum"], delivery["maximum"]) == (21, 20_000, 0, 1000)


def test_stats_json_has_the_limits_of_a_queue(admin: Admin) -> None:
    limited = Admin("[[queues]]\nname = 'work'\nmaxItems = 7\nmaxSize = '1 KB'\n")
    limited.send(set_(b"work", b"1"))
    gauges = figures(limited)["gauges"]
    assert (gauges["q/work/max_items"], gauges["q/work/max_bytes"]) == (7, 1024)


def test_the_status_is_shown_as_two_gauges() -> None:
    admin = Admin()
    admin.post("/api/status/ReadOnly")
    gauges = figures(admin)["gauges"]
    assert (gauges["status/readable"], gauges["status/writeable"]) == (1, 0)


def test_statistics_are_sorted_by_name(admin: Admin) -> None:
    for name in range(20):
        admin.send(set_(b"queue%d" % name, b"1"))
    for section in figures(admin).values():
        assert list(section) == sorted(section)


def test_text_and_json_are_equal(admin: Admin) -> None:
    reply = admin.get("/stats.txt")
    assert reply.headers["content-type"] == "text/plain; charset=utf-8"
    expected = []
    for section, values in figures(admin).items():
        expected.append(f"{section}:")
        for name, value in values.items():
            if isinstance(value, dict):
                value = "(" + ", ".join(f"{part}={number}" for part, number in value.items()) + ")"
            expected.append(f"  {name}: {value}")
    assert reply.body.decode().splitlines() == expected


@pytest.mark.parametrize(
    ("name", "shown", "encoded"),
    [(b'\xe9"t\\', r'\xe9"t\\', "%e9%22t%5c"), (b"\\xe9", r"\\xe9", "%5cxe9"), ("é".encode(), "é", "%c3%a9")],
)
def test_statistics_escape_queue_names(name: bytes, shown: str, encoded: str) -> None:
    admin = Admin()
    admin.send(set_(name, b"1"))
    assert figures(admin)["counters"][f"q/{shown}/put_items"] == 1
    assert f"  q/{shown}/put_items: 1" in admin.get("/stats.txt").body.decode().splitlines()
    assert figures(admin, f"?prefix=q/{encoded}/put_items")["counters"] == {f"q/{shown}/put_items": 1}


def test_statistics_of_an_alias_count_its_puts() -> None:
    admin = Admin("[[aliases]]\nname = 'al'\ndestinationQueues = ['one', 'two']")
    admin.send(set_(b"al", b"123"))
    counters = figures(admin)["counters"]
    assert (counters["q/al/put_items"], counters["q/al/put_bytes"], counters["q/one/put_items"]) == (1, 3, 1)


def test_prefix_limits_the_statistics_to_matching_names(admin: Admin) -> None:
    told = figures(admin, "?prefix=q/work/put")
    assert told["counters"] == {"q/work/put_bytes": 250, "q/work/put_items": 50}
    assert [len(section) for section in told.values()] == [2, 0, 0, 0]
    text = admin.get("/stats.txt?prefix=q/work/put").body
    assert text == b"counters:\n  q/work/put_bytes: 250\n  q/work/put_items: 50\ngauges:\nlabels:\nmetrics:\n"


# Periods and namespaces.


def test_a_period_shows_the_last_completed_one(admin: Admin) -> None:
    def puts_and_gets() -> tuple[int, int, int]:
        told = figures(admin, "?period=60")
        sizes = told["metrics"]["q/work/request_size"]
        return told["counters"]["q/work/put_items"], told["counters"]["get_hits"], sizes["count"]

    assert puts_and_gets() == (50, 21, 50), "before the first is over, all of the time before"
    admin.send(set_(b"work", b"1") * 3)
    admin.server.advance(59)
    assert puts_and_gets() == (50, 21, 50)
    admin.server.advance(1)
    assert puts_and_gets() == (3, 0, 3)
    admin.send(set_(b"work", b"1") * 2 + b"get work\r\n")
    admin.server.advance(59)
    assert puts_and_gets() == (3, 0, 3)
    admin.server.advance(1)
    assert puts_and_gets() == (2, 1, 2)
    admin.server.advance(60)
    assert puts_and_gets() == (0, 0, 0)


def test_gauges_of_a_period_are_those_at_its_end(admin: Admin) -> None:
    figures(admin, "?period=60")
    admin.send(set_(b"work", b"1") * 3)
    admin.server.advance(60)
    admin.send(set_(b"work", b"1"))
    assert figures(admin, "?period=60")["gauges"]["q/work/items"] == 33


@pytest.mark.parametrize("period", ["0", "1", "59", "-60"])
def test_a_period_below_a_minute_is_refused_as_by_kestrel(period: str) -> None:
    reply = Admin().get(f"/stats.json?period={period}")
    assert (reply.status, reply.error) == (400, "Invalid option for stats command: statsListenerMinPeriod:1.minutes")


@pytest.mark.parametrize("period", ["", "a", "6e1", "60.0", "%ff", "86401", "9" * 30, "6_0", "%2060", "+60"])
def test_an_invalid_period_is_refused(period: str) -> None:
    admin = Admin()
    assert admin.get(f"/stats.json?period={period}").status == 400
    assert not admin.server.clock.getDelayedCalls()


def test_a_namespace_shows_changes_since_its_last_request(admin: Admin) -> None:
    def puts(namespace: str) -> tuple[int, int]:
        told = figures(admin, f"?namespace={namespace}")
        return told["counters"]["q/work/put_items"], told["metrics"]["q/work/request_size"]["count"]

    assert (puts("a"), puts("a")) == ((50, 50), (0, 0))
    admin.send(set_(b"work", b"1") * 3)
    assert (puts("a"), puts("a"), puts("b")) == ((3, 3), (0, 0), (53, 53))
    assert figures(admin)["counters"]["q/work/put_items"] == 53


def test_recreated_queue_counts_from_zero(admin: Admin) -> None:
    figures(admin, "?namespace=a")
    admin.send(b"delete work\r\n" + set_(b"work", b"1") * 60)
    told = figures(admin, "?namespace=a")
    assert told["metrics"]["q/work/request_size"]["count"] == 60
    assert told["metrics"]["q/work/delivery_latency_msec"] == {"count": 0}
    assert told["metrics"]["request_size"]["count"] == 60
    assert told["counters"]["q/work/get_items_hit"] == 0


def test_no_step_keeps_the_figures_of_many_queues() -> None:
    admin = Admin()
    for number in range(200):
        admin.server.manager.queue(b"queue%03d" % number)
    assert sum(1 for _ in gather_all_stats(admin.site.server_view)) > 200


def test_figures_of_many_queues_are_kept_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ostrich_stats, "MAX_KEPT_QUEUES", 40)
    admin = Admin()
    for number in range(20):
        admin.server.manager.queue(b"queue%03d" % number)
    assert [admin.get(f"/stats.txt?namespace={name}").status for name in "abab"] == [200] * 4
    reply = admin.get("/stats.txt?namespace=c")
    assert (reply.status, reply.error) == (
        503,
        "statistics of 20 queues are saved 2 times already; try again later",
    )
    assert admin.get("/stats.txt?period=60").status == 503
    assert admin.get("/stats.txt").status == 200


@pytest.mark.parametrize(
    ("query", "most", "error"),
    [
        ("period=6{}", MAX_PERIODS, "too many periods; those of 60, 61, 62, 63 seconds are in use; limit=4"),
        ("namespace={}", MAX_NAMESPACES, "too many namespaces are in use; limit=16"),
    ],
)
def test_periods_and_namespaces_are_limited_and_dropped_after_an_hour(query: str, most: int, error: str) -> None:
    admin = Admin()

    def status(number: int) -> int:
        return admin.get(f"/stats.txt?{query.format(number)}").status

    assert [status(number) for number in range(most)] == [200] * most
    admin.advance(NAMESPACE_TIMEOUT_S - 1)
    assert status(0) == 200
    reply = admin.get(f"/stats.txt?{query.format(most)}")
    assert (reply.status, reply.error) == (409, error)
    admin.advance(1)
    assert [status(most + number) for number in range(most - 1)] == [200] * (most - 1)
    assert status(2 * most) == 409
    assert status(0) == 200


def test_a_long_period_is_dropped_after_twice_its_length() -> None:
    admin = Admin()
    assert admin.get("/stats.txt?period=7200").status == 200
    admin.advance(2 * 7200 - 1)
    others = [admin.get(f"/stats.txt?period={60 + number}").status for number in range(MAX_PERIODS)]
    assert others == [200] * (MAX_PERIODS - 1) + [409]
    admin.advance(1)
    assert admin.get("/stats.txt?period=300").status == 200


def test_concurrent_requests_do_not_exceed_the_namespaces(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "MAX_ANSWERS", 20)
    clients = [admin.connect() for _ in range(20)]
    for number, client in enumerate(clients):
        client.send(request("GET", f"/stats.txt?namespace={number}"))
    admin.server.settle()
    replies = [reply_in(client.take()).status for client in clients]
    assert replies == [200] * 16 + [409] * 4


@pytest.mark.parametrize("query", ["period=60", "namespace=a"])
def test_a_page_of_another_site_starts_no_period_or_namespace(query: str) -> None:
    """The number of remembered periods and namespaces is limited, so others would lose theirs."""
    admin = Admin()
    assert admin.get(f"/stats.json?{query}", {"Sec-Fetch-Site": "cross-site"}).status == 403
    assert not admin.server.clock.getDelayedCalls()


def test_a_stop_cancels_the_timers_of_periods() -> None:
    admin = Admin()
    admin.get("/stats.json?period=60")
    admin.port.hang_up()
    assert not admin.server.clock.getDelayedCalls()


def test_concurrent_responses_about_namespaces_are_limited(admin: Admin) -> None:
    """Each keeps figures in memory until its client has read it."""
    for number in range(50):
        admin.server.manager.queue(b"%d" % number + b"x" * 190)
    clients = [admin.connect() for _ in range(MAX_ANSWERS)]
    for client in clients:
        client.reads = False
        client.send(request("GET", "/stats.json?namespace=a"))
    admin.server.settle()
    reply = admin.get("/stats.json?namespace=a")
    refusal = "too many responses with a period or namespace; limit=8; try again later"
    assert (reply.status, reply.error) == (503, refusal)
    assert admin.get("/stats.json").status == 200
    clients[0].disconnect()
    assert admin.get("/stats.json?namespace=a").status == 200
