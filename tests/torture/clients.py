"""Clients of the torture run. Each has a thread, a proxy and a random generator, and reports to the tracker."""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Generic, TypeVar

from kestrel.address import Address
from kestrel.client.call import Call
from kestrel.client.connection import BlockingConnection
from kestrel.client.errors import CannotConnect, ConnectionFailed, ServerError
from kestrel.client.thrift import OpenRead, ThriftCalls
from tests.child import PATIENCE_S
from tests.memcache_text import set_
from tests.server.running import Client
from tests.torture.item_tracker import (
    ABORTED,
    CONFIRMED,
    CONFIRMING,
    DENIED,
    OPENED,
    REFUSED,
    STORED,
    UNANSWERED,
    Delivery,
    Item,
    ItemTracker,
)
from tests.torture.proxies import ClientProxy

SIZES: Final = ((0, 40, 400, 4000, 60_000), (10, 50, 30, 9, 1))
"""Maximum sizes of the data after an item's key, and their weights."""
REPLY_TIMEOUT_S: Final = PATIENCE_S
"""Time after which a server that does not reply counts as hanging."""

Events = list[tuple[str, Delivery | None]]
"""Actions of the only consumer of a queue: "got", "back" or "done" with a delivery, or ("unanswered get", None)."""


class ConnectionLost(Exception):
    """The connection could not be made, or it ended before a reply was complete."""


class UnexpectedReply(Exception):
    """A reply that the protocol does not allow here."""


class ErrorReply(bytes):
    """A reply line that reports an error of the server."""


class LineConnection:
    """A connection for the memcache or text protocol. It tells the end of the connection from a reply."""

    def __init__(self, port: int) -> None:
        with self._errors_of_torture():
            self._client = Client(port)
        self._client.socket.settimeout(REPLY_TIMEOUT_S)

    @staticmethod
    @contextmanager
    def _errors_of_torture() -> Iterator[None]:
        """Raise `UnexpectedReply` for a timeout, and `ConnectionLost` for any other error of the socket."""
        try:
            yield
        except TimeoutError as error:
            raise UnexpectedReply(f"no reply for {REPLY_TIMEOUT_S} s") from error
        except OSError as error:
            raise ConnectionLost from error

    def send(self, data: bytes) -> None:
        """Send all of the data."""
        with self._errors_of_torture():
            self._client.send(data)

    def line(self) -> bytes:
        """Return the next line without its line end."""
        with self._errors_of_torture():
            line = self._client.line()
        if not line.endswith(b"\n"):
            raise ConnectionLost
        return line.rstrip(b"\r\n")

    def receive(self, size: int) -> bytes:
        """Return the next `size` bytes."""
        with self._errors_of_torture():
            data = self._client.receive(size)
        if len(data) != size:
            raise ConnectionLost
        return data

    def expect_line(self, *expected: bytes) -> bytes:
        """Return the next line, which must be one of `expected` or an error of the server."""
        line = self.line()
        if line.startswith((b"SERVER_ERROR ", b"-")):
            return ErrorReply(line)
        if line not in expected:
            raise UnexpectedReply(f"{line[:100]!r} instead of one of {expected}")
        return line

    def read_item(self) -> bytes | None:
        """Return the item of a memcache get, None if there is none, or an error of the server."""
        line = self.line()
        if line == b"END":
            return None
        if line.startswith(b"SERVER_ERROR "):
            return ErrorReply(line)
        words = line.split()
        if len(words) != 4 or words[0] != b"VALUE":
            raise UnexpectedReply(f"{line[:100]!r} as the reply to a get")
        data = self.receive(int(words[3]))
        if self.receive(7) != b"\r\nEND\r\n":
            raise UnexpectedReply("no END after an item")
        return data

    def stats(self) -> dict[str, str]:
        """Return the statistics of the server."""
        self.send(b"stats\r\n")
        stats = {}
        while (line := self.line()) != b"END":
            name, _, value = line.decode("latin-1").removeprefix("STAT ").partition(" ")
            stats[name] = value
        return stats

    def close(self) -> None:
        """Disconnect."""
        self._client.close()


