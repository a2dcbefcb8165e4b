"""The clients of the torture: each a thread with dice and a cable of its own, which tells the books what it sees."""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

from kestrel.address import Address
from kestrel.client.connection import BlockingConnection
from kestrel.client.errors import CannotConnect, ClientFailure, ConnectionFailed, ServerError
from kestrel.client.thrift import ThriftCalls
from tests.child import PATIENCE_S
from tests.server.running import Client, set_request
from tests.torture.accounts import (
    ABORTED,
    CONFIRMED,
    CONFIRMING,
    DENIED,
    DOUBTFUL,
    HELD,
    REFUSED,
    STORED,
    Books,
    Delivery,
    Item,
)
from tests.torture.cables import Cable

SIZES: Final = ((0, 40, 400, 4000, 60_000), (10, 50, 30, 9, 1))
"""Of the data behind an item's key, at most, and how often."""
SILENCE_S: Final = PATIENCE_S
"""A server that does not answer for so long hangs."""

Events = list[tuple[str, Delivery | None]]
"""What the one consumer of a queue did, in order: ("got", "back" or "done", of what), ("lost get", None)."""


class Gone(Exception):
    """The connection ended in the midst of something, or there is none."""


class Surprise(Exception):
    """An answer that nobody should get."""


class No(bytes):
    """A line in which the server says that it will not or cannot."""


class Wire:
    """A connection for memcache or text, with its end told from an answer."""

    def __init__(self, port: int) -> None:
        try:
            self._client = Client(port)
        except OSError as error:
            raise Gone from error
        self._client.socket.settimeout(SILENCE_S)

    def send(self, data: bytes) -> None:
        """All of it."""
        try:
            self._client.send(data)
        except OSError as error:
            raise self._gone(error) from error

    @staticmethod
    def _gone(error: OSError) -> Exception:
        return Surprise(f"no answer for {SILENCE_S} s") if isinstance(error, TimeoutError) else Gone()

    def line(self) -> bytes:
        """The next line without its end."""
        try:
            line = self._client.line()
        except OSError as error:
            raise self._gone(error) from error
        if not line.endswith(b"\n"):
            raise Gone
        return line.rstrip(b"\r\n")

    def receive(self, size: int) -> bytes:
        """So many bytes."""
        try:
            data = self._client.receive(size)
        except OSError as error:
            raise self._gone(error) from error
        if len(data) != size:
            raise Gone
        return data

    def word(self, *expected: bytes) -> bytes:
        """The next line, one of these, or a `No`."""
        line = self.line()
        if line.startswith((b"SERVER_ERROR ", b"-")):
            return No(line)
        if line not in expected:
            raise Surprise(f"{line[:100]!r} where one of {expected} was to come")
        return line

    def item(self) -> bytes | None:
        """The item of a memcache get, or None; or a `No`."""
        line = self.line()
        if line == b"END":
            return None
        if line.startswith(b"SERVER_ERROR "):
            return No(line)
        words = line.split()
        if len(words) != 4 or words[0] != b"VALUE":
            raise Surprise(f"{line[:100]!r} as the answer to a get")
        data = self.receive(int(words[3]))
        if self.receive(7) != b"\r\nEND\r\n":
            raise Surprise("no END behind an item")
        return data

    def stats(self) -> dict[str, str]:
        """What `stats` says."""
        self.send(b"stats\r\n")
        stats = {}
        while (line := self.line()) != b"END":
            name, _, value = line.decode("latin-1").removeprefix("STAT ").partition(" ")
            stats[name] = value
        return stats

    def close(self) -> None:
        """Hang up."""
        self._client.close()


