"""An upgrade of a server in a cluster under load: it is drained, removed, restarted and added again. No client notices.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Literal

import pytest

from kestrel.client.blocking import BlockingClient
from tests.child import join
from tests.cluster.servers import await_members, config, members, set_status
from tests.cluster.zookeeper import ZooKeeper
from tests.server.running import PATIENCE_S, Processes, Server, eventually, own_port

Protocol = Literal["memcache", "thrift"]

SERVED: Final = 'queuePath = "queues"\nstatusFile = "status"\n[admin]\nhttpPort = false\n'
PRODUCERS: Final = 2
CONSUMERS: Final = 2
BACKLOG: Final = 600
"""Limit of the items in the queues of all servers together while producers run."""

MARGIN_S: Final = PATIENCE_S
"""Time that an item may wait longer than the drain, on a busy machine. Without a limit, an item could be left behind.
"""


class Ledger:
    """The items put and received, and the longest wait, for all threads."""

    def __init__(self) -> None:
        self.put: set[bytes] = set()
        """Items that a server has acknowledged."""
        self.received: Counter[bytes] = Counter()
        """Number of times that each was taken and confirmed."""
        self.longest_s = 0.0
        """The longest wait of an item, in seconds."""
        self._lock = threading.Lock()

    def is_put(self, item: bytes) -> None:
        """Record a put that a server has acknowledged."""
        with self._lock:
            self.put.add(item)

    def is_received(self, item: bytes) -> None:
        """Record an item that a consumer has confirmed."""
        waited_s = (time.monotonic_ns() - int(item.split()[1])) / 1e9
        with self._lock:
            self.received[item] += 1
            self.longest_s = max(self.longest_s, waited_s)


class Users:
    """Producers and consumers over a server set, each in a thread with its own client, for the time of a `with`. At its
    end the producers stop first, and the consumers when no items are left.
    """

    def __init__(self, uri: str, protocol: Protocol, ledger: Ledger) -> None:
        self.failures: list[BaseException] = []
        """Errors and wrong results. Each has ended a thread."""
        self._uri = uri
        self._protocol = protocol
        self._ledger = ledger
        self._room = threading.Semaphore(BACKLOG)
        self._are_to_stop = threading.Event()
        self._nothing_comes = threading.Event()
        self._producers = [self._thread(self._produce, number) for number in range(PRODUCERS)]
        self._consumers = [self._thread(self._consume, number) for number in range(CONSUMERS)]

    def _thread(self, use: Callable[[BlockingClient, int], None], number: int) -> threading.Thread:
        return threading.Thread(target=self._begin, args=(use, number), daemon=True)

    def _begin(self, use: Callable[[BlockingClient, int], None], number: int) -> None:
        try:
            with BlockingClient(self._uri, self._protocol, timeout_s=PATIENCE_S) as client:
                use(client, number)
        except BaseException as failure:
            self.failures.append(failure)

    def _produce(self, client: BlockingClient, producer: int) -> None:
        number = 0
        while not self._are_to_stop.is_set():
            if not self._room.acquire(timeout=0.1):
                continue
            number += 1
            item = b"%d-%d %d" % (producer, number, time.monotonic_ns())
            assert client.put("work", item), "no limit is set"
            self._ledger.is_put(item)

    def _consume(self, client: BlockingClient, _: int) -> None:
        while True:
            is_the_end = self._nothing_comes.is_set()
            with client.reliable_get("work", timeout=0 if is_the_end else 1) as item:
                if item is not None:
                    self._ledger.is_received(item)
                    self._room.release()
                elif is_the_end:
                    return

    def __enter__(self) -> Users:
        for thread in (*self._producers, *self._consumers):
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._are_to_stop.set()
        join(*self._producers)
        self._nothing_comes.set()
        join(*self._consumers)


class Cluster:
    """Some servers, each with its own folder and port."""

    def __init__(self, stack: ExitStack, folder: Path, zookeeper: ZooKeeper, prefix: str, count: int) -> None:
        self.uri = f"zk://{zookeeper.hosts}{prefix}"
        self._zookeeper = zookeeper
        self._prefix = prefix
        self._places = [self._place(stack, folder / str(number)) for number in range(count)]
        self.servers = [self._start(number) for number in range(count)]
        for server in self.servers:
            server.serves()
        self.statuses = dict.fromkeys((port for _, port in self._places), "Up")
        self.await_sets()

    def _place(self, stack: ExitStack, folder: Path) -> tuple[Processes, int]:
        folder.mkdir()
        return stack.enter_context(Processes(folder)), stack.enter_context(own_port())

    def _start(self, number: int) -> Server:
        processes, port = self._places[number]
        given = SERVED + config(self._zookeeper, self._prefix)
        return processes.start(given, endpoint=f"tcp:{port}:interface=127.0.0.1")

    def await_sets(self) -> None:
        """Wait until both sets have the members of these statuses."""
        await_members(self._zookeeper, self._prefix, self.statuses)

    def set_status(self, number: int, status: str) -> None:
        """Change a status as an operator would. Return when the sets have changed."""
        set_status(self.servers[number], status)
        self.statuses[self._places[number][1]] = status
        self.await_sets()

    def upgrade(self, number: int) -> None:
        """Stop a server in an orderly way, and start it over its folder."""
        self.servers[number].stop()
        self.servers[number] = self._start(number).serves()

    def is_named(self, number: int) -> bool:
        """Return True if a set has the server."""
        sets = members(self._zookeeper.client, self._prefix)
        return any(self._places[number][1] in ports for ports in sets.values())

    def figure(self, number: int, name: str) -> int:
        """Return a figure of the queue from the server's `stats`."""
        with self.servers[number].connect() as client:
            return int(client.stats().get(f"queue_work_{name}", "0"))

    def is_empty(self, number: int) -> bool:
        """Return True if the queue is empty, as an operator would check it."""
        return self.figure(number, "items") == self.figure(number, "open_transactions") == 0


