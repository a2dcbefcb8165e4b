"""The data for the dashboard and `kestrel-cli top`: shapes, names and figures."""

from __future__ import annotations

import base64
import socket
from typing import Any
from urllib.parse import quote_from_bytes

import pytest

from kestrel.config.load import loads
from kestrel.errors import QueueFailed
from kestrel.queues.queue_histograms import QUEUE_HISTOGRAM_NAMES, STORAGE_HISTOGRAM_NAMES
from kestrel.testing.server import EPOCH_MS
from kestrel.testing.storage import SteppedStorage
from tests.admin.browsing import Admin
from tests.memcache_text import items, set_

COLUMNS = [
    *("name", "items", "bytes", "mem_items", "mem_bytes", "age_msec", "oldest_age_msec", "waiters"),
    *("open_transactions", "journal_bytes", "put_items", "put_bytes", "get_items_hit", "get_items_miss"),
    *("expired_items", "discarded"),
]
SERVER_FIGURES = {
    *("curr_items", "bytes", "total_items", "curr_connections", "total_connections", "rejected_connections"),
    *("cmd_get", "cmd_set", "cmd_peek", "get_hits", "get_misses", "bytes_read", "bytes_written", "queue_creates"),
    "foreign_requests",
    *("queue_deletes", "queue_expires", "mem_bytes", "waiters", "open_transactions", "journal_bytes"),
}
LATENCIES = {*QUEUE_HISTOGRAM_NAMES, *STORAGE_HISTOGRAM_NAMES}
PARTS = {"count", "sum", "average", "minimum", "maximum", "p50", "p90", "p95", "p99", "p999", "p9999"}


@pytest.fixture
def admin() -> Admin:
    return Admin()


def rows(admin: Admin) -> list[dict[str, Any]]:
    """Return the queues of the overview."""
    told = admin.get("/api/overview").json
    assert told["columns"] == COLUMNS
    return [dict(zip(COLUMNS, row, strict=True)) for row in told["queues"]]


def test_the_overview_shows_the_server(admin: Admin) -> None:
    admin.send(set_(b"work", b"12345"), set_(b"other", b"123"), b"get work\r\n")
    admin.server.advance(2.5)
    told = admin.get("/api/overview").json
    assert told.keys() == {"server", "columns", "queues"}
    server = told["server"]
    assert not SERVER_FIGURES - server["figures"].keys()
    assert all(type(value) is int for value in server["figures"].values())
    figures = server.pop("figures")
    assert (figures["curr_items"], figures["bytes"], figures["mem_bytes"], figures["cmd_set"]) == (1, 3, 3, 2)
    assert server.pop("max_total_memory") is None
    assert server.pop("build") in ("compiled", "pure")
    assert server == {
        "name": socket.gethostname(),
        "version": "1.2.3",
        "storage": "memory:",
        "status": "Up",
        "in_force": "Up",
        "uptime_ms": 2500,
        "time_ms": EPOCH_MS + 2500,
        "may_administer": True,
        "peek": False,
        "has_tokens": False,
    }


def test_the_overview_shows_the_memory_limit() -> None:
    admin = Admin("maxTotalMemory = '1 MB'")
    assert admin.get("/api/overview").json["server"]["max_total_memory"] == 1 << 20


def test_the_overview_shows_published_and_effective_status() -> None:
    admin = Admin("defaultStatus = 'Up'\nstatusChangeGracePeriod = '30s'")
    admin.post("/api/status/ReadOnly")
    server = admin.get("/api/overview").json["server"]
    assert (server["status"], server["in_force"]) == ("ReadOnly", "Up")


def test_uptime_is_independent_of_the_wall_clock(admin: Admin) -> None:
    admin.server.advance(5)
    admin.server.step_wall_clock(-3_600_000)
    server = admin.get("/api/overview").json["server"]
    assert (server["uptime_ms"], server["time_ms"]) == (5_000, EPOCH_MS + 5_000 - 3_600_000)


