"""Limits of what one client can make the server hold, and of how long it can delay other clients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from twisted.internet.defer import Deferred

from kestrel import commands
from kestrel.config.model import Config, QueueSettings
from kestrel.item import Item
from kestrel.protocols.codec import Codec
from kestrel.protocols.memcache import MemcacheCodec
from kestrel.protocols.text import TextCodec
from kestrel.protocols.thrift import ThriftCodec
from kestrel.queues.tick_scheduler import TICK_BUDGET_S
from kestrel.session.session import MAX_COMMANDS_PER_SLICE
from kestrel.storage.interfaces import IStorage
from kestrel.storage.memory import MemoryQueue, MemoryStorage
from kestrel.testing.server import MemoryClient, MemoryServer
from kestrel.testing.storage import SteppedStorage
from kestrel.testing.transport import READ_BYTES
from tests.session.servers import store_of

KIB = 1024
MIB = 1024 * KIB

VERSION = b"VERSION 1.2.3\r\n"

MOST_UNPARSED_BYTES = 256 * KIB
"""Bytes of a client's small requests that the server may hold before it stops reading."""


class MeteredCodec(Codec):
    """A memcache codec that counts commands and reply bytes. Each command takes `command_s`."""

    command_s = 0.0

    def __init__(self, spend: Callable[[float], None]) -> None:
        self._codec = MemcacheCodec()
        self.buffer = self._codec.buffer
        self._spend = spend
        self.commands_made = 0
        self.reply_bytes_made = 0

    def __len__(self) -> int:
        return len(self._codec)

    def end(self) -> None:
        self._codec.end()

    def stored(self, command: commands.Put, count: int) -> bytes:
        return self._codec.stored(command, count)

    def done(self, command: commands.Command) -> bytes:
        return self._codec.done(command)

    def number(self, command: commands.Command, value: int) -> bytes:
        return self._codec.number(command, value)

    def status(self, command: commands.Command, name: str) -> bytes:
        return self._codec.status(command, name)

    def error(self, command: commands.Command, error: Exception) -> tuple[bytes, bool]:
        return self._codec.error(command, error)

    def next_command(self) -> commands.Command | None:
        command = self._codec.next_command()
        if command is not None:
            self.commands_made += 1
            self._spend(self.command_s)
        return command

    def item(self, command: commands.Get | commands.Monitor, data: bytes) -> bytes:
        return self._made(self._codec.item(command, data))

    def version(self, command: commands.Command, version: str) -> bytes:
        return self._made(self._codec.version(command, version))

    def no_item(self, command: commands.Get | commands.Monitor) -> bytes:
        return self._made(self._codec.no_item(command))

    def _made(self, reply: bytes) -> bytes:
        self.reply_bytes_made += len(reply)
        return reply


class MeteredServer(MemoryServer):
    """A server with metered codecs, in `codecs` in the order of the connections."""

    def __init__(self, storage: IStorage | None = None, *, command_s: float = 0.0, **settings: int) -> None:
        self.codecs: list[MeteredCodec] = []
        self._command_s = command_s
        self.most_in_a_tick = 0
        super().__init__(storage, make_codec=self._make_codec, session_settings=Config(**settings))

    def _make_codec(self) -> MeteredCodec:
        codec = MeteredCodec(self.spend)
        codec.command_s = self._command_s
        self.codecs.append(codec)
        return codec

    @property
    def commands_made(self) -> int:
        return sum(codec.commands_made for codec in self.codecs)

    def tick(self) -> None:
        before = self.commands_made
        super().tick()
        self.most_in_a_tick = max(self.most_in_a_tick, self.commands_made - before)


class SameItemQueue(MemoryQueue):
    """A queue of many large items that take no memory, because all share the same bytes."""

    DATA = bytes(MIB)

    def __init__(self, name: bytes) -> None:
        super().__init__(name)
        self.items = 10_000
        self.bytes = self.items * MIB

    def peek(self) -> Item | None:
        return Item(self.DATA, 0, 0)

    def take(self, opened: bool) -> Item | None:
        self.items -= 1
        item = Item(self.DATA, 0, 0)
        if opened:
            self.open_as(item, self.next_xid())
        return item


class SameItemStorage(MemoryStorage):
    def queue(self, name: bytes, settings: QueueSettings) -> MemoryQueue:
        return self._queues.setdefault(name, SameItemQueue(name))