class Worker(ABC):
    """A client. `step` is what it does again and again until `is_over`; a lost connection is made anew."""

    protocol = "memcache"

    def __init__(self, name: str, cable: Cable, books: Books, dice: random.Random) -> None:
        self.name, self.cable, self.books, self.dice = name, cable, books, dice
        self.is_over = threading.Event()
        self.held: list[Delivery] = []
        """What this connection has open, the oldest first."""
        self.thread = threading.Thread(target=self.run, name=name, daemon=True)

    def run(self) -> None:
        """Work to the end."""
        while not self.is_over.is_set():
            connection = None
            try:
                connection = self.connect()
                self.begin(connection)
                while not self.is_over.is_set() and self.step(connection):
                    pass
            except Gone:
                self.is_over.wait(0.05)
            except Surprise as surprise:
                self.books.fails("answers", f"{self.name}: {surprise}")
                self.is_over.wait(0.05)
            except Exception as error:
                self.books.fails("answers", f"{self.name}: {type(error).__name__}: {error}")
                self.is_over.wait(0.05)
            self.books.connection_lost(self.held)  # before the end of the connection, or somebody might be quicker
            self.left(self.held)
            self.held = []
            if connection is not None:
                connection.close()

    def connect(self) -> Wire | BlockingConnection:
        """A new connection."""
        return Wire(self.cable.port)

    def begin(self, connection: Wire | BlockingConnection) -> None:
        """What comes first on a new connection: is there a server behind the cable?"""
        assert isinstance(connection, Wire)
        connection.send(b"version\n")
        connection.line()

    def left(self, held: list[Delivery]) -> None:  # noqa: B027
        """These were open when the connection ended."""

    @abstractmethod
    def step(self, connection: Wire | BlockingConnection) -> bool:
        """False when it wants a new connection."""

    def pause(self, most_s: float) -> None:
        """A moment."""
        self.is_over.wait(self.dice.random() * most_s)

    def took(
        self,
        place: str,
        where: str,
        data: bytes,
        asked_s: float,
        fate: str,
        *,
        hold_s: float = 0.0,
        read_id: int = 0,
        is_removed_later: bool = False,
    ) -> Delivery | None:
        """It was given an item."""
        return self.books.delivered(
            place,
            where,
            data,
            self.name,
            asked_s,
            fate,
            lambda: self.cable.cut_s,
            hold_s=hold_s,
            read_id=read_id,
            is_removed_later=is_removed_later,
        )


class ThriftWorker(Worker):
    """One that speaks thrift."""

    protocol = "thrift"

    def connect(self) -> BlockingConnection:
        self.calls = ThriftCalls()
        try:
            return BlockingConnection.to(Address("127.0.0.1", self.cable.port), SILENCE_S)
        except ConnectionFailed as error:
            raise Gone from error

    def begin(self, connection: Wire | BlockingConnection) -> None:
        assert isinstance(connection, BlockingConnection)
        try:
            connection.ask(self.calls.version())
        except ConnectionFailed as error:
            raise _gone(error) from error


# Who puts.


class Producer(Worker):
    """Puts items to queues, some with an expiry, one by one or many at a time."""

    def __init__(
        self,
        name: str,
        cable: Cable,
        books: Books,
        dice: random.Random,
        targets: dict[str, Sequence[str]],
        strict: frozenset[str],
        *,
        backlog: int,
    ) -> None:
        super().__init__(name, cable, books, dice)
        self._targets, self._strict, self._backlog = targets, strict, backlog

    def some(self, most: int) -> tuple[str, int, list[Item]]:
        """The next items: the target, their expiry in s, and they."""
        open_ = [
            name
            for name, places in self._targets.items()
            if all(self.books.waiting[each] < self._backlog for each in places)
        ]
        if not open_:
            return "", 0, []
        target = self.dice.choice(open_)
        expiry_s = 0
        if target in ("work", "jobs", "later"):
            expiry_s = self.dice.choices((0, 1, 2, 86_400), (80, 5, 5, 10))[0]
        count = self.dice.randrange(1, most + 1)
        return target, expiry_s, [self._new(target, expiry_s) for _ in range(count)]

    def _new(self, target: str, expiry_s: int) -> Item:
        size = self.dice.randrange(self.dice.choices(*SIZES)[0] + 1)
        return self.books.new(target, self._targets[target], size, expiry_s, self.name)

    def no(self, items: list[Item]) -> None:
        """The server said no. Where one queue has it, none has; else some may."""
        if items and items[0].target in self._strict:
            self.books.answered(items, REFUSED)
        else:
            self.books.counts["refused"] += len(items)


class MemcacheProducer(Producer):
    """Many sets in one go, each with its answer."""

    def step(self, connection: Wire | BlockingConnection) -> bool:
        assert isinstance(connection, Wire)
        target, expiry_s, items = self.some(self.dice.choice((1, 1, 5, 40)))
        requests = [
            set_request(target.encode(), self.books.data(item)).replace(b" 0 0 ", b" 0 %d " % expiry_s, 1)
            for item in items
        ]
        connection.send(b"".join(requests))
        for item in items:
            if isinstance(connection.word(b"STORED"), No):
                self.no([item])
            else:
                self.books.answered([item], STORED)
        self.pause(0.1)
        return self.dice.random() < 0.98