AnyConnection = TypeVar("AnyConnection", LineConnection, BlockingConnection)
T = TypeVar("T")


class Worker(ABC, Generic[AnyConnection]):
    """A client that repeats `step` until it is stopped, and reconnects when its connection ends."""

    protocol = "memcache"

    def __init__(self, name: str, proxy: ClientProxy, tracker: ItemTracker, rng: random.Random) -> None:
        self.name, self.proxy, self.tracker, self.rng = name, proxy, tracker, rng
        self.stopping = threading.Event()
        self.open_reads: list[Delivery] = []
        """Open reads of this connection, the oldest first."""
        self.thread = threading.Thread(target=self.run, name=name, daemon=True)

    def run(self) -> None:
        """Repeat `step` until the client is stopped."""
        while not self.stopping.is_set():
            connection = None
            try:
                connection = self.connect()
                self.on_connect(connection)
                while not self.stopping.is_set() and self.step(connection):
                    pass
            except ConnectionLost:
                self.stopping.wait(0.05)
            except UnexpectedReply as error:
                self.tracker.fail("replies", f"{self.name}: {error}")
                self.stopping.wait(0.05)
            except Exception as error:
                self.tracker.fail("replies", f"{self.name}: {type(error).__name__}: {error}")
                self.stopping.wait(0.05)
            # Report it before the connection is closed: another client may then get the items at once.
            self.tracker.connection_lost(self.open_reads)
            self.on_disconnect(self.open_reads)
            self.open_reads = []
            if connection is not None:
                connection.close()

    @abstractmethod
    def connect(self) -> AnyConnection:
        """Return a new connection."""

    @abstractmethod
    def on_connect(self, connection: AnyConnection) -> None:
        """Check that there is a server behind the proxy."""

    def on_disconnect(self, open_reads: list[Delivery]) -> None:
        """Handle the loss of a connection with these open reads."""

    @abstractmethod
    def step(self, connection: AnyConnection) -> bool:
        """Send some requests. Return False to reconnect."""

    def pause(self, max_s: float) -> None:
        """Wait for a random time of at most `max_s`."""
        self.stopping.wait(self.rng.random() * max_s)

    def received(
        self, destination: str, queue: str, data: bytes, requested_s: float, outcome: str, **options: Any
    ) -> Delivery | None:
        """Report a delivery to this client. `options` are those of `ItemTracker.add_delivery`."""
        return self.tracker.add_delivery(
            destination, queue, data, self.name, requested_s, outcome, lambda: self.proxy.last_cut_s, **options
        )


class LineWorker(Worker[LineConnection]):
    """A client of the memcache or text protocol."""

    def connect(self) -> LineConnection:
        return LineConnection(self.proxy.port)

    def on_connect(self, connection: LineConnection) -> None:
        connection.send(b"version\n")
        connection.line()


class ThriftWorker(Worker[BlockingConnection]):
    """A client of the thrift protocol."""

    protocol = "thrift"

    def connect(self) -> BlockingConnection:
        self.calls = ThriftCalls()
        try:
            return BlockingConnection.to(Address("127.0.0.1", self.proxy.port), REPLY_TIMEOUT_S)
        except ConnectionFailed as error:
            raise ConnectionLost from error

    def on_connect(self, connection: BlockingConnection) -> None:
        self.ask(connection, self.calls.version())

    def ask(self, connection: BlockingConnection, call: Call[T]) -> T:
        """Return the result of a call. Raise `ServerError` for an error of the server."""
        try:
            return connection.ask(call)
        except ConnectionFailed as error:
            raise UnexpectedReply(str(error)) if "timed out" in str(error) else ConnectionLost() from error


# Producers.


