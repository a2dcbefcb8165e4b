"""Limits of the admin port: sizes, times and numbers of clients."""

from __future__ import annotations

import tempfile
from typing import NoReturn

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kestrel.admin.site import IDLE_S, MAX_BODY_BYTES, MAX_CONNECTIONS, MAX_QUERY_FIELDS
from tests.admin.browsing import Admin, reply_in, request

STATUS = "/api/status/ReadOnly"


def chunked(body: bytes) -> bytes:
    """Return a chunked request, whose length is not known in advance."""
    head = request("POST", STATUS, {"Transfer-Encoding": "chunked", "Content-Length": "0"})
    return head.replace(b"Content-Length: 0\r\n", b"") + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


def test_a_small_body_is_accepted() -> None:
    assert Admin().ask("POST", STATUS, body=b"x" * MAX_BODY_BYTES).status == 200
    assert reply_in(Admin().connect().ask(chunked(b"x" * MAX_BODY_BYTES))).status == 200


@pytest.mark.parametrize("size", [MAX_BODY_BYTES + 1, 100_000])
def test_a_request_with_a_large_body_is_not_executed(size: int) -> None:
    admin = Admin()
    for sent in (request("POST", STATUS, body=b"x" * size), chunked(b"x" * size)):
        reply = reply_in(admin.connect().ask(sent))
        assert (reply.status, reply.error) == (413, f"the request's body is longer than {MAX_BODY_BYTES} bytes")
    assert admin.server.core.status.takes_writes


def test_a_client_that_sends_without_end_is_disconnected() -> None:
    admin = Admin()
    client = admin.connect()
    client.send(request("POST", STATUS, {"Content-Length": str(1 << 40)}))
    for _ in range(8):
        client.send(b"x" * 64 * 1024)
        admin.server.settle()
    assert client.is_closed
    assert admin.server.core.status.takes_writes


def test_no_body_is_written_to_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_file() -> NoReturn:
        raise AssertionError("a file was made")

    monkeypatch.setattr(tempfile, "TemporaryFile", no_file)
    assert reply_in(Admin().connect().ask(chunked(b"x"))).status == 200
    assert not Admin().connect().ask(request("POST", STATUS, {"Content-Length": "200000"}))


@pytest.mark.parametrize("line", [b"GET /" + b"a" * 17_000 + b" HTTP/1.1\r\n\r\n", b"x" * 17_000, b"\0" * 200_000])
def test_a_line_without_an_end_is_refused(line: bytes) -> None:
    client = Admin().connect()
    assert client.ask(line).startswith(b"HTTP/1.1 431 ")
    assert client.is_closed


@pytest.mark.parametrize(
    "sent",
    [
        b"GET\r\n\r\n",
        b"GET /ping\r\n\r\n",
        b"GET /ping HTTP/2.0\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /pi ng HTTP/1.1\r\n\r\n",
        b"GET /\0 HTTP/1.1\r\n\r\n",
        b"GET  HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"get work\r\n",
        b"POST /ping HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /ping HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST /ping HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /ping HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"POST /ping HTTP/1.1\r\nTransfer-Encoding: identity\r\n\r\n",
        b"POST /ping HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /ping HTTP/1.1\r\nTransfer-Encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n0\r\n\r\n",
        b"POST /ping HTTP/1.1\r\nTransfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /ping HTTP/1.1\r\nTransfer-Encoding: identity\r\nContent-Length: 0\r\n\r\n",
        b"POST /ping HTTP/1.1\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
        b"GET /ping HTTP/1.1\r\nTransfer-Encoding: \r\n\r\n",
        b"POST /ping HTTP/1.1\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        b"POST /ping HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /ping HTTP/1.1\r\nX: a\r\n Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /ping HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /ping HTTP/1.1\r\nno header\r\n\r\n",
        b"GET /ping HTTP/1.1\r\n: nameless\r\n\r\n",
        pytest.param(b"GET /ping HTTP/1.1\r\n" + (b"X: " + b"y" * 1000 + b"\r\n") * 17 + b"\r\n", id="17 KB"),
        pytest.param(b"GET /ping HTTP/1.1\r\n" + b"X: y\r\n" * 600 + b"\r\n", id="600 headers"),
    ],
)
def test_invalid_and_oversized_requests_get_status_400(sent: bytes) -> None:
    client = Admin().connect()
    assert client.ask(sent).startswith(b"HTTP/1.1 400 ")
    assert client.is_closed


