"""The Twisted client with a real reactor and a real server process: sockets, names, TLS."""

from __future__ import annotations

import datetime
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import pytest_twisted
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.protocol import Factory, Protocol, ServerFactory
from twisted.internet.ssl import Certificate, CertificateOptions, PrivateCertificate, TLSVersion, optionsForClientTLS
from twisted.internet.testing import StringTransport
from twisted.protocols.tls import TLSMemoryBIOFactory

from kestrel.client.client import Client
from kestrel.client.errors import CannotConnect, ConnectionFailed
from kestrel.client.openssl import client_tls
from kestrel.tls import TlsOptions
from tests.child import Child
from tests.client.certificates import Authority
from tests.server.running import ANY_PORT, PATIENCE_S, ROOT, Processes, Server, own_port

HOST: Final = "mq.example"
EXPIRED: Final = datetime.datetime(2021, 1, 1)
IN_FAR_FUTURE: Final = datetime.datetime(2110, 1, 1)


class Served(NamedTuple):
    """A server process and its addresses and ports, all on 127.0.0.1."""

    server: Server
    authority: Authority
    memcache: str
    tls: int
    tls_localhost: int
    tls_expired: int
    thrift: str
    thrift_tls: int


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("server")
    authority = Authority(folder)

    def tls(host: str, **options: Any) -> str:
        cert_file, key_file = authority.sign(host, **options)
        return f"ssl:0:interface=127.0.0.1:privateKey={key_file}:certKey={cert_file}"

    endpoints = ["--memcache", tls(HOST), "--memcache", tls("localhost")]
    endpoints += ["--memcache", tls("expired.example", until=EXPIRED), "--thrift", ANY_PORT, "--thrift", tls(HOST)]
    with Processes(folder) as processes:
        server = processes.serve('queuePath = "queues"\nmaxOpenTransactions = 100\n', *endpoints)
        ports: dict[str, list[int]] = {"memcache": [], "thrift": [], "text": [], "admin": []}
        for protocol, port in re.findall(r"(\w+): listening on (?:https?://)?127\.0\.0\.1:(\d+)", server.logged()):
            ports[protocol].append(int(port))
        plain, *with_tls = ports["memcache"]
        thrift, thrift_tls = ports["thrift"]
        yield Served(server, authority, f"127.0.0.1:{plain}", *with_tls, f"127.0.0.1:{thrift}", thrift_tls)


@pytest.fixture
def ca(served: Served) -> str:
    return served.authority.ca_file


@asynccontextmanager
async def client_of(servers: Any, *arguments: Any, **options: Any) -> AsyncIterator[Client]:
    """Provide a client, which must leave no call in the reactor."""
    before = reactor.getDelayedCalls()  # type: ignore[attr-defined]
    async with Client(reactor, servers, *arguments, timeout_s=PATIENCE_S, **options) as client:
        yield client
    left = [call for call in reactor.getDelayedCalls() if call not in before]  # type: ignore[attr-defined]
    assert not left


async def exercise(client: Client) -> None:
    """Put and get items of all sizes, some with reliable reads."""
    await client.delete("work")
    items = [b"%d" % number for number in range(1000)] + [b"x" * (1 << 20)] * 3
    assert await client.put_many("work", items) == len(items)
    assert [await client.get("work") for _ in items[:-1]] == items[:-1]
    with pytest.raises(LookupError):
        async with client.reliable_get("work", timeout=PATIENCE_S) as item:
            raise LookupError
    async with client.reliable_get("work", timeout=PATIENCE_S) as item:
        assert item == items[-1]
    waiting = Deferred.fromCoroutine(client.get("work", timeout=PATIENCE_S))
    assert await client.put("work", b"a")
    assert await waiting == b"a"
    assert await client.get("work") is None


@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("protocol", ["memcache", "thrift"])
@pytest_twisted.ensureDeferred
async def test_items_are_put_and_taken(served: Served, ca: str, protocol: str, is_tls: bool) -> None:
    ports = {"memcache": served.tls, "thrift": served.thrift_tls}
    address = f"127.0.0.1:{ports[protocol]}" if is_tls else getattr(served, protocol)
    tls = TlsOptions(ca, server_name=HOST) if is_tls else None
    async with client_of(address, protocol, tls=tls) as client:
        await exercise(client)


@pytest_twisted.ensureDeferred
async def test_client_survives_a_restart_of_its_server(tmp_path: Path) -> None:
    with own_port() as port, Processes(tmp_path) as processes:
        endpoint = f"tcp:{port}:interface=127.0.0.1"
        first = processes.serve('queuePath = "queues"\n', endpoint=endpoint)
        async with client_of(f"127.0.0.1:{first.port}") as client:
            assert await client.put("work", b"a")
            waiting = Deferred.fromCoroutine(client.get("other", timeout=60))
            assert await client.put("work", b"b")
            first.kill()
            with pytest.raises(ConnectionFailed):
                await waiting
            with pytest.raises(CannotConnect):
                await client.put("work", b"lost")
            processes.serve('queuePath = "queues"\n', endpoint=endpoint)
            assert [await client.get("work") for _ in range(3)] == [b"a", b"b", None]