class Producer(Worker[AnyConnection]):
    """Puts single items or many at a time, some with an expiry or a delay, to queues without too many items."""

    def __init__(
        self,
        name: str,
        proxy: ClientProxy,
        tracker: ItemTracker,
        rng: random.Random,
        targets: dict[str, Sequence[str]],
        atomic: frozenset[str],
        *,
        backlog: int,
    ) -> None:
        super().__init__(name, proxy, tracker, rng)
        self._targets, self._atomic, self._backlog = targets, atomic, backlog

    def new_items(self, max_count: int) -> tuple[str, int, int, list[Item]]:
        """Return a target, the expiry in seconds, the delay in milliseconds, and new items for the target."""
        open_ = [
            name
            for name, destinations in self._targets.items()
            if all(self.tracker.queued[each] < self._backlog for each in destinations)
        ]
        if not open_:
            return "", 0, 0, []
        target = self.rng.choice(open_)
        expiry_s = 0
        if target in ("work", "jobs", "later"):
            expiry_s = self.rng.choices((0, 1, 2, 86_400), (80, 5, 5, 10))[0]
        count = self.rng.randrange(1, max_count + 1)
        delay_ms = 0
        if target == "soon" or (target == "news" and self.rng.random() < 0.2):
            delay_ms = self.rng.choice((1, self.rng.randrange(1, 300), self.rng.randrange(1, 3000)))
        return target, expiry_s, delay_ms, [self._new(target, expiry_s, delay_ms) for _ in range(count)]

    def _new(self, target: str, expiry_s: int, delay_ms: int) -> Item:
        size = self.rng.randrange(self.rng.choices(*SIZES)[0] + 1)
        return self.tracker.new_item(target, self._targets[target], size, expiry_s, self.name, delay_ms)

    def refused(self, items: list[Item]) -> None:
        """Handle the refusal of a put. Unless one queue or record holds the item, some destinations may have it."""
        if items and items[0].target in self._atomic:
            self.tracker.set_put_result(items, REFUSED)
        else:
            self.tracker.counts["refused"] += len(items)


class MemcacheProducer(LineWorker, Producer[LineConnection]):
    """Sends many sets at once."""

    def step(self, connection: LineConnection) -> bool:
        target, expiry_s, delay_ms, items = self.new_items(self.rng.choice((1, 1, 5, 40)))
        key = b"%b/delay=%d" % (target.encode(), delay_ms) if delay_ms else target.encode()
        requests = [set_(key, self.tracker.data(item)).replace(b" 0 0 ", b" 0 %d " % expiry_s, 1) for item in items]
        connection.send(b"".join(requests))
        for item in items:
            if isinstance(connection.expect_line(b"STORED"), ErrorReply):
                self.refused([item])
            else:
                self.tracker.set_put_result([item], STORED)
        self.pause(0.1)
        return self.rng.random() < 0.98


class TextProducer(LineWorker, Producer[LineConnection]):
    """Puts items with the text protocol."""

    protocol = "text"

    def step(self, connection: LineConnection) -> bool:
        target, expiry_s, delay_ms, items = self.new_items(self.rng.choice((1, 1, 10)))
        if items:
            lines = b"".join(self.tracker.data(item) + b"\n" for item in items)
            delay = b" delay=%d" % delay_ms if delay_ms else b""
            connection.send(b"put %b %d%b:\n%b\n" % (target.encode(), expiry_s * 1000, delay, lines))
            line = connection.line()
            if line == b"+%d" % len(items):
                self.tracker.set_put_result(items, STORED)
            elif line == b"+0" or line.startswith(b"-"):
                self.refused(items)
            elif not line.startswith(b"+"):
                raise UnexpectedReply(f"{line[:100]!r} as the reply to a put")
        self.pause(0.1)
        return self.rng.random() < 0.98


class ThriftProducer(ThriftWorker, Producer[BlockingConnection]):
    """Puts lists of items."""

    def step(self, connection: BlockingConnection) -> bool:
        target, expiry_s, delay_ms, items = self.new_items(self.rng.choice((1, 10, 100)))
        if items:
            data = [self.tracker.data(item) for item in items]
            try:
                stored = self.ask(connection, self.calls.put(target.encode(), data, expiry_s * 1000, delay_ms))
            except ServerError:
                self.refused(items)
                return False
            self.tracker.set_put_result(items[:stored], STORED)
            self.refused(items[stored:])
        self.pause(0.2)
        return self.rng.random() < 0.95


# Consumers.


