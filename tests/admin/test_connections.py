"""The list of connections."""

from __future__ import annotations

from typing import Any

from kestrel.admin.connections import COLUMNS, CONNECTIONS_PER_PIECE, CONNECTIONS_PER_RESPONSE
from kestrel.config.load import loads
from tests.admin.browsing import Admin
from tests.memcache_text import set_


def listed(admin: Admin, query: str = "") -> list[dict[str, Any]]:
    """Return the connections of one response."""
    told = admin.get(f"/api/connections{query}").json
    assert told["columns"] == list(COLUMNS)
    return [dict(zip(COLUMNS, row, strict=True)) for row in told["connections"]]


def test_each_connection_has_protocol_requests_open_reads_and_awaited_queue() -> None:
    admin = Admin("maxOpenTransactions = 10")
    admin.send(set_(b"work", b"1"), set_(b"work", b"2"), set_(b"other", b"3"))
    reader, waiter = admin.server.connect(), admin.server.connect("text")
    reader.ask(b"get work/open\r\nget work/open\r\nget other/open\r\n")
    waiter.ask(b"get gr\xf6n 5000\n")
    reading, waiting = listed(admin)
    assert (reading["protocol"], waiting["protocol"]) == ("memcache", "text")
    assert reading["address"] == waiting["address"] == "192.168.1.1:54321"
    assert (reading["requests"], reading["open_reads"], reading["waits_for"]) == (3, 3, None)
    assert (waiting["requests"], waiting["open_reads"], waiting["waits_for"]) == (1, 0, r"gr\xf6n")
    assert reading["client"] is reading["bytes_in"] is reading["silent_msec"] is None
    reader.ask(b"get work/close\r\n")
    waiter.disconnect()
    assert [each["open_reads"] for each in listed(admin)] == [2]


def test_a_request_for_a_queue_lists_only_its_clients() -> None:
    admin = Admin()
    admin.send(set_(b"work", b"1"))
    for request in (b"get work/open\r\n", b"get work/t=9000\r\n", b"get other/t=9000\r\n", b"get work/peek\r\n"):
        admin.server.connect().ask(request)
    assert [(each["open_reads"], each["waits_for"]) for each in listed(admin, "?queue=work")] == [
        (1, None),
        (0, "work"),
    ]
    assert listed(admin, "?queue=nothing") == []


def test_many_connections_are_listed_in_several_responses() -> None:
    admin = Admin(config := f"maxConnections = {2 * CONNECTIONS_PER_RESPONSE}")
    assert loads(config).max_connections == 2 * CONNECTIONS_PER_RESPONSE
    for _ in range(CONNECTIONS_PER_RESPONSE + CONNECTIONS_PER_PIECE + 1):
        admin.server.connect()
    told = admin.get("/api/connections").json
    assert (told["connected"], told["next"]) == (CONNECTIONS_PER_RESPONSE + CONNECTIONS_PER_PIECE + 1, 256)
    assert len(told["connections"]) == CONNECTIONS_PER_RESPONSE
    told = admin.get("/api/connections?first=256").json
    assert (len(told["connections"]), told["next"]) == (CONNECTIONS_PER_PIECE + 1, None)
    assert admin.get("/api/connections?first=9999").json["connections"] == []


def test_a_start_that_is_no_number_is_refused() -> None:
    for first in ("", "-1", "x", "1" * 19, "%b2"):
        reply = Admin().get(f"/api/connections?first={first}")
        assert (reply.status, reply.error) == (
            400,
            "the parameter first must be a whole number of at most 18 digits",
        )
