"""TLS on every protocol: accepted clients, their identities, and certificates that change while clients are connected.
"""

from __future__ import annotations

import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pymemcache
import pytest

from kestrel.config.load import loads
from kestrel.server.endpoints import endpoints_to_serve
from tests.client.certificates import Authority
from tests.server.running import PATIENCE_S, REQUESTS, Processes, Server, eventually

HOST = "mq.example"


def tls(authority: Authority, prefix: str = "reloadtls", more: str = "", host: str = HOST) -> str:
    cert_file, key_file = authority.sign(host)
    clients = f":caCerts={authority.ca_file}" if prefix == "mtls" else ""
    return f"{prefix}:0:interface=127.0.0.1:certKey={cert_file}:privateKey={key_file}{clients}{more}"


@contextmanager
def connected(server: Server, context: ssl.SSLContext, protocol: str = "memcache") -> Iterator[ssl.SSLSocket]:
    with (
        socket.create_connection(("127.0.0.1", server.port_of(protocol)), timeout=PATIENCE_S) as plain,
        context.wrap_socket(plain, server_hostname=HOST) as client,
    ):
        yield client


def trusting(authority: Authority, client: str | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.ca_file)
    if client is not None:
        context.load_cert_chain(*authority.sign(client))
    return context


def ask(client: ssl.SSLSocket, request: bytes, length: int) -> bytes:
    client.sendall(request)
    reply = b""
    while len(reply) < length:
        piece = client.recv(length - len(reply))
        if not piece:
            break
        reply += piece
    return reply


@pytest.mark.parametrize("prefix", ["reloadtls", "mtls"])
@pytest.mark.parametrize("protocol", list(REQUESTS))
def test_every_protocol_is_served_over_tls(
    processes: Processes, authority: Authority, protocol: str, prefix: str
) -> None:
    endpoint = tls(authority, prefix)
    if protocol == "memcache":
        server = processes.serve('queuePath = "queues"\n', endpoint=endpoint)
    else:
        server = processes.serve('queuePath = "queues"\n', f"--{protocol}", endpoint)
    request, reply = REQUESTS[protocol]
    with connected(server, trusting(authority, "orders"), protocol) as client:
        assert ask(client, request, len(reply)) == reply


def test_pymemcache_puts_and_gets_over_tls(processes: Processes, authority: Authority) -> None:
    server = processes.serve('queuePath = "queues"\n', endpoint=tls(authority, "mtls", host="localhost"))
    client = pymemcache.Client(
        ("localhost", server.port), timeout=PATIENCE_S, tls_context=trusting(authority, client="shop")
    )
    items = [b"%d" % number for number in range(100)] + [b"x" * (1 << 20)]
    assert all(client.set("work", item) for item in items)
    assert [client.get("work") for _ in items] == items
    client.close()


def test_client_without_a_certificate_is_refused(processes: Processes, authority: Authority) -> None:
    server = processes.serve('queuePath = "queues"\n', endpoint=tls(authority, "mtls"))
    with pytest.raises((ssl.SSLError, ConnectionError)), connected(server, trusting(authority)) as client:
        assert ask(client, *_version()) == b""
        raise ConnectionError
    eventually(lambda: "TLS: peer did not return a certificate" in server.logged(), "the log says why")


def test_log_names_a_client_that_does_not_speak_tls(processes: Processes, authority: Authority) -> None:
    server = processes.serve('queuePath = "queues"\n', endpoint=tls(authority))
    address = ("127.0.0.1", server.port_of("memcache"))
    with socket.create_connection(address, timeout=PATIENCE_S) as client, suppress(ConnectionError):
        client.sendall(b"version\r\n")
        while client.recv(1000):
            pass
    line = "TLS: the client does not speak TLS: wrong version number"
    eventually(lambda: line in server.logged(), "the log says why")


