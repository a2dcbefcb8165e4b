"""An ordinary client: it puts and gets 64 bytes, 200 times a second, and measures each request."""

from __future__ import annotations

import math
import time
from typing import Final

from benchmarks.harness import percentile
from tests.memcache_text import set_
from tests.server.running import Client, Server

QUEUE: Final = b"bystander"
EVERY_S: Final = 0.005
"""The interval in seconds between pairs of a put and a get."""
ITEM: Final = bytes(range(64))
_GET: Final = b"get %b\r\n" % QUEUE
_VALUE: Final = b"VALUE %b 0 %d\r\n%b\r\nEND\r\n" % (QUEUE, len(ITEM), ITEM)
_SET: Final = set_(QUEUE, ITEM)


class Bystander:
    """A client with one connection. A wrong reply raises an exception."""

    def __init__(self, server: Server) -> None:
        self._client: Client = server.connect()
        self.round_trips = 0

    def p99_ms(self, seconds: float) -> float:
        """Run for that many seconds, and return the p99 in milliseconds, corrected by `stalls`."""
        taken: list[float] = []
        end = time.perf_counter() + seconds
        while (due := time.perf_counter() + EVERY_S) < end:
            for request, reply in ((_SET, b"STORED\r\n"), (_GET, _VALUE)):
                begun = time.perf_counter()
                self._client.ask(request, reply)
                taken.extend(stalls(time.perf_counter() - begun))
            time.sleep(max(0.0, due - time.perf_counter()))
        self.round_trips += len(taken)
        return percentile(taken, 99) * 1000

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def stalls(taken_s: float) -> list[float]:
    """Return the waiting times of this request and of the requests that were due meanwhile (coordinated omission)."""
    return [taken_s - EVERY_S * late for late in range(max(1, math.ceil(taken_s / EVERY_S)))]
