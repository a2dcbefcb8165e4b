"""Administrative commands from a client that is not an administrator."""

from __future__ import annotations

from typing import Final

from benchmarks.abuse.abuse_process import Place
from tests.server.running import Server

ORDERS: Final = (
    *(b"shutdown\r\n", b"reload\r\n", b"status readonly\r\n"),
    *(b"flush_all\r\n", b"flush kept\r\n", b"delete kept\r\n"),
)


def prepare(server: Server) -> None:
    """Put the item that must remain."""
    with server.connect() as client:
        client.put(b"kept", b"hello")


def orders(place: Place) -> None:
    """Send one random command on each of many connections."""
    while place.goes_on():
        with place.connect(place.dice.choice(("memcache", "text"))) as client:
            client.send(place.dice.choice(ORDERS))
            line = place.reply_line(client)
            place.fates["refused" if b"administrator" in line else f"answered {line!r}"] += 1


def nothing_done(server: Server) -> list[str]:
    """Check that the item remains and that the status is unchanged."""
    wrong = []
    with server.connect() as client:
        if client.get(b"kept/peek") != b"hello":
            wrong.append("the queue was flushed")
        if client.stats().get("status", "Up").lower() != "up":
            wrong.append("the status was changed")
    return wrong
