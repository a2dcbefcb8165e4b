"""Equal requests through memcache, text and thrift leave the queues in an equal state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kestrel.config.load import loads
from kestrel.testing.server import MemoryClient, MemoryServer
from tests import config_tables, memcache_text
from tests.sample import examples
from tests.session.thrift_calls import LONG_MS, ThriftClient, data_of, ids_of

MOST_OPEN: Final = 3

CONFIG: Final = "\n".join(
    [
        f"maxOpenTransactions = {MOST_OPEN}",
        config_tables.queue("small", "maxItems = 3"),
        config_tables.queue("fresh", "maxSize = 12", "discardOldWhenFull = true"),
        config_tables.alias("all", "work", "other"),
    ]
)

QUEUES: Final = [b"work", b"work+copy", b"small", b"fresh", b"other"]
NAMES: Final = [*QUEUES, b"all"]
SPEAKERS: Final = 2

FIGURES: Final = ("items", "bytes", "total_items", "discarded", "open_transactions", "canceled_transactions", "waiters")
"""Figures that must be equal for all protocols. The number of opened reads is not: every get of text opens one."""


class LineSpeaker(ABC):
    """Common parts of memcache and text: open reads belong to a connection and are confirmed by count."""

    protocol: str
    refusal: bytes

    def __init__(self, server: MemoryServer) -> None:
        self.server = server
        self.client: MemoryClient = server.connect(self.protocol)
        self.holds = dict.fromkeys(NAMES, 0)

    def opened(self, queue: bytes) -> list[bytes]:
        found = self.items_in(self.client.take(), queue)
        self.holds[queue] += len(found)
        return found

    @abstractmethod
    def items_in(self, reply: bytes, queue: bytes) -> list[bytes]:
        """Return the items of a reply and check its form."""

    @abstractmethod
    def confirm(self, queue: bytes, count: int) -> bytes:
        """Confirm and return the reply."""

    def finish(self, queue: bytes, most: int) -> int:
        count = min(most, self.holds[queue])
        if count:
            assert self.confirm(queue, count) != self.refusal
            self.holds[queue] -= count
        return count

    def confirm_deleted(self, queue: bytes) -> int:
        count, self.holds[queue] = self.holds[queue], 0
        if count:
            assert self.confirm(queue, count) == self.refusal
        return 0

    def leave(self) -> None:
        self.client.disconnect()
        self.server.settle()


class MemcacheSpeaker(LineSpeaker):
    """A client that speaks memcache."""

    protocol = "memcache"
    refusal = b"ERROR\r\n"

    def put(self, queue: bytes, items: list[bytes]) -> int:
        reply = self.client.ask(b"".join(memcache_text.set_(queue, item) for item in items))
        words = reply.split(b"\r\n")[:-1]
        assert len(words) == len(items)
        assert set(words) <= {b"STORED", b"NOT_STORED"}
        return words.count(b"STORED")

    def take(self, queue: bytes) -> list[bytes]:
        self.finish(queue, MOST_OPEN)
        return self.items_in(self.client.ask(b"get %b\r\n" % queue), queue)

    def open(self, queue: bytes) -> list[bytes]:
        self.finish(queue, max(0, self.holds[queue] - 1))
        self.holds[queue] = 0
        self.client.send(b"get %b/close/open\r\n" % queue)
        return self.opened(queue)

    def begin_open(self, queue: bytes) -> None:
        self.finish(queue, MOST_OPEN)
        self.client.send(b"get %b/t=1000/open\r\n" % queue)

    def begin_open_many(self, queue: bytes) -> None:
        self.finish(queue, MOST_OPEN)
        self.client.send(b"monitor %b 1\r\n" % queue)

    def items_in(self, reply: bytes, queue: bytes) -> list[bytes]:
        # The reply to a get ends with END. In a monitor's reply END follows each item and ends the reply.
        found = []
        while reply.startswith(b"VALUE"):
            head, _, rest = reply.partition(b"\r\n")
            _, key, _, size = head.split()
            assert key.partition(b"/")[0] == queue
            found.append(rest[: int(size)])
            block = memcache_text.value(key, found[-1])
            assert reply.startswith(block)
            reply = reply[len(block) :]
        assert reply == memcache_text.END or (found and not reply)
        return found

    def confirm(self, queue: bytes, count: int) -> bytes:
        return self.client.ask(b"confirm %b %d\r\n" % (queue, count))

    def peek(self, queue: bytes) -> list[bytes]:
        self.finish(queue, MOST_OPEN)
        return self.items_in(self.client.ask(b"get %b/peek\r\n" % queue), queue)

    def flush(self, queue: bytes) -> None:
        assert self.client.ask(b"flush %b\r\n" % queue) == memcache_text.END

    def delete(self, queue: bytes) -> None:
        assert self.client.ask(b"delete %b\r\n" % queue) == b"DELETED\r\n"


class TextSpeaker(LineSpeaker):
    """A client that speaks text."""

    protocol = "text"
    refusal = b"-Not that many transactions open.\n"

    def put(self, queue: bytes, items: list[bytes]) -> int:
        reply = self.client.ask(b"put %b:\n%b\n" % (queue, b"".join(item + b"\n" for item in items)))
        assert reply[:1] == b"+"
        return int(reply)

    def take(self, queue: bytes) -> list[bytes]:
        found = self.open(queue)
        self.finish(queue, MOST_OPEN)
        return found

    def open(self, queue: bytes) -> list[bytes]:
        self.holds[queue] = 0
        self.client.send(b"get %b\n" % queue)
        return self.opened(queue)

    def begin_open(self, queue: bytes) -> None:
        self.holds[queue] = 0
        self.client.send(b"get %b 1000\n" % queue)

    def begin_open_many(self, queue: bytes) -> None:
        self.holds[queue] = 0
        self.client.send(b"monitor %b 1000\n" % queue)

    def items_in(self, reply: bytes, queue: bytes) -> list[bytes]:
        *lines, end = reply.split(b"\n")
        assert not end
        found = [line[1:] for line in lines if line != b"*"]
        assert all(line[:1] == b":" for line in lines[: len(found)])
        assert lines[len(found) :] in ([], [b"*"])
        return found

    def confirm(self, queue: bytes, count: int) -> bytes:
        return self.client.ask(b"confirm %b %d\n" % (queue, count))

    def peek(self, queue: bytes) -> list[bytes]:
        self.holds[queue] = 0
        return self.items_in(self.client.ask(b"peek %b\n" % queue), queue)

    def flush(self, queue: bytes) -> None:
        assert self.client.ask(b"flush %b\n" % queue) == b"+0\n"

    def delete(self, queue: bytes) -> None:
        assert self.client.ask(b"delete %b\n" % queue) == b"+0\n"


class ThriftSpeaker:
    """A client that speaks thrift.

    Its open reads would outlive the connection, so `leave` aborts them.
    """

    def __init__(self, server: MemoryServer) -> None:
        self.server = server
        self.client = ThriftClient(server)
        self.ids: dict[bytes, list[int]] = {name: [] for name in NAMES}

    def put(self, queue: bytes, items: list[bytes]) -> int:
        return self.client.put(queue, *items)

    def take(self, queue: bytes) -> list[bytes]:
        self.finish(queue, MOST_OPEN)
        return self.client.items(queue, 1)

    def open(self, queue: bytes) -> list[bytes]:
        self.finish(queue, MOST_OPEN)
        self.client.send_get(queue, 1, 0, LONG_MS)
        return self.opened(queue)

    def begin_open(self, queue: bytes) -> None:
        self.finish(queue, MOST_OPEN)
        self.client.send_get(queue, 1, 1000, LONG_MS)

    def begin_open_many(self, queue: bytes) -> None:
        self.finish(queue, MOST_OPEN)
        self.client.send_get(queue, MOST_OPEN, 1000, LONG_MS)

    def opened(self, queue: bytes) -> list[bytes]:
        taken = self.client.taken()
        self.ids[queue] += ids_of(taken)
        return data_of(taken)

    def finish(self, queue: bytes, most: int) -> int:
        finished, self.ids[queue] = self.ids[queue][:most], self.ids[queue][most:]
        assert self.client.confirm(queue, *finished) == len(finished)
        return len(finished)

    def peek(self, queue: bytes) -> list[bytes]:
        self.finish(queue, MOST_OPEN)
        head = self.client.peek(queue).head
        return [] if head is None else [head]

    def flush(self, queue: bytes) -> None:
        self.client.flush_queue(queue)

    def delete(self, queue: bytes) -> None:
        self.client.delete_queue(queue)

    def confirm_deleted(self, queue: bytes) -> int:
        ids, self.ids[queue] = self.ids[queue], []
        return self.client.confirm(queue, *ids)

    def leave(self) -> None:
        for queue, ids in self.ids.items():
            assert self.client.abort(queue, *ids) == len(ids)
        self.client.disconnect()
        self.server.settle()


PROTOCOLS: Final = (MemcacheSpeaker, TextSpeaker, ThriftSpeaker)

Speaker = MemcacheSpeaker | TextSpeaker | ThriftSpeaker
"""A client of one protocol, limited to what all three protocols can do.

