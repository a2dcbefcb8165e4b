"""HTTP requests to the ports of the queue protocols: a web page must not be able to command the server."""

from __future__ import annotations

import pytest
from twisted.logger import capturedLogs, formatEvent

from kestrel.config.load import loads
from kestrel.testing.server import MemoryServer
from tests.protocols.command_values import byte_by_byte

ITEM = b"VALUE work 0 1\r\nx\r\nEND\r\n"
HEADERS = b"Host: 127.0.0.1:2222\r\nContent-Type: text/plain\r\n\r\n"
THRIFT_FLUSH = b"\x80\x01\0\x01\0\0\0\x11flush_all_queues\0\0\0\0\0\0"
BODIES = {
    "memcache": b"flush_all\r\nshutdown\r\n",
    "text": b"flush_all\nshutdown\n",
    "thrift": len(THRIFT_FLUSH).to_bytes(4, "big") + THRIFT_FLUSH,
}
BEGINNINGS = {
    "POST": b"POST / HTTP/1.1\r\n" + HEADERS,
    "small letters": b"post / http/1.1\r\n" + HEADERS,
    "GET": b"GET /?x HTTP/1.1\r\n" + HEADERS,
    "PUT": b"PUT /work HTTP/1.1\r\n" + HEADERS,
    "DELETE": b"DELETE /work HTTP/1.1\r\n" + HEADERS,
    "OPTIONS": b"OPTIONS * HTTP/1.1\r\n" + HEADERS,
    "a command as method": b"flush_all / HTTP/1.1\r\n" + HEADERS,
    "an unknown method": b"NONSENSE / HTTP/1.0\r\n" + HEADERS,
    "a longer line": b"POST / HTTP/1.1 and more\r\n" + HEADERS,
    "no version": b"POST /\r\n" + HEADERS,
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "only a header": b"Host: 127.0.0.1\r\n\r\n",
    "an empty host": b"Host:\r\n\r\n",
    "an unknown header": b"X-Anything:1\r\n\r\n",
    "a header that ends in a colon": b"Referer: x:\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\n",
}


@pytest.fixture
def server() -> MemoryServer:
    server = MemoryServer()
    server.connect().ask(b"set work 0 0 1\r\nx\r\n")
    return server


@pytest.mark.parametrize("in_pieces", [False, True])
@pytest.mark.parametrize("beginning", BEGINNINGS)
@pytest.mark.parametrize("protocol", ["memcache", "text"])
def test_http_request_executes_nothing(server: MemoryServer, protocol: str, beginning: str, in_pieces: bool) -> None:
    client = server.connect(protocol)
    sent = BEGINNINGS[beginning] + BODIES[protocol]
    with capturedLogs() as events:
        for piece in byte_by_byte(sent) if in_pieces else [sent]:
            client.send(piece)
        reply = client.take()
    assert client.is_closed
    assert reply.count(b"\n") == 1, "exactly one refusal"
    assert not server.control.is_shut_down
    assert server.connect().ask(b"get work\r\n") == ITEM
    assert b"STAT foreign_requests 1\r\n" in server.connect().ask(b"stats\r\n")
    name = "TLS" if beginning == "TLS" else "HTTP"
    assert [f"this port does not speak {name}" in formatEvent(event) for event in events] == [True]


@pytest.mark.parametrize("beginning", BEGINNINGS)
@pytest.mark.parametrize("max_request_size", ["32MiB", "2047MiB"])
def test_http_request_executes_nothing_on_thrift(beginning: str, max_request_size: str) -> None:
    server = MemoryServer(config=loads(f'maxRequestSize = "{max_request_size}"'))
    server.connect().ask(b"set work 0 0 1\r\nx\r\n")
    client = server.connect("thrift")
    client.ask(BEGINNINGS[beginning] + BODIES["thrift"])
    client.half_close()
    server.settle()
    assert client.is_closed
    assert server.connect().ask(b"get work\r\n") == ITEM


@pytest.mark.parametrize("name", [b"post", b"host", b"http", b"get", b"tls"])
def test_queue_names_like_http_words_work(server: MemoryServer, name: bytes) -> None:
    text = server.connect("text")
    assert text.ask(b"put %b:\nHost: x\nPOST / HTTP/1.1\n\n" % name) == b"+2\n"
    assert text.ask(b"get %b\n" % name) == b":Host: x\n"
    assert text.ask(b"GET %b 0\n" % name) == b":POST / HTTP/1.1\n"
    memcache = server.connect()
    assert memcache.ask(b"set %b 0 0 15\r\nPOST / HTTP/1.1\r\n" % name) == b"STORED\r\n"
    assert memcache.ask(b"GET %b/open\r\n" % name) == b"VALUE %b/open 0 15\r\nPOST / HTTP/1.1\r\nEND\r\n" % name
    assert b"STAT foreign_requests 0\r\n" in memcache.ask(b"stats\r\n")
