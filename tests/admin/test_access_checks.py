"""The clients that may use the admin port, and those that may change something."""

from __future__ import annotations

import socket
from hashlib import sha256
from pathlib import Path

import pytest
from OpenSSL import SSL
from OpenSSL.crypto import FILETYPE_PEM, X509, load_certificate
from twisted.internet.address import IPv4Address
from twisted.internet.interfaces import ISSLTransport
from zope.interface import directlyProvides

from kestrel.admin.site import AdminChannel
from kestrel.config.model import Config
from kestrel.testing.server import MemoryServer
from kestrel.testing.transport import MemoryTransport
from tests.admin.browsing import Admin
from tests.client.certificates import Authority, subject

OWN = socket.gethostname()

KNOWN = (
    *("localhost", "localhost:2223", "LOCALHOST", "localhost.", "kestrel.localhost:80", OWN, OWN.upper() + ":2223"),
    *("127.0.0.1", "127.0.0.1:2223", "10.1.2.3", "[::1]", "[::1]:2223", "[fe80::1%25eth0]:2223", "queues.example:1"),
    *("QUEUES.example", OWN.partition(".")[0]),
)
FOREIGN = (
    *("evil.example", "evil.example:2223", "localhost.evil.example", "notlocalhost", "127.0.0.1.evil.example"),
    *("localhost@evil.example", "other.queues.example", "1.2.3", "0x7f.1", "queues.example.evil.example"),
)


@pytest.mark.parametrize("host", KNOWN)
def test_requests_for_a_host_name_of_the_server_are_answered(host: str) -> None:
    assert Admin('[admin]\nhostNames = ["queues.example"]').get("/ping", {"Host": host}).status == 200


@pytest.mark.parametrize("host", FOREIGN)
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
def test_requests_for_an_unknown_host_name_are_refused(host: str, method: str) -> None:
    """DNS rebinding: the owner of another site lets its name resolve to this machine."""
    admin = Admin('[admin]\nhostNames = ["queues.example"]')
    reply = admin.ask(method, "/api/status/ReadOnly" if method == "POST" else "/api/overview", {"Host": host})
    assert reply.status == 403
    assert method == "HEAD" or "hostNames" in reply.error
    assert admin.server.core.status.takes_writes


NO_HOSTS = ("[::1", "[evil]", "a:b:c", "\xff", "\xe9t\xe9", "a\tb", "evil.example/localhost", "\xe2\x84\x80")


@pytest.mark.parametrize("host", NO_HOSTS)
def test_an_invalid_host_header_is_refused(host: str) -> None:
    reply = Admin().get("/ping", {"Host": host})
    assert reply.status in (400, 403)
    assert reply.error


def test_two_host_headers_are_refused() -> None:
    client = Admin().connect()
    received = client.ask(b"GET /ping HTTP/1.1\r\nHost: evil.example\r\nHost: localhost\r\n\r\n")
    assert received.startswith(b"HTTP/1.1 400 ")


def test_the_host_header_may_be_omitted() -> None:
    assert Admin().connect().ask(b"GET /ping HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.0 200 ")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "https://localhost.evil.example:2223"},
        {"Origin": "http://localhost"},
        {"Origin": "http://localhost:80"},
        {"Origin": "http://localhost:2224"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Origin": "http://[::1"},
        {"Origin": "\xff"},
        {"Origin": "file://"},
        {"Origin": "null", "Host": ""},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "anything"},
        {"Sec-Fetch-Site": "\xff"},
        {"Sec-Fetch-Site": "cross-site", "Origin": "http://localhost:2223"},
        {"Sec-Fetch-Site": "same-origin", "Origin": "http://evil.example"},
    ],
)
def test_a_page_of_another_site_cannot_change_the_status(headers: dict[str, str]) -> None:
    admin = Admin()
    reply = admin.post("/api/status/ReadOnly", headers)
    assert (reply.status, reply.error) == (403, "a page of another site sent this request")
    assert admin.server.core.status.takes_writes


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "http://localhost:2223"},
        {"Origin": "http://LOCALHOST:2223"},
        {"Origin": "https://localhost:2223", "Sec-Fetch-Site": "same-origin"},
        {"Origin": "http://[::1]:2223", "Host": "[::1]:2223"},
        {"Sec-Fetch-Site": "none"},
    ],
)
def test_the_dashboard_and_programs_can_change_the_status(headers: dict[str, str]) -> None:
    admin = Admin()
    assert admin.post("/api/status/ReadOnly", headers).status == 200
    assert not admin.server.core.status.takes_writes


def administered() -> Admin:
    """Return a server with a list of administrators."""
    settings = Config(administrators=(b"CN=root",))
    return Admin(server=MemoryServer(session_settings=settings))