def test_the_overview_has_a_sorted_row_for_each_queue(admin: Admin) -> None:
    admin.send(set_(b"b", b"123") * 3, set_(b"a", b"1"), b"get b\r\n", b"get a/open\r\n", b"get c\r\n")
    admin.server.advance(1.5)
    holder = admin.server.connect()
    holder.ask(b"get b/open\r\n")
    admin.server.connect().ask(b"get c/t=10000\r\n")
    a, b, c = rows(admin)
    assert [row["name"] for row in (a, b, c)] == ["a", "b", "c"]
    assert b == {
        "name": "b",
        "items": 1,
        "bytes": 3,
        "mem_items": 1,
        "mem_bytes": 3,
        "age_msec": 1500,
        "oldest_age_msec": 1500,
        "waiters": 0,
        "open_transactions": 1,
        "journal_bytes": 0,
        "put_items": 3,
        "put_bytes": 9,
        "get_items_hit": 2,
        "get_items_miss": 0,
        "expired_items": 0,
        "discarded": 0,
    }
    assert (c["waiters"], c["get_items_miss"]) == (1, 1)
    figures = admin.get("/api/overview").json["server"]["figures"]
    assert (figures["waiters"], figures["open_transactions"], figures["mem_bytes"]) == (1, 1, 4)


def test_the_overview_omits_aliases_and_masked_queues(admin: Admin) -> None:
    admin.send(set_(b"al", b"1"), set_(b"work", b"1"))
    admin.server.reload(loads("[[aliases]]\nname = 'al'\ndestinationQueues = ['work']"))
    assert [row["name"] for row in rows(admin)] == ["work"]


def test_the_details_of_a_queue(admin: Admin) -> None:
    admin.send(set_(b"work", b"12345") * 2, b"get work\r\n", b"get work+a\r\n", b"get work+b\r\n")
    told = admin.get("/api/queue/work").json
    assert told.keys() == {"name", "exists", "figures", "settings", "children", "failure", "latencies", "move"}
    assert (told["name"], told["exists"], told["failure"]) == ("work", True, None)
    assert told["children"] == ["work+a", "work+b"]
    assert told["settings"]["maxItems"] == "none"
    assert told["latencies"].keys() == LATENCIES
    assert told["latencies"]["request_size"].keys() == PARTS
    assert told["latencies"]["get_timeout_msec"] == {"count": 0}
    dumped = admin.send(b"dump_stats work\r\n")[0].decode()
    for line in dumped.splitlines()[1:-2]:
        name, value = line.strip().split("=")
        assert str(told["figures"][name]) == value


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("größe".encode(), "größe"),
        (b"\xff", r"\xff"),
        (rb"\xff", r"\\xff"),
        (b"caf\xe9\\", r"caf\xe9\\"),
        ("a\u202eb".encode(), r"a\xe2\x80\xaeb"),
    ],
)
def test_replies_escape_names_and_bytes_find_queues(name: bytes, shown: str) -> None:
    admin = Admin()
    path = f"/api/queue/{quote_from_bytes(name)}"
    assert admin.get(path).error == f"there is no queue {shown}"
    admin.send(set_(name, b"1"), set_(name + b"+child", b"1"))
    assert [row["name"] for row in rows(admin)] == [shown, f"{shown}+child"]
    told = admin.get(path).json
    assert (told["name"], told["children"]) == (shown, [f"{shown}+child"])
    assert told["figures"]["children"] == f"{shown}+child"
    assert admin.post(f"{path}/flush_expired").json == {"done": f"0 expired items of {shown} were removed"}
    assert admin.post(f"{path}/flush").json == {"done": f"1 item of {shown} was flushed"}
    assert admin.post(f"{path}/delete").json == {"done": f"{shown} was deleted"}


def test_request_for_alias_explains_absence_of_items() -> None:
    reply = Admin("[[aliases]]\nname = 'al'\ndestinationQueues = ['work']").get("/api/queue/al")
    assert (reply.status, reply.error) == (404, "al is an alias, which has no items of its own")


