"""Access lists with the subjects of certificates, over every protocol."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

import pytest

from kestrel.protocols import thrift_binary as binary
from tests.client.certificates import Authority, subject
from tests.server.running import Client, Processes, Server, eventually

HOST: Final = "mq.example"


class Request(NamedTuple):
    """A request, the reply if it is allowed, and the reply if it is refused."""

    sent: bytes
    allowed: bytes
    refused: bytes


def call(name: bytes, *fields: bytes) -> bytes:
    return binary.header(name, binary.CALL, 1) + b"".join(fields) + binary.END


def returned(name: bytes, *fields: bytes) -> bytes:
    return binary.header(name, binary.REPLY, 1) + b"".join(fields) + binary.END


def exception(name: bytes, why: str) -> bytes:
    return binary.header(name, binary.EXCEPTION, 1) + binary.application_exception(binary.INTERNAL_ERROR, why)


PUT: Final = "this client may not put to in"
GET: Final = "this client may not get from out"
ADMINISTRATE: Final = "only an administrator may flush all queues"

THRIFT: Final = {
    PUT: Request(
        call(b"put", binary.binary_field(1, b"in"), binary.list_field(2, binary.STRING, 1), binary.binary(b"one")),
        returned(b"put", binary.i32_field(0, 1)),
        exception(b"put", PUT),
    ),
    GET: Request(
        call(b"get", binary.binary_field(1, b"out"), binary.i32_field(2, 1)),
        returned(b"get", binary.list_field(0, binary.STRUCT, 0)),
        exception(b"get", GET),
    ),
    ADMINISTRATE: Request(
        call(b"flush_all_queues"), returned(b"flush_all_queues"), exception(b"flush_all_queues", ADMINISTRATE)
    ),
}

REQUESTS: Final = {
    "memcache": {
        PUT: Request(b"set in 0 0 3\r\none\r\n", b"STORED\r\n", b"SERVER_ERROR %b\r\n" % PUT.encode()),
        GET: Request(b"get out\r\n", b"END\r\n", b"SERVER_ERROR %b\r\n" % GET.encode()),
        ADMINISTRATE: Request(
            b"flush_all\r\n", b"Flushed all queues.\r\n", b"SERVER_ERROR %b\r\n" % ADMINISTRATE.encode()
        ),
    },
    "text": {
        PUT: Request(b"put in:\none\n\n", b"+1\n", b"-The operation setItem is disallowed: %b\n" % PUT.encode()),
        GET: Request(b"get out\n", b"*\n", b"-The operation getItem is disallowed: %b\n" % GET.encode()),
        ADMINISTRATE: Request(
            b"flush_all\n",
            b"+0\n",
            b"-The operation flushAll is disallowed: %b\n" % ADMINISTRATE.encode(),
        ),
    },
    "thrift": {what: Request(*map(binary.frame, request)) for what, request in THRIFT.items()},
}
"""By the protocol and the reason of the refusal."""

MAY: Final = {"shop": PUT, "billing": GET, "ops": ADMINISTRATE}
"""The requests that only the listed clients may send."""


CONFIG: Final = f"""queuePath = "queues"
administrators = ["{subject("ops")}"]
[[queues]]
name = "in"
whiteListClientIdForEnqueue = "{subject("shop")}"
[[queues]]
name = "out"
whiteListClientIdForDequeue = "{subject("billing")}"
"""


def serve(processes: Processes, authority: Authority, protocol: str) -> Server:
    cert_file, key_file = authority.sign(HOST)
    endpoint = f"mtls:0:interface=127.0.0.1:certKey={cert_file}:privateKey={key_file}:caCerts={authority.ca_file}"
    if protocol == "memcache":
        return processes.serve(CONFIG, endpoint=endpoint)
    return processes.serve(CONFIG, f"--{protocol}", endpoint)


@contextmanager
def certified(server: Server, authority: Authority, name: str, protocol: str) -> Iterator[Client]:
    """Return a client with a certificate of that name."""
    context = ssl.create_default_context(cafile=authority.ca_file)
    context.load_cert_chain(*authority.sign(name))
    with Client(server.port_of(protocol)) as client:
        client.socket = context.wrap_socket(client.socket, server_hostname=HOST)
        yield client


def is_logged(server: Server, peer: int, name: str, what: str) -> bool:
    line = f"Refused: 127.0.0.1:{peer} ({name!r}): {what}"
    return line in server.logged()


@pytest.mark.parametrize("protocol", list(REQUESTS))
def test_lists_contain_subjects_of_certificates(processes: Processes, authority: Authority, protocol: str) -> None:
    server = serve(processes, authority, protocol)
    refused = []
    for name in MAY:
        for what, request in REQUESTS[protocol].items():
            with certified(server, authority, name, protocol) as client:
                is_allowed = MAY[name] == what
                client.ask(request.sent, request.allowed if is_allowed else request.refused)
                if not is_allowed:
                    refused.append((client.socket.getsockname()[1], subject(name), what))
    assert len(refused) == 6
    eventually(lambda: all(is_logged(server, *each) for each in refused), "the log says who and what")
