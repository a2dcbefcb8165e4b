"""Bytes that are not requests: garbage, other protocols, unfinished TLS handshakes."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from benchmarks.abuse.abuse_process import Place
from tests.client.certificates import Authority

HALVES: Final = 100

OTHERS: Final = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500) + b"\n",  # TLS
    b"\x80\x0b" + bytes(22) + b"\n",  # binary memcache
    b"*1\r\n$4\r\nPING\r\n",
    b"\0\0\0\x08\x04\xd2\x16\x2f",  # PostgreSQL's request for TLS
    b"SSH-2.0-OpenSSH_9.9\r\n",
)


def garbage(place: Place) -> None:
    """Send garbage and other protocols to every port."""
    protocols = sorted(place.ports)
    while place.goes_on():
        data = place.dice.choice(OTHERS) if place.dice.random() < 0.3 else place.dice.randbytes(
            place.dice.randrange(1, 20_000)
        )
        with place.connect(place.dice.choice(protocols)) as client, suppress(ConnectionError):
            client.send(data + b"\r\n")
            client.stop_sending()
            client.to_the_end()
        place.fates["disconnected"] += 1


def tls_for_text(folder: Path) -> Sequence[str]:
    """Return arguments that serve the text protocol over TLS."""
    certificates = folder / "certificates"
    certificates.mkdir()
    cert_file, key_file = Authority(certificates).sign("mq.example")
    return "--text", f"reloadtls:0:interface=127.0.0.1:certKey={cert_file}:privateKey={key_file}:backlog=1024"


def half_handshakes(place: Place) -> None:
    """Start TLS handshakes that stop after the first message, or within it."""
    hello = _hello()
    clients = place.lot(HALVES, "text")
    while place.goes_on():
        for number, client in enumerate(clients):
            if not place.goes_on():
                break
            with suppress(ConnectionError):
                client.send(hello[: place.dice.randrange(1, len(hello) + 1)])
            if place.dice.random() < 0.2:
                client.close()
                place.fates["left"] += 1
            elif not place.is_hung_up_on(client):
                continue
            else:
                client.close()
            clients[number] = place.connect("text")


def _hello() -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="mq.example")
    with suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def plain_to_tls(place: Place) -> None:
    """Send plain requests to a TLS port."""
    while place.goes_on():
        with place.connect("text") as client, suppress(ConnectionError):
            client.send(b"put work:\nhello\n\n" if place.dice.random() < 0.5 else place.dice.randbytes(300))
            client.stop_sending()
            client.to_the_end()
        place.fates["disconnected"] += 1