def test_request_timeout_ends_a_silent_handshake_but_no_finished_one(
    processes: Processes, authority: Authority
) -> None:
    config = 'queuePath = "queues"\n'
    server = processes.serve(config, endpoint=tls(authority))
    with connected(server, trusting(authority)) as client:  # a busy machine may need longer than 500 ms for this
        processes.write("kestrel.toml", config + 'requestTimeout = "500ms"\n')
        reloaded = b"Reloaded config.\r\n"
        assert ask(client, b"reload\r\n", len(reloaded)) == reloaded
        with (
            socket.create_connection(("127.0.0.1", server.port_of("memcache")), timeout=PATIENCE_S) as silent,
            suppress(ConnectionError),
        ):
            assert silent.recv(1) == b""
        assert ask(client, *_version()) == b"VERSION "


def test_connection_above_the_limit_is_closed(processes: Processes, authority: Authority) -> None:
    server = processes.serve('queuePath = "queues"\nmaxConnections = 1\n', endpoint=tls(authority))
    with connected(server, trusting(authority)) as client:
        assert ask(client, *_version()) == b"VERSION "
        with pytest.raises((ssl.SSLError, ConnectionError)), connected(server, trusting(authority)):
            pass
    assert "too many connections; limit=1" in server.logged()


def _version() -> tuple[bytes, int]:
    return b"version\r\n", 8


@pytest.mark.parametrize(
    ("minimum", "version", "is_let_in"),
    [
        ("1.2", ssl.TLSVersion.TLSv1_2, True),
        ("1.3", ssl.TLSVersion.TLSv1_2, False),
        ("1.3", ssl.TLSVersion.TLSv1_3, True),
    ],
)
def test_oldest_version_is_the_configured_minimum(
    processes: Processes, authority: Authority, minimum: str, version: ssl.TLSVersion, is_let_in: bool
) -> None:
    server = processes.serve('queuePath = "queues"\n', endpoint=tls(authority, more=f":minimum={minimum}"))
    context = trusting(authority)
    context.minimum_version = context.maximum_version = version
    if is_let_in:
        with connected(server, context) as client:
            assert ask(client, *_version()) == b"VERSION "
    else:
        with pytest.raises((ssl.SSLError, ConnectionError)), connected(server, context):
            raise AssertionError("it was let in")


@pytest.mark.parametrize("protocol", ["memcache", "admin"])
def test_client_that_offers_alpn_is_served(processes: Processes, authority: Authority, protocol: str) -> None:
    config = 'queuePath = "queues"\n[admin]\nhttpPort = 2223\n'
    if protocol == "admin":
        server = processes.serve(config, "--admin", tls(authority))
    else:
        server = processes.serve(config, "--admin", "tcp:0:interface=127.0.0.1", endpoint=tls(authority))
    context = trusting(authority)
    context.set_alpn_protocols(["h2", "http/1.1"])
    request, reply = {
        "memcache": (b"version\r\n", b"VERSION"),
        "admin": (b"GET /ping HTTP/1.0\r\n\r\n", b"HTTP/1."),
    }[protocol]
    with connected(server, context, protocol) as client:
        assert ask(client, request, len(reply)) == reply
        assert client.selected_alpn_protocol() is None


def test_reloaded_certificates_disconnect_no_client(processes: Processes, authority: Authority) -> None:
    server = processes.serve('queuePath = "queues"\n', endpoint=tls(authority))
    context = trusting(authority)
    with connected(server, context) as before:
        first = before.getpeercert(binary_form=True)
        authority.sign(HOST)  # replaces the other
        server.signal(signal.SIGHUP)
        eventually(lambda: _shown(server, context) != first, "the new certificate is shown")
        assert ask(before, *_version()) == b"VERSION "
        assert before.getpeercert(binary_form=True) == first


