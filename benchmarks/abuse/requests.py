"""Valid requests in abusive numbers or sizes."""

from __future__ import annotations

import threading
from typing import Final

from benchmarks.abuse.abuse_process import Place
from tests.memcache_text import set_
from tests.server.running import Server

MIB: Final = 1 << 20
AT_ONCE: Final = 100_000
WAITING: Final = 300
MOST_QUEUES: Final = 1000


def pipelines(place: Place) -> None:
    """Pipeline 100,000 requests again and again. A thread sends them without waiting for replies."""
    requests = set_(b"work", b"x" * 10) * AT_ONCE
    gets = b"get work\r\n" * AT_ONCE
    replies = (b"STORED\r\n", b"VALUE work 0 10\r\nxxxxxxxxxx\r\nEND\r\n")
    with place.connect() as client:
        client.socket.settimeout(60)
        while place.goes_on():
            for request, reply in zip((requests, gets), replies, strict=True):
                sender = threading.Thread(target=client.send, args=(request,), daemon=True)
                sender.start()
                left = len(reply) * AT_ONCE
                while left:
                    left -= len(client.receive(min(left, 65536)))
                    if not place.goes_on():
                        place.fates["cut short"] += 1
                        return
                sender.join()
                place.fates["requests answered"] += AT_ONCE


def large_items(place: Place) -> None:
    """Put and get items of 8 to 16 MiB."""
    with place.connect() as client:
        client.socket.settimeout(60)
        data = place.dice.randbytes(16 * MIB)
        while place.goes_on():
            item = data[: place.dice.randrange(8 * MIB, 16 * MIB + 1)]
            client.put(b"work", item)
            if client.get(b"work") != item:
                raise ValueError("a get returned another item")
            place.fates["put and taken"] += 1


def many_queues(place: Place) -> None:
    """Put a small item to each of thousands of queues."""
    number = 0
    with place.connect() as client:
        while place.goes_on():
            names = [b"tiny%d" % each for each in range(number, number + 100)]
            client.send(b"".join(set_(name, b"x") for name in names))
            for _ in names:
                line = place.reply_line(client)
                place.fates["stored" if line == b"STORED\r\n" else "refused"] += 1
            number += len(names)


def no_more_queues_than_allowed(server: Server) -> list[str]:
    """Check that `stats` lists at most `MOST_QUEUES` queues."""
    with server.connect() as client:
        queues = sum(name.endswith("_total_items") and name.startswith("queue_") for name in client.stats())
    return [f"there are {queues} queues, more than {MOST_QUEUES}"] if queues > MOST_QUEUES else []


def gets_of_nothing(place: Place) -> None:
    """Get and peek from queues without items, with a new name each time."""
    number = 0
    with place.connect() as client:
        while place.goes_on():
            names = [b"none%d" % each for each in range(number, number + 100)]
            client.send(b"".join(b"get %b\r\nget %b/peek\r\n" % (name, name) for name in names))
            for _ in range(200):
                place.fates["answered" if place.reply_line(client) == b"END\r\n" else "refused"] += 1
            number += len(names)


def waiting_gets(place: Place) -> None:
    """Keep hundreds of gets waiting on a few queues. Replace connections while their gets wait."""
    _wait(place, lambda number: b"get wait%d/t=%d\r\n" % (number % 7, 1 + number % 500))


def monitors(place: Place) -> None:
    """Keep hundreds of monitors waiting on a few queues. Replace connections while their monitors wait."""
    _wait(place, lambda number: b"monitor wait%d 1 1000\r\n" % (number % 7))


def _wait(place: Place, request: object) -> None:
    assert callable(request)
    clients = place.lot(WAITING)
    for number, client in enumerate(clients):
        client.send(b"".join(request(number * 20 + each) for each in range(20)))
    while place.goes_on():
        number = place.dice.randrange(len(clients))
        clients[number].close()
        clients[number] = client = place.connect()
        client.send(b"".join(request(number * 20 + each) for each in range(20)))
        place.fates["left while waiting"] += 1