def test_only_listed_administrators_can_change_the_status() -> None:
    admin = administered()
    reply = admin.post("/api/status/ReadOnly")
    assert (reply.status, reply.error) == (403, "only an administrator may do that")
    assert admin.server.core.status.takes_writes
    assert admin.get("/api/overview").json["server"]["may_administer"] is False
    assert admin.get("/ping").status == 200


TOKEN = "t" * 40
TOKENS = f"[admin]\ntokenDigests = ['{'0' * 64}', '{sha256(TOKEN.encode()).hexdigest()}']"


def test_only_clients_with_a_token_can_change_the_status(logged: list[str]) -> None:
    admin = Admin(TOKENS)
    assert admin.get("/api/overview").json["server"].items() >= {"may_administer": False, "has_tokens": True}.items()
    assert admin.post("/api/status/ReadOnly").status == 403
    for wrong in ("Bearer ", f"Bearer {TOKEN}x", f"Basic {TOKEN}", TOKEN, "Bearer \xff"):
        reply = admin.post("/api/status/ReadOnly", {"Authorization": wrong})
        assert (reply.status, reply.error) == (401, "the token is not valid")
        assert reply.headers["www-authenticate"] == "Bearer"
    assert admin.server.core.status.takes_writes
    assert admin.get("/api/overview", {"Authorization": f"bearer {TOKEN}"}).json["server"]["may_administer"] is True
    assert admin.post("/api/status/ReadOnly", {"Authorization": f"Bearer {TOKEN}"}).status == 200
    assert len([line for line in logged if "admin: the token is not valid" in line]) == 5
    assert not [line for line in logged if TOKEN in line]


def test_a_token_makes_an_administrator_beside_a_list_of_certificates() -> None:
    admin = Admin(f"administrators = ['CN=root']\n{TOKENS}")
    assert admin.post("/api/status/ReadOnly").status == 403
    assert admin.post("/api/status/ReadOnly", {"Authorization": f"Bearer {TOKEN}"}).status == 200
    assert Admin(TOKENS, is_trusted=True).post("/api/status/ReadOnly").status == 200


def test_a_token_that_was_not_configured_is_refused() -> None:
    assert Admin().get("/ping", {"Authorization": f"Bearer {TOKEN}"}).status == 401


def test_other_clients_do_not_learn_whether_a_queue_exists() -> None:
    assert administered().post("/api/queue/nothing/flush").status == 403


class Certified(MemoryTransport):
    """A TLS transport whose client has shown a certificate."""

    certificate: X509

    def getPeerCertificate(self) -> X509:
        return self.certificate

    def setTcpNoDelay(self, _: object) -> None:
        pass


def test_a_certificate_is_used_only_after_the_tls_handshake(tmp_path: Path, logged: list[str]) -> None:
    admin = Admin()
    connections: list[tuple[AdminChannel, Certified]] = []
    for _ in range(2):
        channel = admin.site.buildProtocol(IPv4Address("TCP", "127.0.0.1", 1))
        assert channel is not None
        transport = Certified(admin.connect(), lambda call: None)
        certificate, _ = Authority(tmp_path).sign("chief")
        transport.certificate = load_certificate(FILETYPE_PEM, Path(certificate).read_bytes())
        directlyProvides(transport, ISSLTransport)
        transport.connect(channel)
        connections.append((channel, transport))
    (verified, _), (unverified, failing) = connections
    verified.handshakeCompleted()
    failing.lost(SSL.Error([("", "", "bad signature")]))
    assert (verified.identity, unverified.identity) == (subject("chief").encode(), None)
    assert [line for line in logged if line.endswith("(no name): admin: TLS handshake failed")]


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/", {}, 200),
        ("GET", "/pages/app.js", {}, 200),
        ("GET", "/metrics", {}, 200),
        ("GET", "/stats.json", {}, 200),
        ("GET", "/graph/", {}, 302),
        ("GET", "/stats.json?period=1", {}, 400),
        ("GET", "/ping", {"Host": "evil.example"}, 403),
        ("GET", "/nothing", {}, 404),
        ("POST", "/ping", {}, 405),
        ("PUT", "/ping", {}, 405),
        ("POST", "/api/queue/nothing/flush", {}, 404),
        ("POST", "/api/status/ReadOnly", {}, 200),
    ],
)
def test_every_response_has_security_headers(
    pages: object, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    reply = Admin().ask(method, path, headers)
    assert reply.status == status
    assert "default-src 'self'" in reply.headers["content-security-policy"]
    assert "frame-ancestors 'none'" in reply.headers["content-security-policy"]
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["x-frame-options"] == "DENY"
    assert reply.headers["referrer-policy"] == "no-referrer"
    assert reply.headers["cache-control"] in ("no-store", "no-cache")
    assert "access-control-allow-origin" not in reply.headers
    assert "server" not in reply.headers
    assert (reply.headers["content-type"] == "text/html; charset=utf-8") == (path == "/")