def _shown(server: Server, context: ssl.SSLContext) -> bytes | None:
    with connected(server, context) as client:
        return client.getpeercert(binary_form=True)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda cert, key: key.unlink(), "No such file"),
        (lambda cert, key: key.write_text("nonsense"), "the key cannot be used"),
        (lambda cert, key: cert.write_text("nonsense"), "it has no certificate"),
    ],
)
def test_invalid_certificates_change_nothing(
    processes: Processes, authority: Authority, spoil: Callable[[Path, Path], object], why: str
) -> None:
    server = processes.serve('queuePath = "queues"\n', endpoint=tls(authority))
    context = trusting(authority)
    first = _shown(server, context)
    spoil(authority.folder / f"{HOST}.pem", authority.folder / f"{HOST}.key")
    with connected(server, context) as client:
        client.sendall(b"reload\r\n")
        reply = client.recv(1000)
        assert reply.startswith(b"SERVER_ERROR ")
        assert why.encode() in reply
    assert _shown(server, context) == first
    assert why in server.logged()


@pytest.mark.parametrize(
    ("endpoint", "why"),
    [
        ("reloadtls:22134", "needs certKey"),
        ("mtls:22134:certKey={cert}:privateKey={key}", "needs caCerts"),
        ("reloadtls:22134:certKey={cert}:privateKey={key}:caCerts={ca}", "write mtls:"),
        ("reloadtls:22134:certKey={cert}:privateKey={key}:minimum=1.1", "minimum is one of 1.2, 1.3"),
        ("reloadtls:22134:certKey={cert}", "the key cannot be used"),
        ("reloadtls:22134:certKey=missing.pem", "No such file"),
        ("mtls:22134:certKey={cert}:privateKey={key}:caCerts={key}", "it has no certificate"),
        ("reloadtls:port:certKey={cert}:privateKey={key}", "port"),
    ],
)
def test_invalid_tls_endpoints_are_reported_before_the_start(
    processes: Processes, authority: Authority, endpoint: str, why: str
) -> None:
    cert_file, key_file = authority.sign(HOST)
    endpoint = endpoint.format(cert=cert_file, key=key_file, ca=authority.ca_file)
    done = processes.run(*processes.twistd("--validate", "--memcache", endpoint))
    assert done.returncode == 78
    assert why in done.stderr
    assert "Traceback" not in done.stderr


def test_clients_of_a_trusted_endpoint_are_administrators(processes: Processes, tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    server = processes.serve('queuePath = "queues"\nadministrators = []\n', "--trust", f"memcache=unix:{path}:mode=600")
    assert path.stat().st_mode & 0o777 == 0o600
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as anybody:
        anybody.sendall(b"flush_all\r\n")
        assert anybody.recv(100) == b"SERVER_ERROR only an administrator may flush all queues\r\n"
    with socket.socket(socket.AF_UNIX) as trusted:
        trusted.settimeout(PATIENCE_S)
        trusted.connect(str(path))
        trusted.sendall(b"flush_all\r\n")
        assert trusted.recv(100) == b"Flushed all queues.\r\n"


@pytest.mark.parametrize("given", ["unix:/run/admin.sock", "http=tcp:80", "memcache"])
def test_trusted_endpoint_names_its_protocol(processes: Processes, given: str) -> None:
    done = processes.run(*processes.twistd("--trust", given))
    assert done.returncode != 0
    assert "--trust needs PROTOCOL=ENDPOINT" in done.stdout + done.stderr


def test_tls_table_applies_to_every_configured_port() -> None:
    config = loads('[tls]\ncertFile = "a:b.pem"\nkeyFile = "key"\nminimumVersion = "1.3"')
    arguments = "backlog=1024:certKey=a\\:b.pem:privateKey=key:minimum=1.3"
    assert endpoints_to_serve(config, {"text": ["tcp:9"]}) == {
        "memcache": [f"reloadtls:22133:interface=0.0.0.0:{arguments}"],
        "text": ["tcp:9"],
        "thrift": [f"reloadtls:2229:interface=0.0.0.0:{arguments}"],
        "admin": [f"reloadtls:2223:interface=127.0.0.1:{arguments}"],
    }