def read_all(server: MemoryServer, client: MemoryClient) -> tuple[int, bytes]:
    """Let the client read until the server rests. Return the number of bytes and the last 100 of them."""
    client.reads = True
    total = 0
    tail = b""
    for _ in range(100_000):
        if server.is_at_rest:
            return total, tail
        server.tick()
        total += len(client.received)
        tail = (tail + client.received)[-100:]
        client.received.clear()
    raise AssertionError("the server does not come to rest")


# Clients that do not read.


def test_nonreading_client_gets_few_requests_served() -> None:
    server = MeteredServer()
    client = server.connect()
    client.reads = False
    sent = b"version\r\n" * 100_000
    client.send(sent)
    server.settle()
    assert server.codecs[0].reply_bytes_made <= READ_BYTES + 2 * MAX_COMMANDS_PER_SLICE * len(VERSION)
    assert len(server.codecs[0]) <= MOST_UNPARSED_BYTES
    assert len(client.transport.unread) >= len(sent) - MOST_UNPARSED_BYTES - READ_BYTES


@pytest.mark.parametrize("reads_each", [1, 7])
def test_held_bytes_stay_bounded_while_client_reads(reads_each: int) -> None:
    server = MeteredServer(SameItemStorage(), max_pipeline_bytes=MIB)
    client = server.connect()
    client.send(b"get q\r\n" * 60)
    read = most = ticks = 0
    while not server.is_at_rest or not client.reads:
        client.reads = ticks % reads_each == 0
        server.tick()
        ticks += 1
        read += len(client.received)
        client.received.clear()
        most = max(most, server.codecs[0].reply_bytes_made - read)
        assert ticks < 20_000
    assert read == 60 * len(b"VALUE q 0 1048576\r\n\r\nEND\r\n") + 60 * MIB
    assert most <= 2 * MIB + READ_BYTES


def test_large_replies_end_a_time_slice() -> None:
    server = MeteredServer(SameItemStorage(), max_pipeline_bytes=MIB)
    client, other = server.connect(), server.connect()
    client.send(b"get q\r\n" * 200)
    assert server.codecs[0].reply_bytes_made <= 2 * MIB + READ_BYTES
    other.send(b"version\r\n")
    server.tick()
    server.tick()
    assert bytes(other.received) == VERSION


def test_replies_waiting_for_commit_are_bounded() -> None:
    storage = SteppedStorage()
    server = MeteredServer(storage, max_pipeline_bytes=256 * KIB)
    client = server.connect()
    data = b"x" * (16 * KIB)
    reply = b"VALUE q 0 16384\r\n" + data + b"\r\nEND\r\n"
    assert client.ask((b"set q 0 0 16384\r\n" + data + b"\r\n") * 100) == b"STORED\r\n" * 100
    storage.holds_commits = True
    assert client.ask(b"get q\r\n" * 100) == b""
    assert 256 * KIB <= server.codecs[0].reply_bytes_made <= 256 * KIB + len(reply)
    received = b""
    for _ in range(100):
        if not storage.committing:
            break
        storage.end_commits()
        received += client.take()
    assert received == reply * 100


def test_monitor_of_many_items_holds_bounded_memory() -> None:
    server = MeteredServer(SameItemStorage(), max_pipeline_bytes=MIB, max_open_transactions=50)
    client = server.connect()
    client.reads = False
    assert client.ask(b"monitor q 10\r\n") == b""
    assert MIB <= server.codecs[0].reply_bytes_made <= 2 * MIB + READ_BYTES
    total, _ = read_all(server, client)
    assert total == 50 * (len(b"VALUE q 0 1048576\r\n\r\nEND\r\n") + MIB) + len(b"END\r\n")


def test_unread_monitor_ends_at_its_time() -> None:
    server = MeteredServer(SameItemStorage(), max_pipeline_bytes=MIB, max_open_transactions=50)
    client = server.connect()
    client.reads = False
    client.send(b"monitor q 10\r\nversion\r\n")
    server.advance(10)
    _, tail = read_all(server, client)
    assert tail.endswith(b"END\r\nEND\r\n" + VERSION)


def test_client_that_does_not_read_delays_no_other_client() -> None:
    server = MeteredServer()
    deaf, other = server.connect(), server.connect()
    deaf.reads = False
    deaf.send(b"version\r\n" * 100_000)
    server.settle()
    assert other.ask(b"set q 0 0 1\r\nx\r\nget q\r\n") == b"STORED\r\nVALUE q 0 1\r\nx\r\nEND\r\n"


