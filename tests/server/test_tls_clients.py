"""Real clients over TLS: pymemcache, OpenSSL's own, and ours, which says in a sentence why it talks to nobody."""

from __future__ import annotations

import datetime
import ssl
from collections.abc import Callable

import pymemcache
import pytest

from kestrel.client.blocking import BlockingClient
from kestrel.client.errors import CannotConnect
from kestrel.tls import TlsOptions
from tests.client.certificates import Authority
from tests.server.running import PATIENCE_S, Processes, Server

HOST = "localhost"


def serve(processes: Processes, cert_file: str, key_file: str, prefix: str = "reloadtls", more: str = "") -> Server:
    endpoint = f"{prefix}:0:interface=127.0.0.1:certKey={cert_file}:privateKey={key_file}{more}"
    return processes.serve('queuePath = "queues"\n', endpoint=endpoint)


def test_pymemcache_works(processes: Processes, authority: Authority) -> None:
    server = serve(processes, *authority.sign(HOST), prefix="mtls", more=f":caCerts={authority.ca_file}")
    context = ssl.create_default_context(cafile=authority.ca_file)
    context.load_cert_chain(*authority.sign("shop"))
    client = pymemcache.Client((HOST, server.port), timeout=PATIENCE_S, tls_context=context)
    items = [b"%d" % number for number in range(100)] + [b"x" * (1 << 20)]
    assert all(client.set("work", item) for item in items)
    assert [client.get("work") for _ in items] == items
    client.close()


def named_otherwise(authority: Authority) -> tuple[str, str]:
    return authority.sign("other.example")


def expired(authority: Authority) -> tuple[str, str]:
    return authority.sign(HOST, until=datetime.datetime(2021, 1, 1))


def of_a_stranger(authority: Authority) -> tuple[str, str]:
    folder = authority.folder / "stranger"
    folder.mkdir()
    return Authority(folder, "stranger").sign(HOST)


@pytest.mark.parametrize(
    ("certificate", "why"),
    [
        (named_otherwise, "certificate is not valid for 'localhost'"),
        (expired, "certificate has expired"),
        (of_a_stranger, "unable to get local issuer certificate|self-signed certificate"),
    ],
)
def test_our_client_says_why_it_does_not_trust_the_server(
    processes: Processes, authority: Authority, certificate: Callable[[Authority], tuple[str, str]], why: str
) -> None:
    server = serve(processes, *certificate(authority))
    options = TlsOptions(authority.ca_file)
    with (
        BlockingClient(f"{HOST}:{server.port}", tls=options, timeout_s=PATIENCE_S) as client,
        pytest.raises(CannotConnect, match=why),
    ):
        client.version()