EXAMPLE: Final = [sys.executable, "-u", str(ROOT / "examples" / "client.py")]
EXAMPLE_ENVIRONMENT: Final = os.environ | {"PYTHONPATH": str(ROOT)}


def run_example(address: str) -> subprocess.CompletedProcess[str]:
    """Run the example with the server at an address."""
    return subprocess.run(
        [*EXAMPLE, address], capture_output=True, text=True, timeout=60, env=EXAMPLE_ENVIRONMENT, check=False
    )


def test_example_processes_every_page(served: Served) -> None:
    done = run_example(served.memcache)
    assert (done.returncode, done.stderr) == (0, "")
    servers, put, *work, last = done.stdout.splitlines()
    assert servers.startswith("servers: {'127.0.0.1:")
    assert (put, last) == ("10 pages are put", "nothing is left")
    pages = [line.partition(": ")[2] for line in work]
    assert sorted(pages) == sorted(
        [*(f"page {number} is done" for number in range(1, 11)), "page 3 is not there, so it goes back"]
    )
    with served.server.connect() as other:
        assert other.get(b"pages") is None


def test_example_prints_a_line_if_the_server_is_away() -> None:
    with own_port() as port:
        done = run_example(f"127.0.0.1:{port}")
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(rf"127\.0\.0\.1:{port}: Connection was refused .*\n", done.stderr)


def test_ctrl_c_ends_the_example_and_returns_its_pages(served: Served) -> None:
    with Child(
        [*EXAMPLE, served.memcache], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=EXAMPLE_ENVIRONMENT
    ) as running:
        done = 0
        while done < 2:
            done += "is done" in running.read_line()
        running.send_signal(signal.SIGINT)
        out, said = running.communicate()
    assert (running.returncode, said) == (130, "interrupted\n")
    done += out.count("is done")
    with served.server.connect() as other:
        left = 0
        while other.get(b"pages") is not None:
            left += 1
    assert done + left == 10


# TLS.


@pytest_twisted.ensureDeferred
async def test_certificate_must_be_for_the_host_of_the_address(served: Served, ca: str) -> None:
    async with client_of(f"localhost:{served.tls_localhost}", tls=TlsOptions(ca)) as client:
        assert await client.version()


async def refused(address: str, tls: TlsOptions, why: str, protocol: str = "memcache") -> None:
    """Check that a client with these options does not accept the server."""
    async with client_of(address, protocol, tls=tls) as client:
        with pytest.raises(CannotConnect, match=why):
            await client.put("work", b"a secret")


@pytest_twisted.ensureDeferred
async def test_certificate_for_another_host_is_refused(served: Served, ca: str) -> None:
    await refused(f"127.0.0.1:{served.tls}", TlsOptions(ca, server_name="other.example"), "it is not for")
    for address in (f"localhost:{served.tls}", f"127.0.0.1:{served.tls}", f"127.0.0.1:{served.tls_localhost}"):
        await refused(address, TlsOptions(ca), "it is not for")
    await refused(f"localhost:{served.thrift_tls}", TlsOptions(ca), "it is not for", "thrift")


@pytest_twisted.ensureDeferred
async def test_expired_certificate_is_refused(served: Served, ca: str) -> None:
    options = TlsOptions(ca, server_name="expired.example")
    await refused(f"127.0.0.1:{served.tls_expired}", options, "certificate verify failed: it has expired")


@pytest_twisted.ensureDeferred
async def test_certificate_of_an_unknown_authority_is_refused(served: Served, tmp_path: Path) -> None:
    for ca_file in (Authority(tmp_path).ca_file, None):
        options = TlsOptions(ca_file, server_name=HOST)
        await refused(f"127.0.0.1:{served.tls}", options, "it is not signed by a trusted authority")