class TextProducer(Producer):
    """Lines."""

    protocol = "text"

    def step(self, connection: Wire | BlockingConnection) -> bool:
        assert isinstance(connection, Wire)
        target, expiry_s, items = self.some(self.dice.choice((1, 1, 10)))
        if items:
            lines = b"".join(self.books.data(item) + b"\n" for item in items)
            connection.send(b"put %b %d:\n%b\n" % (target.encode(), expiry_s * 1000, lines))
            line = connection.line()
            if line == b"+%d" % len(items):
                self.books.answered(items, STORED)
            elif line == b"+0" or line.startswith(b"-"):
                self.no(items)
            elif not line.startswith(b"+"):
                raise Surprise(f"{line[:100]!r} as the answer to a put")
        self.pause(0.1)
        return self.dice.random() < 0.98


class ThriftProducer(ThriftWorker, Producer):
    """Lists."""

    def step(self, connection: Wire | BlockingConnection) -> bool:
        assert isinstance(connection, BlockingConnection)
        target, expiry_s, items = self.some(self.dice.choice((1, 10, 100)))
        if items:
            data = [self.books.data(item) for item in items]
            try:
                stored = connection.ask(self.calls.put(target.encode(), data, expiry_s * 1000))
            except ServerError:
                self.no(items)
                return False
            except ConnectionFailed as error:
                raise _gone(error) from error
            self.books.answered(items[:stored], STORED)
            self.no(items[stored:])
        self.pause(0.2)
        return self.dice.random() < 0.95


def _gone(error: ClientFailure) -> Exception:
    return Surprise(str(error)) if "timed out" in str(error) else Gone()


# Who takes.


class PlainConsumer(Worker):
    """Takes for good, by memcache. `where` are queues of that place."""

    def __init__(
        self, name: str, cable: Cable, books: Books, dice: random.Random, place: str, where: Sequence[str]
    ) -> None:
        super().__init__(name, cable, books, dice)
        self.place, self._where = place, where

    def where(self) -> str:
        """The queue to take from, now."""
        return self.dice.choice(self._where)

    def step(self, connection: Wire | BlockingConnection) -> bool:
        assert isinstance(connection, Wire)
        count, where, asked_s = self.dice.randrange(1, 10), self.where(), time.monotonic()
        answered = found = 0
        try:
            connection.send(b"get %b\r\n" % where.encode() * count)
            for _ in range(count):
                data = connection.item()
                answered += 1
                if data is not None and not isinstance(data, No):
                    found += 1
                    self.took(self.place, where, data, asked_s, CONFIRMED)
        except Gone:
            self.books.lost_get(self.place, asked_s, count - answered)
            raise
        self.pause(self.dice.choice((0.0, 0.0, 0.02, 0.02, 0.05, 0.5)) if found else 0.1)
        return self.dice.random() < 0.95


class PlainThriftConsumer(ThriftWorker, PlainConsumer):
    """The same by thrift."""

    def step(self, connection: Wire | BlockingConnection) -> bool:
        assert isinstance(connection, BlockingConnection)
        count, where, asked_s = self.dice.choice((1, 10, 30)), self.where(), time.monotonic()
        try:
            reads = connection.ask(self.calls.get(where.encode(), count, self.dice.choice((0, 50)), 0))
        except ServerError:
            return False
        except CannotConnect as error:
            raise _gone(error) from error
        except ConnectionFailed as error:
            self.books.lost_get(self.place, asked_s, count)
            raise _gone(error) from error
        for read in reads:
            self.took(self.place, where, read.data, asked_s, CONFIRMED, is_removed_later=True)
        self.pause(self.dice.choice((0.02, 0.1, 0.1, 1.0)))
        return self.dice.random() < 0.95