class Consumer(Worker[AnyConnection]):
    """Takes items from the queues of a destination."""

    def __init__(
        self,
        name: str,
        proxy: ClientProxy,
        tracker: ItemTracker,
        rng: random.Random,
        destination: str,
        queues: Sequence[str],
    ) -> None:
        super().__init__(name, proxy, tracker, rng)
        self.destination, self._queues = destination, queues

    def choose_queue(self) -> str:
        """Return a queue to take from."""
        return self.rng.choice(self._queues)


class PlainConsumer(LineWorker, Consumer[LineConnection]):
    """Takes items with plain memcache gets."""

    def step(self, connection: LineConnection) -> bool:
        count, queue, requested_s = self.rng.randrange(1, 10), self.choose_queue(), time.monotonic()
        answered = found = 0
        try:
            connection.send(b"get %b\r\n" % queue.encode() * count)
            for _ in range(count):
                data = connection.read_item()
                answered += 1
                if data is not None and not isinstance(data, ErrorReply):
                    found += 1
                    self.received(self.destination, queue, data, requested_s, CONFIRMED)
        except ConnectionLost:
            self.tracker.add_unanswered_get(self.destination, requested_s, count - answered)
            raise
        self.pause(self.rng.choice((0.0, 0.0, 0.02, 0.02, 0.05, 0.5)) if found else 0.1)
        return self.rng.random() < 0.95


class PlainThriftConsumer(ThriftWorker, Consumer[BlockingConnection]):
    """Takes items with plain thrift gets."""

    def step(self, connection: BlockingConnection) -> bool:
        count, queue, requested_s = self.rng.choice((1, 10, 30)), self.choose_queue(), time.monotonic()
        try:
            reads = self.ask(connection, self.calls.get(queue.encode(), count, self.rng.choice((0, 50)), 0))
        except ServerError:
            return False
        except (ConnectionLost, UnexpectedReply) as error:
            if not isinstance(error.__cause__, CannotConnect):
                self.tracker.add_unanswered_get(self.destination, requested_s, count)
            raise
        for read in reads:
            self.received(self.destination, queue, read.data, requested_s, CONFIRMED, is_removed_after_reply=True)
        self.pause(self.rng.choice((0.02, 0.1, 0.1, 1.0)))
        return self.rng.random() < 0.95


class ReliableConsumer(PlainConsumer):
    """Opens items with memcache gets, and then closes, confirms or aborts them, or disconnects."""

    def step(self, connection: LineConnection) -> bool:
        queue, rng = self.choose_queue(), self.rng
        self.open_some(connection, queue, rng.choice((1, 1, 10, 30)))
        self.pause(0.05 if self.open_reads else 0.1)
        finished = len(self.open_reads) if rng.random() < 0.5 else rng.randrange(len(self.open_reads) + 1)
        self.finish(connection, queue, finished, rng.choice(("close", "close", "confirm")))
        if not self.open_reads:
            self.pause(rng.choice((0.02, 0.1, 0.1, 1.0)))
            return rng.random() < 0.95
        if rng.random() < 0.6:
            self.abort(connection, queue)
            return True
        return False  # disconnect with open reads

    def open_some(self, connection: LineConnection, queue: str, count: int) -> None:
        """Open up to that many items."""
        requested_s = time.monotonic()
        connection.send(b"get %b/open\r\n" % queue.encode() * count)
        for _ in range(count):
            data = connection.read_item()
            if data is not None and not isinstance(data, ErrorReply):
                delivery = self.received(self.destination, queue, data, requested_s, OPENED)
                if delivery is not None:
                    self.open_reads.append(delivery)
                    self.record_event("got", delivery)

    def record_event(self, event: str, delivery: Delivery | None) -> None:
        """Record an event, for checks of the order."""

    def finish(self, connection: LineConnection, queue: str, count: int, how: str) -> None:
        """Confirm the oldest open reads, each with a close or all with a confirm."""
        first = self.open_reads[:count]
        if not first:
            return
        self.tracker.set_outcome(first, CONFIRMING)
        if how == "close":
            connection.send(b"get %b/close\r\n" % queue.encode() * count)
            for delivery in first:
                self._settled(delivery, connection.expect_line(b"END"))
            return
        connection.send(b"confirm %b %d\r\n" % (queue.encode(), count))
        reply = connection.expect_line(b"END", b"ERROR")
        for delivery in first:
            self._settled(delivery, reply)
        if reply != b"END":
            raise ConnectionLost  # it is unknown which reads are still open

    def _settled(self, delivery: Delivery, reply: bytes) -> None:
        self.tracker.set_outcome([delivery], CONFIRMED if reply == b"END" else DENIED)
        self.open_reads.remove(delivery)
        self.record_event("done" if reply == b"END" else "back", delivery)

    def abort(self, connection: LineConnection, queue: str) -> None:
        """Abort all open reads, one by one."""
        aborted = self.open_reads[:]
        self.tracker.set_outcome(aborted, ABORTED)
        connection.send(b"get %b/abort\r\n" % queue.encode() * len(aborted))
        for delivery in aborted:
            connection.expect_line(b"END")
            self.open_reads.remove(delivery)
            self.record_event("back", delivery)