@pytest_twisted.ensureDeferred
async def test_certificate_that_is_not_valid_yet_is_refused(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with listening(*authority.sign(HOST, since=IN_FAR_FUTURE)) as port:
        options = TlsOptions(authority.ca_file, server_name=HOST)
        await refused(f"127.0.0.1:{port}", options, "certificate verify failed: it is not valid yet")


@pytest.mark.parametrize("host", ["my_host.invalid", "xn--.invalid", "a" * 64 + ".invalid"])
@pytest_twisted.ensureDeferred
async def test_invalid_host_name_raises_cannot_connect(host: str) -> None:
    for tls in (None, TlsOptions()):
        async with client_of(f"{host}:1", tls=tls) as client:
            with pytest.raises(CannotConnect, match=f"^{host}:1: "):
                await client.version()


@pytest_twisted.ensureDeferred
async def test_server_without_tls_is_refused(served: Served, ca: str) -> None:
    await refused(served.memcache, TlsOptions(ca, server_name=HOST), "127.0.0.1")


class Wary(Protocol):
    """Answers everything with a version, and records what it received."""

    heard = b""

    def dataReceived(self, data: bytes) -> None:
        Wary.heard += data
        assert self.transport is not None
        self.transport.write(b"VERSION 1\r\n")


@asynccontextmanager
async def listening(cert_file: str, key_file: str, client_authority: Authority | None = None) -> AsyncIterator[int]:
    """Provide the TLS port of a server in this process, which may require certificates of an authority."""
    Wary.heard = b""
    own = PrivateCertificate.loadPEM(Path(key_file).read_bytes() + Path(cert_file).read_bytes())
    options: dict[str, Any] = {"privateKey": own.privateKey.original, "certificate": own.original}
    if client_authority is not None:
        root = Certificate.loadPEM(Path(client_authority.ca_file).read_bytes())
        options |= {"verify": True, "requireCertificate": True, "caCerts": [root.original]}
    port = reactor.listenSSL(  # type: ignore[attr-defined]
        0, ServerFactory.forProtocol(Wary), CertificateOptions(**options), interface="127.0.0.1"
    )
    try:
        yield port.getHost().port
    finally:
        await port.stopListening()


@pytest.mark.parametrize("names", [(), ("*.example",), ("127.0.0.1",)], ids=["no name", "wildcard", "address"])
@pytest_twisted.ensureDeferred
async def test_certificate_without_a_matching_name_is_refused(tmp_path: Path, names: tuple[str, ...]) -> None:
    authority = Authority(tmp_path)
    async with listening(*authority.sign(HOST, names=names)) as port:
        for name in (HOST, "127.0.0.1"):
            await refused(f"127.0.0.1:{port}", TlsOptions(authority.ca_file, server_name=name), "127.0.0.1")
        assert Wary.heard == b""


@pytest_twisted.ensureDeferred
async def test_client_presents_its_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert_file, key_file = authority.sign("worker.example")
    both = tmp_path / "both.pem"
    both.write_bytes(Path(cert_file).read_bytes() + Path(key_file).read_bytes())
    async with listening(*authority.sign(HOST), authority) as port:
        for files in ((cert_file, key_file), (str(both), None)):
            async with client_of(f"127.0.0.1:{port}", tls=TlsOptions(authority.ca_file, *files, HOST)) as client:
                assert await client.version() == {f"127.0.0.1:{port}": "1"}
        async with client_of(f"127.0.0.1:{port}", tls=TlsOptions(authority.ca_file, server_name=HOST)) as client:
            with pytest.raises(ConnectionFailed):
                await client.version()


def test_unusable_files_are_reported_by_the_constructor(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert_file, key_file = authority.sign(HOST)
    broken = tmp_path / "broken.pem"
    broken.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    for options, why in [
        (TlsOptions(ca_file=str(tmp_path / "none.pem")), "No such file"),
        (TlsOptions(ca_file=key_file), "it has no certificate"),
        (TlsOptions(ca_file=str(broken)), "cannot be read"),
        (TlsOptions(cert_file=cert_file), "cannot be used"),
        (TlsOptions(cert_file=cert_file, key_file=str(tmp_path / "none.key")), "No such file"),
    ]:
        with pytest.raises(OSError, match=why):
            Client(reactor, "localhost", tls=options)


def test_tls_1_2_is_the_oldest_version(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_for: list[Any] = []

    def options_for(*arguments: Any, extraCertificateOptions: Any) -> Any:
        asked_for.append(extraCertificateOptions["raiseMinimumTo"])
        return optionsForClientTLS(*arguments, extraCertificateOptions=extraCertificateOptions)

    monkeypatch.setattr("kestrel.client.openssl.optionsForClientTLS", options_for)
    factory = TLSMemoryBIOFactory(client_tls(TlsOptions(), HOST), True, Factory.forProtocol(Protocol))
    transport = StringTransport()
    factory.buildProtocol(None).makeConnection(transport)
    versions = b"\x00\x2b" + b"\x00\x05" + b"\x04" + b"\x03\x04" + b"\x03\x03"  # supported_versions: 1.3 and 1.2
    assert versions in transport.value()
    # OpenSSL's own policy may hide what was asked for.
    assert asked_for == [TLSVersion.TLSv1_2]


@pytest_twisted.ensureDeferred
async def test_client_presents_intermediate_certificates(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    (tmp_path / "between").mkdir()
    between = Authority(tmp_path / "between", "test department", signed_by=authority)
    cert_file, key_file = between.sign("worker.example")
    chain = tmp_path / "chain.pem"
    chain.write_bytes(Path(cert_file).read_bytes() + Path(between.ca_file).read_bytes())
    async with listening(*authority.sign(HOST), authority) as port:
        tls = TlsOptions(authority.ca_file, str(chain), key_file, HOST)
        async with client_of(f"127.0.0.1:{port}", tls=tls) as client:
            assert await client.version() == {f"127.0.0.1:{port}": "1"}