def test_an_idle_client_is_disconnected() -> None:
    admin = Admin()
    silent, between = admin.connect(), admin.connect()
    admin.server.advance(IDLE_S - 1)
    reply_in(between.ask(request("GET", "/ping")))
    assert not silent.is_closed
    admin.server.advance(1)
    assert silent.is_closed
    admin.server.advance(IDLE_S - 2)
    assert not between.is_closed
    admin.server.advance(1)
    assert between.is_closed


def test_a_request_that_arrives_byte_by_byte_times_out() -> None:
    admin = Admin()
    client = admin.connect()
    for number in range(IDLE_S):
        assert not client.is_closed
        client.send(request("GET", "/ping")[number : number + 1])
        admin.server.advance(1)
    assert client.is_closed


def test_the_number_of_admin_connections_is_limited() -> None:
    admin = Admin()
    clients = [admin.connect() for _ in range(MAX_CONNECTIONS)]
    assert admin.site.buildProtocol(admin.server.clock) is None  # type: ignore[arg-type]
    clients[0].disconnect()
    assert admin.get("/ping").status == 200


def test_a_trusted_endpoint_has_no_connection_limit() -> None:
    admin = Admin(is_trusted=True)
    clients = [admin.connect() for _ in range(MAX_CONNECTIONS)]
    assert admin.get("/ping").status == 200
    assert not clients[0].is_closed


def test_many_requests_at_once_are_answered_in_order() -> None:
    admin = Admin()
    received = admin.connect().ask(b"".join(request("GET", f"/api/queue/{number}") for number in range(50)))
    said = [f"there is no queue {number}".encode() for number in range(50)]
    places = [received.find(sentence) for sentence in said]
    assert min(places) > 0
    assert places == sorted(places)


def test_the_number_of_query_parameters_is_limited() -> None:
    admin = Admin()
    at_most = "&".join(f"a{number}=1" for number in range(MAX_QUERY_FIELDS))
    assert admin.get(f"/ping?{at_most}").status == 200
    reply = admin.get(f"/ping?{at_most}&b=1")
    assert (reply.status, reply.error) == (400, f"the query has more than {MAX_QUERY_FIELDS} parameters")


QUERIES = ("a=%ff", "%ff=1", "a=%e9", "a=%c3%a9", "a=%", "a=%zz", "a", "=", "&&&", "a=b=c", "?", "", "a=\xa9")


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_of_any_bytes_is_read(query: str) -> None:
    assert Admin().get(f"/ping?{query}").status == 200


TARGETS = st.lists(
    st.sampled_from(
        [*"/?&=%#.+~;:@!*'()[]{}<>\\|^`\"", "%00", "%2f", "%2e", "..", "api", "queue", "work", "items", "a", "\xa9"]
    ),
    max_size=12,
).map("".join)
PIECES = [b"GET ", b"POST ", b"/ping", b" HTTP/1.1", b"\r\n", b"\n", b"Host: localhost", b":", b"\0", b"\xff"]

ADMIN = Admin()


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(target=TARGETS, method=st.sampled_from(["GET", "HEAD", "POST"]))
def test_every_path_gets_a_response(pages: object, target: str, method: str) -> None:
    """The fixture of every test here checks that nothing fails."""
    reply = ADMIN.ask(method, f"/{target}")
    assert reply.status in (200, 302, 400, 404, 405)


@settings(max_examples=150)
@given(st.lists(st.sampled_from([*PIECES, b"Content-Length: ", b"5", b"chunked", b" "]), max_size=15))
def test_arbitrary_bytes_leave_the_admin_port_working(sent: list[bytes]) -> None:
    client = ADMIN.connect()
    client.ask(b"".join(sent))
    client.disconnect()
    assert ADMIN.get("/ping").status == 200