class TextConsumer(PlainConsumer):
    """Opens one item at a time with the text protocol, and confirms it with a confirm or the next get."""

    protocol = "text"

    def step(self, connection: LineConnection) -> bool:
        queue, rng, requested_s = self.choose_queue(), self.rng, time.monotonic()
        before = self.open_reads[:]
        if before and rng.random() < 0.3:
            self.tracker.set_outcome(before, CONFIRMING)
            connection.send(b"confirm %b 1\n" % queue.encode())
            reply = connection.expect_line(b"+1")
            self.tracker.set_outcome(before, DENIED if isinstance(reply, ErrorReply) else CONFIRMED)
            self.open_reads = []
            return not isinstance(reply, ErrorReply)
        if rng.random() < 0.05:
            return False
        self.tracker.set_outcome(before, CONFIRMING)
        connection.send(b"get %b %d\n" % (queue.encode(), rng.choice((0, 50))))
        line = connection.line()
        if line.startswith(b"-"):
            self.tracker.set_outcome(before, UNANSWERED)
            self.open_reads = []
            return False
        if line != b"*" and not line.startswith(b":"):
            raise UnexpectedReply(f"{line[:100]!r} as the reply to a get")
        self.tracker.set_outcome(before, CONFIRMED)
        self.open_reads = []
        if line == b"*":
            self.pause(0.1)
        else:
            delivery = self.received(self.destination, queue, line[1:], requested_s, OPENED)
            if delivery is not None:
                self.open_reads.append(delivery)
        self.pause(0.02)
        return True


class HoldingConsumer(ThriftWorker, Consumer[BlockingConnection]):
    """Opens items by id with a timeout; confirms some, aborts some, and lets the others time out."""

    def step(self, connection: BlockingConnection) -> bool:
        queue, rng, requested_s = self.choose_queue(), self.rng, time.monotonic()
        timeout_s = rng.choice((0.2, 0.5, 1.5))
        try:
            call = self.calls.get(queue.encode(), rng.choice((1, 10, 60)), rng.choice((0, 50)), round(timeout_s * 1000))
            reads = self.ask(connection, call)
            pairs = [(self._opened(queue, read, requested_s, timeout_s), read.id) for read in reads]
            known = [(delivery, number) for delivery, number in pairs if delivery is not None]
            self.pause(rng.choice((0.02, 0.1, 0.1, 1.0)))
            first, second = sorted(rng.choice((rng.randrange(len(known) + 1), len(known))) for _ in range(2))
            self._confirm(connection, queue, known[:first])
            aborted = known[first:second]
            self.tracker.set_outcome([delivery for delivery, _ in aborted], ABORTED)
            self.ask(connection, self.calls.abort(queue.encode(), [number for _, number in aborted]))
        except ServerError:
            return False
        if not reads:
            self.pause(0.1)
        return rng.random() < 0.95

    def _opened(self, queue: str, read: OpenRead, requested_s: float, timeout_s: float) -> Delivery | None:
        return self.received(
            self.destination, queue, read.data, requested_s, OPENED, timeout_s=timeout_s, read_id=read.id
        )

    def _confirm(self, connection: BlockingConnection, queue: str, known: list[tuple[Delivery, int]]) -> None:
        deliveries = [delivery for delivery, _ in known]
        self.tracker.set_outcome(deliveries, CONFIRMING)
        try:
            count = self.ask(connection, self.calls.confirm(queue.encode(), [number for _, number in known]))
        except ServerError:
            self.tracker.set_outcome(deliveries, DENIED)
            raise
        except (ConnectionLost, UnexpectedReply):
            self.tracker.set_outcome(deliveries, UNANSWERED)
            raise
        # A smaller count does not tell which reads had timed out.
        self.tracker.set_outcome(deliveries, CONFIRMED if count == len(deliveries) else UNANSWERED if count else DENIED)


