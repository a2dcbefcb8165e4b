"""An ordinary client: it puts and takes 64 bytes, some hundred times a second, and remembers how long each took."""

from __future__ import annotations

import math
import time
from typing import Final

from benchmarks.harness import percentile
from tests.server.running import Client, Server, set_request

QUEUE: Final = b"bystander"
EVERY_S: Final = 0.005
"""A put and a get are due."""
ITEM: Final = bytes(range(64))
_GET: Final = b"get %b\r\n" % QUEUE
_VALUE: Final = b"VALUE %b 0 %d\r\n%b\r\nEND\r\n" % (QUEUE, len(ITEM), ITEM)
_SET: Final = set_request(QUEUE, ITEM)


class Bystander:
    """Keeps its one connection. What is not answered as it should be raises."""

    def __init__(self, server: Server) -> None:
        self._client: Client = server.connect()
        self.round_trips = 0

    def p99_ms(self, seconds: float) -> float:
        """Go on for so long. A server that stands still for a second has delayed more than one request: `stalls`."""
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
        """Hang up."""
        self._client.close()


def stalls(taken_s: float) -> list[float]:
    """What those would have waited who ask as often as is due: this one, and all that stood behind it."""
    return [taken_s - EVERY_S * late for late in range(max(1, math.ceil(taken_s / EVERY_S)))]
