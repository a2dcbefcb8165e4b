"""A disk that hangs during puts, on a server that replies after a sync."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from benchmarks.abuse.abuse_process import Place
from tests.memcache_text import set_
from tests.server.running import Client, Server

HANGS: Final = "hangs"
"""While a file of this name is in the server's folder, syncs do not return."""
ACKNOWLEDGED: Final = "acknowledged"
REFUSED: Final = "refused"
"""Files that list the abuser's acknowledged and refused items, one number a line."""
PUTTERS: Final = 100
ITEM_BYTES: Final = 256 * 1024
EACH: Final = 3
"""Puts of each client. Together they exceed the limit of uncommitted and queued bytes."""
HANG_S: Final = 0.02

_SEAM: Final = f"""
import os
import time

def hanging(sync):
    def sync_when_it_goes_on(descriptor):
        while os.path.exists({HANGS!r}):
            time.sleep({HANG_S})
        sync(descriptor)
    return sync_when_it_goes_on

os.fsync, os.fdatasync = hanging(os.fsync), hanging(os.fdatasync)
"""
FILES: Final[Mapping[str, str]] = {"sitecustomize.py": _SEAM}
CONFIG: Final = """maxUncommittedBytes = "8MiB"
[default]
syncJournal = 0
maxMemorySize = "4MiB"
[[queues]]
name = "bystander"
keepJournal = false
[[queues]]
name = "late"
keepJournal = false
"""


def hanging_disk(place: Place) -> None:
    """Put items while the disk hangs. Then read all replies."""
    hangs, number = place.folder / HANGS, time.monotonic_ns() // 1000
    clients = place.lot(PUTTERS)
    asked: dict[Client, list[int]] = {client: [] for client in clients}
    hangs.touch()
    try:
        while place.goes_on():
            for client in clients:
                if not place.goes_on():
                    break
                request = set_(b"journaled", b"%020d" % number + bytes(ITEM_BYTES - 20))
                if len(asked[client]) < EACH:
                    # Send whole requests. A half request would time out, so stop using a client that the server does
                    # not read from.
                    client.socket.settimeout(0.2)
                    asked[client].append(number)
                    number += 1
                    try:
                        client.send(request)
                    except TimeoutError:
                        place.fates["no longer read"] += 1
                        asked[client] += [-1] * EACH
            place.pause(0.01)
    finally:
        hangs.unlink()
    _hear(place, asked)


def _hear(place: Place, asked: Mapping[Client, list[int]]) -> None:
    with (place.folder / ACKNOWLEDGED).open("a") as acknowledged, (place.folder / REFUSED).open("a") as refused:
        for client, numbers in asked.items():
            client.socket.settimeout(30)
            whole = [number for number in numbers if number >= 0][: None if -1 not in numbers else -1]
            for number in whole:
                line = client.line()
                is_stored = line == b"STORED\r\n"
                (acknowledged if is_stored else refused).write(f"{number}\n")
                place.fates["stored after the hang" if is_stored else "refused: " + line.decode("latin-1").strip()] += 1


def nothing_lost(server: Server) -> list[str]:
    """Check that all acknowledged items are in the queue, and no refused ones."""
    folder = server.output.parent
    found = set()
    with server.connect() as client:
        while (item := client.get(b"journaled/open")) is not None:
            found.add(int(item[:20]))
            client.ask(b"get journaled/close\r\n", b"END\r\n")
    acknowledged = {int(line) for line in (folder / ACKNOWLEDGED).read_text().split()}
    refused = {int(line) for line in (folder / REFUSED).read_text().split()}
    wrong = []
    if lost := acknowledged - found:
        wrong.append(f"{len(lost)} of {len(acknowledged)} acknowledged items are lost")
    if back := refused & found:
        wrong.append(f"{len(back)} refused items are there")
    return wrong