class OrderedConsumer(ReliableConsumer):
    """The only consumer of its queue, which lists its actions in `events`, in order."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.events: Events = []

    def on_connect(self, connection: LineConnection) -> None:
        name = f"queue_{self.destination}_open_transactions"
        while connection.stats().get(name, "0") != "0":  # the server has not noticed the last disconnect yet
            self.stopping.wait(0.005)

    def record_event(self, event: str, delivery: Delivery | None) -> None:
        self.events.append((event, delivery))

    def on_disconnect(self, open_reads: list[Delivery]) -> None:
        for delivery in open_reads:
            self.record_event("done" if delivery.outcome == UNANSWERED else "back", delivery)

    def step(self, connection: LineConnection) -> bool:
        rng, queue = self.rng, self.destination
        action = rng.choice(("plain", "close", "close", "abort", "disconnect"))
        if action == "plain":
            requested_s = time.monotonic()
            try:
                connection.send(b"get %b\r\n" % queue.encode())
                data = connection.read_item()
            except ConnectionLost:
                self.tracker.add_unanswered_get(queue, requested_s, 1)
                self.record_event("unanswered get", None)
                raise
            if data is not None and not isinstance(data, ErrorReply):
                delivery = self.received(queue, queue, data, requested_s, CONFIRMED)
                self.record_event("got", delivery)
                self.record_event("done", delivery)
            return True
        self.open_some(connection, queue, 1 if action == "abort" else rng.randrange(1, 40))
        if not self.open_reads:
            self.pause(0.1)
            return True
        if action == "abort":
            self.abort(connection, queue)
            return True
        count = len(self.open_reads) if action == "close" else rng.randrange(len(self.open_reads) + 1)
        self.finish(connection, queue, count, rng.choice(("close", "confirm")))
        self.pause(rng.choice((0.0, 0.02, 0.1, 0.5)))
        return action != "disconnect"


def out_of_order(tracker: ItemTracker, events: Events, target: str) -> list[str]:
    """Return the histories of items that the only consumer of a queue received before an earlier item.

    Acknowledged items are in the order of their puts. Open reads return to the head in that order when they are aborted
    or the server ends. Only a plain get without a reply may have taken the head.
    """
    line = [item for item in tracker.put_order[target] if item.state == STORED]
    destinations = {item: number for number, item in enumerate(line)}
    gone = [False] * len(line)
    open_reads: set[int] = set()
    front = unanswered_gets = 0
    failures = []
    for event, delivery in events:
        if event == "unanswered get":
            unanswered_gets += 1
            continue
        if delivery is None or delivery.item not in destinations:
            continue
        number = destinations[delivery.item]
        if event == "back":
            open_reads.discard(number)
        elif event == "done":
            open_reads.discard(number)
            gone[number] = True
        else:
            if number in open_reads:
                open_reads.clear()  # the queue failed, and all open reads are back
            while front < number and gone[front]:
                front += 1
            skipped = [each for each in range(front, number) if not gone[each] and each not in open_reads]
            if len(skipped) > unanswered_gets:
                histories = tracker.history(delivery.item), tracker.history(line[skipped[0]])
                failures.append("delivered before the second of these:\n" + "\n".join(histories))
            for each in skipped:
                gone[each] = True
            unanswered_gets = 0
            if gone[number]:
                front = min(front, number)
                gone[number] = False
            open_reads.add(number)
    return failures