def test_the_failure_of_a_queue_is_shown_with_its_reason() -> None:
    storage = SteppedStorage()
    admin = Admin(storage=storage)
    admin.send(set_(b"w\xff", b"1"))
    storage.holds_commits, storage.reopen_refusal = True, "the disk is broken"
    client = admin.server.connect()
    client.ask(set_(b"w\xff", b"2"))
    storage.end_commits(error=QueueFailed("the disk is broken"))
    admin.server.settle()
    told = admin.get("/api/queue/w%ff").json
    assert told["failure"] == "the disk is broken"
    assert admin.get("/health").json["failed_queues"] == [r"w\xff"]
    assert admin.get("/api/overview").status == 200
    assert admin.get("/metrics").status == 200
    assert admin.get("/stats.json").status == 200


def test_the_details_of_the_server(admin: Admin) -> None:
    admin.send(set_(b"work", b"12345"), set_(b"other", b"123"), b"delete other\r\n")
    told = admin.get("/api/server").json
    assert told.keys() == {"figures", "settings", "latencies"}
    assert told["settings"]["maxQueues"] == "20000"
    assert told["latencies"].keys() == LATENCIES
    assert (told["latencies"]["request_size"]["count"], told["latencies"]["request_size"]["sum"]) == (2, 8)


def test_one_overview_has_the_details_of_a_queue(admin: Admin) -> None:
    admin.send(set_(b"work", b"12345"), set_(b"work+a", b"1"))
    told = admin.get("/api/overview?queue=work").json
    assert told.keys() == {"server", "columns", "queues", "queue"}
    assert told["queue"] == admin.get("/api/queue/work").json
    row = dict(zip(COLUMNS, told["queues"][0], strict=True))
    assert {key: told["queue"]["figures"][key] for key in COLUMNS if key in told["queue"]["figures"]} == {
        key: value for key, value in row.items() if key in told["queue"]["figures"]
    }
    told = admin.get("/api/overview?queue=nothing").json
    assert told["queue"] == {"error": "there is no queue nothing"}


def test_one_overview_has_the_details_of_the_server(admin: Admin) -> None:
    admin.send(set_(b"work", b"12345"))
    told = admin.get("/api/overview?server").json
    assert told.keys() == {"server", "columns", "queues", "details"}
    assert told["details"] == admin.get("/api/server").json
    assert told["details"]["figures"].items() >= {"curr_items": 1, "bytes": 5}.items()


PEEK = "[admin]\npeek = true"


def test_items_are_not_shown_unless_that_is_configured(admin: Admin) -> None:
    admin.send(set_(b"work", b"secret"))
    reply = admin.get("/api/queue/work/items")
    assert (reply.status, reply.error) == (403, "items are not shown: set peek = true in the table [admin]")


def test_items_are_shown_up_to_4096_bytes_and_stay() -> None:
    admin = Admin(PEEK)
    whole, large = bytes(range(256)) * 16, b"x" * 4097
    admin.send(set_(b"work", whole, 60), set_(b"work", large))
    assert admin.get("/api/overview").json["server"]["peek"] is True
    admin.server.advance(0.5)
    told = admin.get("/api/queue/work/items").json
    assert (told["first"], told["in_memory"], told["total"]) == (0, 2, 2)
    first, second = told["items"]
    assert base64.b64decode(first.pop("data_base64")) == whole
    assert first == {"bytes": 4096, "age_msec": 500, "expires_msec": 59_500, "errors": 0, "is_whole": True}
    assert base64.b64decode(second.pop("data_base64")) == large[:4096]
    assert second == {"bytes": 4097, "age_msec": 500, "expires_msec": None, "errors": 0, "is_whole": False}
    counted = admin.get("/api/queue/work").json["figures"]
    assert (counted["get_items_hit"], counted["items"], counted["open_transactions"]) == (0, 2, 0)
    assert items(admin.server.connect(), b"work") == [whole, large]


def shown(admin: Admin, path: str) -> list[bytes]:
    """Return the items of one response."""
    return [base64.b64decode(item["data_base64"]) for item in admin.get(path).json["items"]]


