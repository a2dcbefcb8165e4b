"""A server with a busy hour in its history: real queues and the real admin port, with a simulated clock.

    python -m tests.dashboard.busy_server --queues 8

prints the address of its admin port, and continues to put and take items until its standard input ends.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import threading
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from twisted.internet.protocol import ClientFactory, Protocol
from twisted.internet.task import LoopingCall

from kestrel.admin.history import SAMPLES, STEP_S
from kestrel.admin.routes import Routes
from kestrel.admin.server_view import ServerView
from kestrel.admin.site import AdminSite
from kestrel.admin.time_slices import make_cooperator
from kestrel.config.load import loads
from kestrel.testing.server import MemoryServer

NAMES: Final = ("orders", "mails", "thumbnails", "invoices", "audit+archive", "audit+search", "webhooks", "retries")
LIVE_S: Final = 0.2
MOST_RATES: Final = 100
"""The rate of each queue falls with the number of queues."""
CONFIG: Final = """
queuePath = '/var/spool/kestrel'
statusFile = '/var/lib/kestrel/status'
[admin]
peek = true
[[queues]]
name = 'retries'
maxAge = '2m'
"""


REQUESTS: Final = (
    *(b"get orders/t=400/close/open", b"get mails/t=400/close/open", b"get thumbnails/t=400", b"get webhooks/t=400"),
    *(b"set invoices 0 0 5\r\nhello", b"set orders 0 0 5\r\nhello", b"get reports/t=1000000000", b"get reports/peek"),
)


class RemoteClient(Protocol):
    """A client over TCP that repeats one request."""

    def __init__(self, request: bytes, reactor: Any) -> None:
        self._request = request
        self._reactor = reactor

    def connectionMade(self) -> None:
        assert self.transport is not None
        self.transport.write(b"%b\r\n" % self._request)

    def dataReceived(self, data: bytes) -> None:
        """Send the requests of one second."""
        self._reactor.callLater(1, self.connectionMade)


class Busy:
    """Puts and takes with rates for each queue, which rise and fall over the hour."""

    def __init__(self, folder: Path, queues: int, seed: int) -> None:
        self.server = MemoryServer(folder=folder, config=loads(CONFIG))
        self._client = self.server.connect()
        self._dice = random.Random(seed)
        scale = min(1.0, MOST_RATES / queues)
        self._owed: dict[bytes, float] = {}
        self.names = [
            (NAMES[number] if number < len(NAMES) else f"tenant-{number:04d}").encode() for number in range(queues)
        ]
        dice = self._dice.uniform
        self._shape = {name: (scale * dice(0.2, 6), dice(0, 2 * math.pi), dice(0.93, 1.005)) for name in self.names}

    def go_on(self, seconds: float) -> None:
        """Advance the time."""
        now_s = self.server.clock.seconds()
        requests: list[bytes] = []
        for name in self.names:
            rate, phase, share = self._shape[name]
            rate *= 1 + 0.7 * math.sin(now_s / 600 + phase) + self._dice.uniform(-0.3, 0.3)
            owed = self._owed.get(name, 0.0) + max(0.0, rate * seconds)
            count, self._owed[name] = int(owed), owed % 1
            for _ in range(count):
                item = b'{"customer": 4711, "total": "19.90"}' * self._dice.randrange(1, 20)
                requests.append(b"set %b 0 0 %d\r\n%b\r\n" % (name, len(item), item))
                if self._dice.random() < share:
                    requests.append(b"get %b\r\n" % name)
        self._client.send(b"".join(requests))
        self.server.clock.advance(self._dice.expovariate(1 / 0.0004))  # time of a sync
        self._client.take()
        self.server.clock.advance(seconds)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--queues", type=int, default=len(NAMES))
    parser.add_argument("--samples", type=int, default=SAMPLES, help="so much of the hour, in steps of ten seconds")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    reactor: Any = import_module("twisted.internet.reactor")
    with TemporaryDirectory(prefix="kestrel-busy-") as folder:
        busy = Busy(Path(folder), options.queues, options.seed)
        server = busy.server
        server_view = ServerView(
            server.core, server.control, "journal:/var/spool/kestrel", server.clock.seconds, lambda: True
        )
        answering = make_cooperator(reactor)
        routes = Routes(server_view, server.clock, answering)
        for _ in range(options.samples):
            busy.go_on(STEP_S)
            for _ in routes.history.sampling():
                pass
        site = AdminSite(server_view, routes.handle, reactor, answering, is_trusted=True)
        port = reactor.listenTCP(0, site, interface="127.0.0.1")
        print(f"http://127.0.0.1:{port.getHost().port}", flush=True)
        clients = reactor.listenTCP(0, server.factories["memcache"], interface="127.0.0.1")
        for number, request in enumerate(REQUESTS, start=11):
            address = (f"127.0.3.{number}", 0)
            factory = ClientFactory()
            factory.protocol = partial(RemoteClient, request, reactor)
            reactor.connectTCP("127.0.0.1", clients.getHost().port, factory, bindAddress=address)
        LoopingCall(busy.go_on, LIVE_S).start(LIVE_S, now=False)
        threading.Thread(target=_until_nobody_is_there, args=(reactor,), daemon=True).start()
        reactor.run()


def _until_nobody_is_there(reactor: Any) -> None:
    sys.stdin.read()
    reactor.callFromThread(reactor.stop)


if __name__ == "__main__":
    main()
