"""The blocking client with TLS: it always verifies the server."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from kestrel.client.blocking import BlockingClient
from kestrel.client.errors import CannotConnect
from kestrel.tls import TlsOptions
from tests.client.certificates import Authority
from tests.client.scripted import scripted, talk, talk_and_stay
from tests.server.running import PATIENCE_S, Processes

HOST = "mq.example"
VERSION = (b"version\r\n", b"VERSION 1\r\n")


def served_by(authority: Authority, host: str = HOST, names: list[str] | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.sign(host, names=names))
    return context


def make_client(address: str, options: TlsOptions) -> BlockingClient:
    return BlockingClient(address, tls=options, timeout_s=PATIENCE_S)


def test_items_are_put_and_taken(processes: Processes, authority: Authority) -> None:
    cert_file, key_file = authority.sign(HOST)
    server = processes.serve(
        'queuePath = "queues"\n', endpoint=f"ssl:0:interface=127.0.0.1:privateKey={key_file}:certKey={cert_file}"
    )
    items = [b"%d" % number for number in range(1000)] + [b"x" * (1 << 20)]
    with make_client(f"127.0.0.1:{server.port}", TlsOptions(authority.ca_file, server_name=HOST)) as client:
        assert client.put_many("work", items) == len(items)
        assert [client.get("work") for _ in items] == items
        with client.reliable_get("work") as item:
            assert item is None


def test_kept_connection_is_reused(authority: Authority) -> None:
    with (
        scripted(talk_and_stay(VERSION, VERSION), tls=served_by(authority)) as server,
        make_client(server.address, TlsOptions(authority.ca_file, server_name=HOST)) as client,
    ):
        assert client.version() == client.version() == {server.address: "1"}


def refused(connection: object) -> None:
    raise AssertionError("the client talks to a server that it should not trust")


@pytest.mark.parametrize(
    ("host", "names", "trusts", "server_name", "reason"),
    [
        ("other.example", None, True, HOST, "Hostname mismatch"),
        (HOST, [], True, HOST, "Hostname mismatch"),
        (HOST, None, True, None, "IP address mismatch"),
        (HOST, None, False, HOST, "certificate verify failed"),
    ],
    ids=["another host", "name only in the subject", "host of the address", "unknown authority"],
)
def test_untrusted_certificate_is_refused(
    authority: Authority, host: str, names: list[str] | None, trusts: bool, server_name: str | None, reason: str
) -> None:
    options = TlsOptions(authority.ca_file if trusts else None, server_name=server_name)
    with (
        pytest.raises(ssl.SSLError),  # at the end of the server
        scripted(refused, tls=served_by(authority, host, names)) as server,
        make_client(server.address, options) as client,
        pytest.raises(CannotConnect, match=reason),
    ):
        client.version()


def test_client_presents_its_certificate(authority: Authority) -> None:
    context = served_by(authority)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(authority.ca_file)
    cert_file, key_file = authority.sign("worker.example")
    options = TlsOptions(authority.ca_file, cert_file, key_file, HOST)
    with scripted(talk(VERSION), tls=context) as server, make_client(server.address, options) as client:
        assert client.version() == {server.address: "1"}


def test_tls_1_2_is_the_oldest_version() -> None:
    assert TlsOptions().context().minimum_version == ssl.TLSVersion.TLSv1_2


def test_unusable_files_are_reported_by_the_constructor(tmp_path: Path, authority: Authority) -> None:
    none, junk = str(tmp_path / "none.pem"), str(tmp_path / "junk.pem")
    Path(junk).write_bytes(b"not a certificate \xc3\xa9\n")
    (own, key), (_, other_key) = authority.sign("worker.example"), authority.sign("other.example")
    for options, culprit in (
        (TlsOptions(ca_file=none), none),
        (TlsOptions(ca_file=junk), junk),
        (TlsOptions(ca_file=str(tmp_path)), str(tmp_path)),
        (TlsOptions(cert_file=none, key_file=key), none),
        (TlsOptions(cert_file=junk, key_file=key), junk),
        (TlsOptions(cert_file=own, key_file=none), none),
        (TlsOptions(cert_file=own, key_file=junk), junk),
        (TlsOptions(cert_file=own, key_file=other_key), other_key),
        (TlsOptions(cert_file=own), own),
    ):
        with pytest.raises(OSError, match=Path(culprit).name) as raised:
            make_client("localhost", options)
        assert raised.value.filename == culprit
    with pytest.raises(ValueError, match="needs the cert_file"):
        make_client("localhost", TlsOptions(key_file=key))


def test_server_without_tls_is_refused(authority: Authority) -> None:
    def play(connection: object) -> None:
        """Close the connection."""

    with (
        scripted(play) as server,
        make_client(server.address, TlsOptions(authority.ca_file)) as client,
        pytest.raises(CannotConnect),
    ):
        client.version()