class ReliableConsumer(PlainConsumer):
    """Opens items by memcache; closes them, confirms them, gives them back, or hangs up."""

    def step(self, connection: Wire | BlockingConnection) -> bool:
        assert isinstance(connection, Wire)
        where, dice = self.where(), self.dice
        self.open_some(connection, where, dice.choice((1, 1, 10, 30)))
        self.pause(0.05 if self.held else 0.1)
        finished = len(self.held) if dice.random() < 0.5 else dice.randrange(len(self.held) + 1)
        self.finish(connection, where, finished, dice.choice(("close", "close", "confirm")))
        if not self.held:
            self.pause(dice.choice((0.02, 0.1, 0.1, 1.0)))
            return dice.random() < 0.95
        if dice.random() < 0.6:
            self.abort(connection, where)
            return True
        return False  # hangs up while they are open

    def open_some(self, connection: Wire, where: str, count: int) -> None:
        """Take some."""
        asked_s = time.monotonic()
        connection.send(b"get %b/open\r\n" % where.encode() * count)
        for _ in range(count):
            data = connection.item()
            if data is not None and not isinstance(data, No):
                delivery = self.took(self.place, where, data, asked_s, HELD)
                if delivery is not None:
                    self.held.append(delivery)
                    self.saw("got", delivery)

    def saw(self, event: str, delivery: Delivery | None) -> None:
        """For those who note the order."""

    def finish(self, connection: Wire, where: str, count: int, how: str) -> None:
        """The oldest are done."""
        first = self.held[:count]
        if not first:
            return
        self.books.settle(first, CONFIRMING)
        if how == "close":
            connection.send(b"get %b/close\r\n" % where.encode() * count)
            for delivery in first:
                self._settled(delivery, connection.word(b"END"))
            return
        connection.send(b"confirm %b %d\r\n" % (where.encode(), count))
        answer = connection.word(b"END", b"ERROR")
        for delivery in first:
            self._settled(delivery, answer)
        if answer != b"END":
            raise Gone  # which reads are still ours nobody knows

    def _settled(self, delivery: Delivery, answer: bytes) -> None:
        self.books.settle([delivery], CONFIRMED if answer == b"END" else DENIED)
        self.held.remove(delivery)
        self.saw("done" if answer == b"END" else "back", delivery)

    def abort(self, connection: Wire, where: str) -> None:
        """Give all back, one by one."""
        given = self.held
        self.books.settle(given, ABORTED)
        connection.send(b"get %b/abort\r\n" % where.encode() * len(given))
        for delivery in given[:]:
            connection.word(b"END")
            self.held.remove(delivery)
            self.saw("back", delivery)


class TextConsumer(PlainConsumer):
    """Opens one at a time by text, and says with the next get that it is done."""

    protocol = "text"

    def step(self, connection: Wire | BlockingConnection) -> bool:
        assert isinstance(connection, Wire)
        where, dice, asked_s = self.where(), self.dice, time.monotonic()
        before = self.held[:]
        if before and dice.random() < 0.3:
            self.books.settle(before, CONFIRMING)
            connection.send(b"confirm %b 1\n" % where.encode())
            answer = connection.word(b"+1")
            self.books.settle(before, DENIED if isinstance(answer, No) else CONFIRMED)
            self.held = []
            return not isinstance(answer, No)
        if dice.random() < 0.05:
            return False
        self.books.settle(before, CONFIRMING)
        connection.send(b"get %b %d\n" % (where.encode(), dice.choice((0, 50))))
        line = connection.line()
        if line.startswith(b"-"):
            self.books.settle(before, DOUBTFUL)
            self.held = []
            return False
        if line != b"*" and not line.startswith(b":"):
            raise Surprise(f"{line[:100]!r} as the answer to a get")
        self.books.settle(before, CONFIRMED)
        self.held = []
        if line == b"*":
            self.pause(0.1)
        else:
            delivery = self.took(self.place, where, line[1:], asked_s, HELD)
            if delivery is not None:
                self.held.append(delivery)
        self.pause(0.02)
        return True


class HoldingConsumer(ThriftWorker, PlainConsumer):
    """Takes by number, for a time; confirms some, gives some back, forgets the rest."""

    def step(self, connection: Wire | BlockingConnection) -> bool:
        assert isinstance(connection, BlockingConnection)
        where, dice, asked_s = self.where(), self.dice, time.monotonic()
        hold_s = dice.choice((0.2, 0.5, 1.5))
        try:
            call = self.calls.get(where.encode(), dice.choice((1, 10, 60)), dice.choice((0, 50)), round(hold_s * 1000))
            reads = connection.ask(call)
            pairs = [
                (self.took(self.place, where, read.data, asked_s, HELD, hold_s=hold_s, read_id=read.id), read.id)
                for read in reads
            ]
            known = [(delivery, number) for delivery, number in pairs if delivery is not None]
            self.pause(dice.choice((0.02, 0.1, 0.1, 1.0)))
            first, second = sorted(dice.choice((dice.randrange(len(known) + 1), len(known))) for _ in range(2))
            self._confirm(connection, where, known[:first])
            given = known[first:second]
            self.books.settle([delivery for delivery, _ in given], ABORTED)
            connection.ask(self.calls.abort(where.encode(), [number for _, number in given]))
        except ServerError:
            return False
        except ConnectionFailed as error:
            raise _gone(error) from error
        if not reads:
            self.pause(0.1)
        return dice.random() < 0.95

    def _confirm(self, connection: BlockingConnection, where: str, known: list[tuple[Delivery, int]]) -> None:
        deliveries = [delivery for delivery, _ in known]
        self.books.settle(deliveries, CONFIRMING)
        try:
            count = connection.ask(self.calls.confirm(where.encode(), [number for _, number in known]))
        except ServerError:
            self.books.settle(deliveries, DENIED)
            raise
        except ConnectionFailed:
            self.books.settle(deliveries, DOUBTFUL)
            raise
        # Fewer: some had come back, and who knows which.
        self.books.settle(deliveries, CONFIRMED if count == len(deliveries) else DOUBTFUL if count else DENIED)


