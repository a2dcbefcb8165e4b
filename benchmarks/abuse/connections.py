"""Abusive connections: slow, numerous, half-finished, or with a client that has vanished."""

from __future__ import annotations

import ctypes
import socket
import struct
from contextlib import suppress
from typing import Final

from benchmarks.abuse.abuse_process import Place, reset
from tests.memcache_text import set_
from tests.server.running import Client, Server, eventually

MIB: Final = 1 << 20
LITTLE: Final = 64 * 1024
"""The receive buffer of a client that does not read."""
SLOW: Final = 300
NOT_READING: Final = 20
VANISHING: Final = 50
HALF: Final = 60

_SO_ATTACH_FILTER: Final = 26
_DROP_ALL: Final = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
"""A packet filter of one instruction that drops all incoming packets."""
_TCP_REPAIR: Final = 19


def slow_senders(place: Place) -> None:
    """Send hundreds of requests very slowly, one byte at a time."""
    clients = place.lot(SLOW)
    requests = (set_(b"slow", bytes(100)), b"get slow\r\n", b"stats" + b" " * 100 + b"\r\n")
    sent = dict.fromkeys(clients, 0)
    while place.goes_on():
        for number, client in enumerate(clients):
            at = sent[client]
            request = requests[number % 3]
            with suppress(ConnectionError):
                if at < len(request) - 2:
                    client.send(request[at : at + 1])
            sent[client] = at + 1
            if place.is_hung_up_on(client):
                del sent[client]
                client.close()
                clients[number] = place.connect()
                sent[clients[number]] = 0
        place.pause(0.05)


def put_a_big_item(server: Server) -> None:
    """Put the item that slow readers request."""
    with server.connect() as client:
        client.put(b"big", bytes(MIB))


def readers_that_do_not_read(place: Place) -> None:
    """Request a TiB on each connection, and read nothing."""
    _ask_for_much(place, place.lot(NOT_READING, receive_buffer=LITTLE), reads=0)


def readers_that_hardly_read(place: Place) -> None:
    """Request a TiB on each connection, and read a few bytes now and then."""
    _ask_for_much(place, place.lot(NOT_READING, receive_buffer=LITTLE), reads=100)


def _ask_for_much(place: Place, clients: list[Client], reads: int) -> None:
    requests = memoryview(b"get big/peek\r\n" * 1_000_000)
    for client in clients:
        taken = place.send_what_is_taken(client, requests)
        place.fates["no longer read" if taken < len(requests) else "read to the end"] += 1
    while place.goes_on():
        for client in clients:
            if reads:
                client.socket.recv(reads)
        place.pause(0.02)


def put_what_vanishing_clients_take(server: Server) -> None:
    """Put one item for each vanishing client."""
    with server.connect() as client:
        client.put(b"held", *[b"%d" % number for number in range(VANISHING)])


def vanishing(place: Place) -> None:
    """Open an item on each connection, and vanish as if the cable was pulled.

    Half of the clients read the reply first. A packet filter drops all incoming packets, so the server sees neither a
    FIN nor a reset.
    """
    clients = place.lot(VANISHING)
    for number, client in enumerate(clients):
        if number % 2:
            _deafen(client)
            client.send(b"get held/open\r\n")
        else:
            client.send(b"get held/open\r\n")
            client.receive(10)
            client.socket.settimeout(0.05)
            with suppress(TimeoutError):
                client.receive(1000)
            _deafen(client)
        place.fates["vanished"] += 1
    with place.connect() as other:
        eventually(lambda: other.stats()["curr_connections"] == "2", "the server closes vanished clients", within_s=30)
    place.fates["noticed"] += len(clients)


def _deafen(client: Client) -> None:
    program = struct.pack("@HP", 1, ctypes.addressof(_DROP_ALL))
    client.socket.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


def all_are_back(server: Server) -> list[str]:
    """Check that all items that vanished clients had open are in the queue again."""
    with server.connect() as client:
        stats = client.stats()
        items, held = stats["queue_held_items"], stats["queue_held_open_transactions"]
    if (items, held) != (str(VANISHING), "0"):
        return [f"{items} of {VANISHING} items are back, {held} are still open"]
    return []


def may_repair() -> bool:
    """Return True if this process may close connections without sending a packet. That needs root."""
    with socket.socket() as tried, suppress(OSError):
        tried.setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR, 1)
        return True
    return False


def without_an_end(place: Place) -> None:
    """Open an item on each connection, and close without sending a packet, like a machine that is power-cycled."""
    clients = place.lot(VANISHING)
    for client in clients:
        client.send(b"get held/open\r\n")
        client.receive(10)
    for client in clients:
        client.socket.setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR, 1)
        client.close()
        place.fates["vanished"] += 1
    with place.connect() as other:
        eventually(lambda: other.stats()["curr_connections"] == "2", "the server closes vanished clients", within_s=30)
    place.fates["noticed"] += len(clients)


MOST_CONNECTIONS: Final = 200


def over_the_limit(place: Place) -> None:
    """Open twice as many connections as allowed, again and again."""
    while place.goes_on():
        clients = place.lot(2 * MOST_CONNECTIONS)
        place.pause(0.1)
        refused = 0
        for client in clients:
            client.socket.setblocking(False)
            with suppress(BlockingIOError):
                line = place.reply_line(client)
                refused += 1
                place.fates["refused with a message" if b"connections" in line else "refused without a message"] += 1
        place.fates["accepted"] += len(clients) - refused
        for client in clients:
            client.close()


def comings_and_goings(place: Place) -> None:
    """Connect and close as fast as possible, with and without a reset."""
    while place.goes_on():
        client = place.connect()
        match place.dice.randrange(4):
            case 0:
                client.close()
            case 1:
                reset(client)
            case 2:
                client.send(b"get nothing/t=60000\r\n")
                client.close()
            case _:
                client.send(b"set nothing 0 0 100\r\nhalf")
                reset(client)
        place.fates["connected and left"] += 1


def half_requests(place: Place) -> None:
    """Start a put of 16 MiB on each of many connections, and send half of it."""
    half = memoryview(set_(b"work", bytes(16 * MIB)))[: 8 * MIB]
    clients = place.lot(HALF)
    sent = dict.fromkeys(clients, 0)
    while place.goes_on():
        for number, client in enumerate(clients):
            if not place.goes_on():
                break
            taken = place.send_what_is_taken(client, half[sent[client] : sent[client] + MIB])
            if taken >= 0:
                sent[client] += taken
            if taken < 0 or place.is_hung_up_on(client):
                if taken < 0:
                    place.fates["disconnected"] += 1
                client.close()
                clients[number] = place.connect()
                sent[clients[number]] = 0
        place.pause(0.01)