@pytest.fixture
def cluster(tmp_path: Path, zookeeper: ZooKeeper, prefix: str) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(stack, tmp_path, zookeeper, prefix, 3)


@pytest.mark.parametrize("protocol", ["memcache", "thrift"])
def test_drained_and_upgraded_server_loses_and_duplicates_no_item(
    protocol: Protocol, cluster: Cluster
) -> None:
    ledger = Ledger()
    with Users(cluster.uri, protocol, ledger) as users:
        for number in range(3):
            eventually(lambda number=number: cluster.figure(number, "items") > 50, "each server has items")

        began = time.monotonic()
        cluster.set_status(1, "ReadOnly")
        total = cluster.figure(1, "total_items")
        eventually(lambda: cluster.is_empty(1), "its items have gone out")
        drained_s = time.monotonic() - began
        assert cluster.figure(1, "total_items") == total, "something came in"

        cluster.set_status(1, "Quiescent")
        cluster.upgrade(1)
        count = len(ledger.received)
        eventually(lambda: len(ledger.received) > count + 500, "the other two go on")
        assert not cluster.is_named(1), "it came back before it was told to"
        assert cluster.figure(1, "total_items") == 0

        cluster.set_status(1, "Up")
        eventually(lambda: cluster.figure(1, "total_items") > 50, "items come to it again")
        away_s = time.monotonic() - began
    print(
        f"{len(ledger.put)} items; drained in {drained_s:.2f} s, back after {away_s:.2f} s; "
        f"the longest wait was {ledger.longest_s:.2f} s"
    )
    assert users.failures == []
    assert not ledger.put - ledger.received.keys(), "items are lost"
    assert not ledger.received.keys() - ledger.put, "items came from nowhere"
    assert [item for item, times in ledger.received.items() if times > 1] == []
    assert ledger.longest_s < drained_s + MARGIN_S