`take`, `open` and `peek` first confirm the client's open reads of the queue, because text always does. `begin_open`
and `begin_open_many` start a request that waits up to a second and opens one read or as many as a client may hold;
`opened` returns its items. `finish` confirms up to `most` of the oldest open reads.
"""


class Scenario:
    """A server over journals, and clients that all use the same protocol."""

    def __init__(self, speaker: type[Speaker], folder: Path) -> None:
        self.server = MemoryServer(config=loads(CONFIG), folder=folder)
        self._speaker = speaker
        self._connect()

    def _connect(self) -> None:
        self.speakers = [self._speaker(self.server) for _ in range(SPEAKERS)]
        self._watcher = self.server.connect()

    def do(self, step: tuple[Any, ...]) -> object:
        """Run a step and return its result."""
        match step:
            case "put", who, queue, items:
                return self.speakers[who].put(queue, items)
            case "take", who, queue:
                return self.speakers[who].take(queue)
            case "open", who, queue:
                return self.speakers[who].open(queue)
            case "open many", who, queue:
                self.speakers[who].begin_open_many(queue)
                self.server.advance(1)
                return self.speakers[who].opened(queue)
            case "wait and put", who, queue, to, items:
                self.speakers[who].begin_open(queue)
                self.server.settle()
                stored = self.speakers[1 - who].put(to, items)
                self.server.advance(1)
                return stored, self.speakers[who].opened(queue)
            case "finish", who, queue, most:
                return self.speakers[who].finish(queue, most)
            case "peek", who, queue:
                return self.speakers[who].peek(queue)
            case "flush", who, queue:
                return self.speakers[who].flush(queue)
            case "delete", who, queue:
                self.speakers[who].delete(queue)
                return [speaker.confirm_deleted(queue) for speaker in self.speakers] if queue in QUEUES else None
            case "leave", who:
                self.speakers[who].leave()
                self.speakers[who] = self._speaker(self.server)
            case "restart", is_crash:
                (self.server.crash if is_crash else self.server.restart)()
                self._connect()
            case _:
                raise AssertionError(step)
        return None

    def figures(self) -> dict[bytes, tuple[list[str], bytes]]:
        """Return figures and the head of each queue that exists. Asking does not count as use of a queue."""
        found = {}
        for queue in QUEUES:
            lines = self._watcher.ask(b"dump_stats %b\r\n" % queue).decode().splitlines()
            stats = dict(line.strip().split("=", 1) for line in lines if "=" in line)
            if stats:
                head = self._watcher.ask(b"get %b/peek\r\n" % queue)
                found[queue] = ([stats[name] for name in FIGURES], head)
        return found

    def drained(self) -> dict[bytes, list[bytes]]:
        """Take all items of all queues, head first."""
        found: dict[bytes, list[bytes]] = {}
        for queue in QUEUES:
            found[queue] = []
            while item := self.speakers[0].take(queue):
                found[queue] += item
        return found

    def stop(self) -> None:
        """Stop the server, which closes its files."""
        self.server.stop()
        self.server.settle()


WHO = st.integers(0, SPEAKERS - 1)
QUEUE = st.sampled_from([b"work"] * 5 + NAMES)
"""Mostly the same queue, so that steps affect each other."""
ITEM = st.binary(min_size=1, max_size=4).filter(lambda item: b"\n" not in item and not item.endswith(b"\r"))
"""Items that text can send too."""
ITEMS = st.lists(ITEM, min_size=1, max_size=4)

STEPS = st.one_of(
    st.tuples(st.just("put"), WHO, QUEUE, ITEMS),
    st.tuples(st.just("put"), WHO, QUEUE, ITEMS),
    st.tuples(st.just("open many"), WHO, QUEUE),
    st.tuples(st.just("take"), WHO, QUEUE),
    st.tuples(st.just("open"), WHO, QUEUE),
    st.tuples(st.just("open many"), WHO, QUEUE),
    st.tuples(st.just("wait and put"), WHO, QUEUE, QUEUE, ITEMS),
    st.tuples(st.just("finish"), WHO, QUEUE, st.integers(1, MOST_OPEN)),
    st.tuples(st.just("peek"), WHO, QUEUE),
    st.tuples(st.just("flush"), WHO, QUEUE),
    st.tuples(st.just("delete"), WHO, QUEUE),
    st.tuples(st.just("leave"), WHO),
    st.tuples(st.just("restart"), st.booleans()),
)


@given(steps=st.lists(STEPS, min_size=8, max_size=20), is_crash=st.booleans())
@settings(max_examples=examples(80), deadline=None)
def test_equal_requests_leave_equal_queues_in_every_protocol(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Any, ...]], is_crash: bool
) -> None:
    folder = tmp_path_factory.mktemp("agree")
    with ExitStack() as stack:
        memcache, *others = worlds = [Scenario(speaker, folder / speaker.__name__) for speaker in PROTOCOLS]
        for world in worlds:
            stack.callback(world.stop)
        for step in [*steps, ("restart", is_crash)]:
            answer, figures = memcache.do(step), memcache.figures()
            for world in others:
                assert world.do(step) == answer, step
                assert world.figures() == figures, step
        items = memcache.drained()
        for world in others:
            assert world.drained() == items
            assert world.figures() == memcache.figures()