def test_items_are_shown_in_pages_of_twenty() -> None:
    admin = Admin(PEEK)
    numbers = [b"%d" % number for number in range(45)]
    admin.send(*(set_(b"work", number) for number in numbers))
    assert shown(admin, "/api/queue/work/items") == numbers[:20]
    assert shown(admin, "/api/queue/work/items?first=40") == numbers[40:]
    assert shown(admin, "/api/queue/work/items?first=45") == []


def test_an_empty_queue_has_no_items() -> None:
    admin = Admin(PEEK)
    admin.server.manager.queue(b"work")
    assert admin.get("/api/queue/work/items").json == {"first": 0, "items": [], "in_memory": 0, "total": 0}
    assert admin.get("/api/queue/other/items").status == 404
    assert admin.get("/api/queue/work").json["figures"]["get_items_miss"] == 0


def test_an_expired_head_is_not_shown() -> None:
    admin = Admin(PEEK)
    admin.send(set_(b"work", b"old", 1), set_(b"work", b"new"))
    admin.server.advance(2)
    assert shown(admin, "/api/queue/work/items") == [b"new"]


def test_a_head_that_is_only_on_disk_is_read_first() -> None:
    storage = SteppedStorage()
    admin = Admin(PEEK, storage=storage)
    admin.send(set_(b"work", b"12"))
    store = admin.server.manager.queue(b"work").store
    store.page_out()
    gone, client = admin.connect(), admin.connect()
    asked = b"GET /api/queue/work/items HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert gone.ask(asked) + client.ask(asked) == b""
    gone.disconnect()
    store.end_fill()
    assert b'"bytes":2' in client.take()


def test_health_and_readiness(admin: Admin) -> None:
    assert admin.get("/health").json == {
        "health": "ok",
        "status": "Up",
        "ready": True,
        "failed_queues": [],
        "puts_refused": None,
    }
    assert admin.get("/ready").json == {"ready": True}
    admin.post("/api/status/ReadOnly")
    assert (admin.get("/health").status, admin.get("/health").json["ready"]) == (200, False)
    reply = admin.get("/ready")
    assert (reply.status, reply.json) == (503, {"ready": False, "error": "the server is ReadOnly"})
    admin.post("/api/status/Up")
    admin.is_ready = False
    assert admin.get("/ready").status == 503


def test_put_while_queues_are_loaded_is_refused(admin: Admin) -> None:
    admin.is_ready = False
    reply = admin.ask("POST", "/api/queue/work/put", body=b"item")
    assert (reply.status, reply.json) == (503, {"error": "the server is loading its queues, or stops"})


def test_ping_and_server_info(admin: Admin) -> None:
    assert admin.get("/ping.json").body == b'{"response":"pong"}'
    assert admin.get("/ping.txt").body == b"pong\n"
    admin.server.advance(2)
    info = admin.get("/server_info.json").json
    assert list(info) == [
        *("build", "build_branch_name", "build_last_few_commits", "build_revision", "name", "start_time", "uptime"),
        "version",
    ]
    assert (info["name"], info["uptime"], info["version"]) == ("kestrel", 2000, "1.2.3")
    assert info["start_time"] == "Tue Nov 14 22:13:20 UTC 2023"


def test_threads_are_shown_with_their_stacks(admin: Admin) -> None:
    threads = admin.get("/threads").json["threads"]
    assert any("test_threads_are_shown" in " ".join(each["stack"]) for each in threads.values())


def test_full_disk_is_in_health_and_metrics() -> None:
    storage = SteppedStorage()
    admin = Admin(storage=storage)
    assert b"kestrel_puts_refused 0.0\n" in admin.get("/metrics").body
    storage.refusal = "disk full"
    assert admin.get("/health").json["puts_refused"] == "disk full"
    assert admin.get("/ready").json == {"ready": True}
    assert b"kestrel_puts_refused 1.0\n" in admin.get("/metrics").body