@pytest.mark.parametrize(
    "end", [lambda client: client.send(b"quit\r\n"), MemoryClient.half_close], ids=["quit", "half-close"]
)
def test_connection_ends_after_unread_replies_are_read(end: Callable[[MemoryClient], None]) -> None:
    server = MeteredServer()
    client = server.connect()
    client.reads = False
    client.send(b"version\r\n" * 50_000)
    end(client)
    server.settle()
    assert not client.is_closed
    client.reads = True
    assert client.take() == VERSION * 50_000
    assert client.is_closed


# Clients that send more requests while they wait.


def test_client_that_sends_too_much_behind_a_wait_is_disconnected() -> None:
    server = MeteredServer()
    client, other = server.connect(), server.connect()
    client.send(b"get q/t=60000\r\n" + b"version\r\n" * 200_000)
    assert len(server.codecs[0]) <= Config().max_pipeline_bytes + READ_BYTES
    assert client.take() == b"CLIENT_ERROR too much was sent behind a command that waits\r\n"
    assert client.is_closed
    assert other.ask(b"set q 0 0 1\r\nx\r\nget q\r\n") == b"STORED\r\nVALUE q 0 1\r\nx\r\nEND\r\n"


def test_requests_behind_a_load_are_read_up_to_the_limit() -> None:
    server = MeteredServer(SteppedStorage())
    client = server.connect()
    client.ask(b"set q 0 0 1\r\nx\r\n")
    store = store_of(server, b"q")
    store.page_out()
    assert client.ask(b"get q\r\n" + b"version\r\n" * 100_000) == b""
    assert len(server.codecs[0]) <= MOST_UNPARSED_BYTES
    store.end_fill()
    assert client.take() == b"VALUE q 0 1\r\nx\r\nEND\r\n" + VERSION * 100_000


def test_early_requests_are_held_up_to_a_limit() -> None:
    loaded: Deferred[dict[bytes, object]] = Deferred()

    class LoadingStorage(MemoryStorage):
        def start(self, settings_for: object) -> Deferred[dict[bytes, object]]:  # type: ignore[override]
            return loaded

    server = MeteredServer(LoadingStorage())
    client = server.connect()
    assert client.ask(b"version\r\n" * 100_000) == b""
    assert len(server.codecs[0]) <= MOST_UNPARSED_BYTES
    loaded.callback({})
    assert client.take() == VERSION * 100_000


def test_item_larger_than_the_limit_is_read() -> None:
    server = MeteredServer(max_pipeline_bytes=64 * KIB)
    client = server.connect()
    data = b"x" * (2 * MIB)
    assert client.ask(b"set q 0 0 2097152\r\n" + data + b"\r\nget q\r\n") == (
        b"STORED\r\nVALUE q 0 2097152\r\n" + data + b"\r\nEND\r\n"
    )


@pytest.mark.parametrize(
    ("make_codec", "half"),
    [
        (MemcacheCodec, b"set work 0 0 1000000\r\n"),
        (TextCodec, b"put work:\none\n"),
        (lambda: ThriftCodec(2 * MIB, MIB, 10), MIB.to_bytes(4, "big")),
    ],
    ids=["memcache", "text", "thrift"],
)
def test_partial_request_is_dropped_on_disconnect(make_codec: Callable[[], Codec], half: bytes) -> None:
    codec = make_codec()
    server = MemoryServer(make_codec=lambda: codec)
    client = server.connect()
    assert client.ask(half + b"x" * 500_000) == b""
    assert len(codec) >= 500_000
    client.disconnect()
    server.settle()
    assert len(codec) == 0
    assert server.connect("text").ask(b"version\n") == b":1.2.3\n"


# Ticks and time slices.


def test_ticks_are_bounded_however_many_clients_pipeline() -> None:
    command_s = 20e-6
    server = MeteredServer(command_s=command_s)
    clients = [server.connect() for _ in range(50)]
    for client in clients:
        client.send(b"get q\r\n" * 2000)
    server.most_in_a_tick = 0
    server.settle()
    assert [bytes(client.received) for client in clients] == [b"END\r\n" * 2000] * 50
    # One reactor iteration sees the end of one tick and the start of the next. A tick may overrun by one slice.
    assert server.most_in_a_tick <= 2 * (TICK_BUDGET_S / command_s + MAX_COMMANDS_PER_SLICE)


def test_floods_progress_evenly() -> None:
    server = MeteredServer(command_s=20e-6)
    clients = [server.connect() for _ in range(10)]
    for client in clients:
        client.send(b"version\r\n" * 5000)
    for _ in range(200):
        server.tick()
    made = [codec.commands_made for codec in server.codecs]
    assert 0 < min(made) < 5000, "no flood has finished, and each has made progress"
    assert max(made) - min(made) <= 2 * MAX_COMMANDS_PER_SLICE
