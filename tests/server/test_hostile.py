"""Hostile clients: others are served promptly, and memory stays bounded.

Every test states how much the process may grow at its peak. The figures leave room for noise, but not for an unbounded
buffer.
"""

import os
import random
import resource
import signal
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from tests.child import join
from tests.memcache_text import set_
from tests.server.running import ANY_PORT, Client, Processes, Server, eventually

CONFIG = """
queuePath = "queues"
maxOpenTransactions = 100
diskReserveSize = 0
"""

MIB = 1 << 20
MAX_REQUEST_ITEM = 16 * MIB

LITTLE = 64 * 1024
"""Receive buffer of a client that does not read."""

PROMPTLY_S = 10.0
"""Processor time of the server while a normal client waits for a reply, in seconds.

The clock would also measure other work of the machine. Work for others while the machine delays the client counts as
well, so this only finds clients that are delayed until the end. How turns are shared is tested in
tests/queues/test_tick_scheduler.py and tests/queues/test_expiry_sweeper.py.
"""


@pytest.fixture
def server(processes: Processes) -> Server:
    # The kernel delays connections beyond the backlog for a second each.
    return processes.serve(CONFIG, endpoint=ANY_PORT + ":backlog=1024")


class Bystander(threading.Thread):
    """A normal client that puts and gets all the time, and records the server's processor time while it waited."""

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self.longest_work_s = 0.0
        self.round_trips = 0
        self.error: BaseException | None = None
        self._server = server
        self._is_over = threading.Event()

    def run(self) -> None:
        try:
            with self._server.connect() as client:
                while not self._is_over.wait(0.001):
                    before_s = self._server.cpu_s()
                    client.ask(b"set bystander 0 0 5\r\nhello\r\n", b"STORED\r\n")
                    client.ask(b"get bystander\r\n", b"VALUE bystander 0 5\r\nhello\r\nEND\r\n")
                    self.longest_work_s = max(self.longest_work_s, self._server.cpu_s() - before_s)
                    self.round_trips += 1
        except BaseException as error:
            self.error = error

    def finish(self) -> None:
        self._is_over.set()
        join(self)


@contextmanager
def harmless(server: Server, grows_by_at_most: int) -> Iterator[Bystander]:
    """Check that the block neither delays others nor takes more memory than that."""
    bystander = Bystander(server)
    bystander.start()
    eventually(lambda: bystander.round_trips > 10 or bystander.error, "the bystander is served")
    before = server.memory_bytes()
    with open(f"/proc/{server.pid}/clear_refs", "w") as file:
        file.write("5")  # the peak is reset
    try:
        yield bystander
        served = bystander.round_trips
        eventually(lambda: bystander.round_trips > served + 1 or bystander.error, "the bystander is served on")
    finally:
        bystander.finish()
    assert bystander.error is None
    assert bystander.longest_work_s < PROMPTLY_S
    growth = server.peak_memory_bytes() - before
    assert growth <= grows_by_at_most, f"it grew by {growth / MIB:.1f} MiB"
    assert "Traceback" not in server.logged()


def send_until_hung_up(client: Client, chunk: bytes, size: int) -> int:
    """Send up to that many bytes. Return the number of bytes sent."""
    sent = 0
    with suppress(ConnectionError):
        while sent < size:
            client.send(chunk)
            sent += len(chunk)
    return sent


def send_until_stuck(client: Client, data: bytes) -> int:
    """Send until the other side has accepted nothing for a while. Return the number of bytes sent."""
    client.socket.settimeout(0.3)
    sent = 0
    with suppress(TimeoutError):
        while sent < len(data):
            sent += client.socket.send(data[sent : sent + 65536])
    return sent


# Invalid bytes.


def test_garbage_is_answered_with_client_error_and_a_disconnect(server: Server) -> None:
    dice = random.Random(1)
    with harmless(server, grows_by_at_most=16 * MIB):
        for _ in range(200):
            garbage = dice.randbytes(dice.randrange(1, 20_000)) + b"\r\n"
            with server.connect() as client:
                send_until_hung_up(client, garbage, len(garbage))
                assert client.line().startswith(b"CLIENT_ERROR")
                client.to_the_end()


# Slow clients.


def test_unfinished_sets_use_memory_only_for_sent_bytes(server: Server) -> None:
    with ExitStack() as clients, harmless(server, grows_by_at_most=32 * MIB):
        for number in range(100):
            client = clients.enter_context(server.connect())
            client.send(b"set work%d 0 0 %d\r\n" % (number, MAX_REQUEST_ITEM) + bytes(50_000))


# Clients that do not read.


def test_client_that_never_reads_is_not_read_from(server: Server) -> None:
    with server.connect() as client:
        client.put(b"big", bytes(MIB))
    with harmless(server, grows_by_at_most=48 * MIB) as bystander, server.connect(LITTLE) as client:
        taken = send_until_stuck(client, b"get big/peek\r\n" * 1_000_000)
        assert taken < len(b"get big/peek\r\n") * 1_000_000
        served = bystander.round_trips
        eventually(lambda: bystander.round_trips > served + 20 or bystander.error, "the others have many turns more")


@pytest.mark.parametrize("request_", [b"stats\r\n", b"version\r\n", b"get none\r\n"])
def test_client_that_never_reads_small_replies_is_bounded(server: Server, request_: bytes) -> None:
    with harmless(server, grows_by_at_most=16 * MIB), server.connect(LITTLE) as client:
        requests = request_ * 2_000_000
        assert send_until_stuck(client, requests) < len(requests)


# Many clients.


def test_thousand_dropped_connections_leave_nothing(server: Server) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    with server.connect() as client:
        files_before = server.open_files()
        with harmless(server, grows_by_at_most=48 * MIB):
            clients = [server.connect() for _ in range(1000)]
            for number, each in enumerate(clients):
                match number % 4:
                    case 0:
                        each.send(b"get nothing/t=60000\r\n")
                    case 1:
                        each.send(b"set nothing 0 0 100\r\nhalf")
                    case 2:
                        # A reset instead of an orderly close.
                        each.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            for each in clients:
                each.close()
            eventually(lambda: client.stats()["curr_connections"] == "2", "all but two are gone")
        journals = 2  # those of the queues that were created meanwhile
        eventually(lambda: server.open_files() <= files_before + journals, "their descriptors are given back")
        assert client.stats()["queue_nothing_waiters"] == "0"


def test_put_before_the_disconnects_of_waiting_clients_loses_no_item(server: Server) -> None:
    with server.connect() as client:
        waiters = [server.connect() for _ in range(300)]
        for waiter in waiters:
            waiter.send(b"get work/t=60000\r\n")
        eventually(lambda: client.stats().get("queue_work_waiters") == "300", "all wait")
        os.kill(server.pid, signal.SIGSTOP)
        try:
            client.send(b"version\r\n")  # so it is read first, before most of the others
            for waiter in waiters:
                waiter.close()
            client.send(set_(b"work", b"hello"))
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert client.line().startswith(b"VERSION ")
        client.expect(b"STORED\r\n")
        assert client.get(b"work/t=5000") == b"hello"


def test_flood_of_new_queues_is_served(server: Server) -> None:
    with harmless(server, grows_by_at_most=64 * MIB), server.connect() as client:
        client.send(b"".join(b"get q%d\r\n" % number for number in range(2000)))
        client.expect(b"END\r\n" * 2000)
    assert server.open_files() < 1000