class OrderedConsumer(ReliableConsumer):
    """The only one of its queue. What it did stands in `events`, in order."""

    def __init__(
        self, name: str, cable: Cable, books: Books, dice: random.Random, place: str, where: Sequence[str]
    ) -> None:
        super().__init__(name, cable, books, dice, place, where)
        self.events: Events = []

    def begin(self, connection: Wire | BlockingConnection) -> None:
        assert isinstance(connection, Wire)
        name = f"queue_{self.place}_open_transactions"
        while connection.stats().get(name, "0") != "0":  # the server has not heard of our last hang-up
            self.is_over.wait(0.005)

    def saw(self, event: str, delivery: Delivery | None) -> None:
        self.events.append((event, delivery))

    def left(self, held: list[Delivery]) -> None:
        for delivery in held:
            self.saw("done" if delivery.fate == DOUBTFUL else "back", delivery)

    def step(self, connection: Wire | BlockingConnection) -> bool:
        assert isinstance(connection, Wire)
        dice, where = self.dice, self.place
        what = dice.choice(("plain", "close", "close", "abort", "hang up"))
        if what == "plain":
            asked_s = time.monotonic()
            try:
                connection.send(b"get %b\r\n" % where.encode())
                data = connection.item()
            except Gone:
                self.books.lost_get(where, asked_s, 1)
                self.saw("lost get", None)
                raise
            if data is not None and not isinstance(data, No):
                delivery = self.took(where, where, data, asked_s, CONFIRMED)
                self.saw("got", delivery)
                self.saw("done", delivery)
            return True
        self.open_some(connection, where, 1 if what == "abort" else dice.randrange(1, 40))
        if not self.held:
            self.pause(0.1)
            return True
        if what == "abort":
            self.abort(connection, where)
            return True
        count = len(self.held) if what == "close" else dice.randrange(len(self.held) + 1)
        self.finish(connection, where, count, dice.choice(("close", "confirm")))
        self.pause(dice.choice((0.0, 0.02, 0.1, 0.5)))
        return what != "hang up"


def out_of_order(books: Books, events: Events, target: str) -> list[str]:
    """The stories of what the one consumer of a queue was given before something that stood in front of it.

    What was acknowledged stands in the order in which it was put; what is open when it is given back, or when the
    server ends, is at the head in that order. Only an answer to a plain get that was lost may have taken the head.
    """
    line = [item for item in books.order[target] if item.state == STORED]
    places = {item: number for number, item in enumerate(line)}
    gone = [False] * len(line)
    held: set[int] = set()
    front = lost_gets = 0
    wrong = []
    for event, delivery in events:
        if event == "lost get":
            lost_gets += 1
            continue
        if delivery is None or delivery.item not in places:
            continue
        number = places[delivery.item]
        if event == "back":
            held.discard(number)
        elif event == "done":
            held.discard(number)
            gone[number] = True
        else:
            if number in held:
                held.clear()  # the queue had died: all of them are back
            while front < number and gone[front]:
                front += 1
            skipped = [each for each in range(front, number) if not gone[each] and each not in held]
            if len(skipped) > lost_gets:
                stories = books.story(delivery.item), books.story(line[skipped[0]])
                wrong.append("came before the second of these:\n" + "\n".join(stories))
            for each in skipped:
                gone[each] = True
            lost_gets = 0
            if gone[number]:
                front = min(front, number)
                gone[number] = False
            held.add(number)
    return wrong
