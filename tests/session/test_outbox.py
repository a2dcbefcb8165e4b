"""The outbox: replies in order, each held until the change that it reports is safe."""

from __future__ import annotations

import pytest

from kestrel.commands import Command
from kestrel.errors import QueueFailed
from kestrel.protocols.memcache import MemcacheCodec
from kestrel.queues.counters import ServerCounters
from kestrel.session.outbox import Outbox
from kestrel.storage.barrier import Barrier, Batch
from kestrel.storage.total_memory import MemoryLimit, MemoryShare


class Client:
    """The client of an outbox, as its transport and its session, with a barrier whose ticks the test ends."""

    def __init__(self, barrier: Barrier | None = None) -> None:
        self.barrier = barrier or Barrier(lambda end_of_tick: None)
        self.written: list[bytes] = []
        self.is_left = False
        self.closes = 0
        self.continues = 0
        self.outbox = Outbox(
            self.barrier,
            MemcacheCodec(),
            ServerCounters(),
            MemoryShare(MemoryLimit()),
            peer_has_left=lambda: self.is_left,
            continue_session=self._continue,
        )
        self.outbox.transport = self

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def unregisterProducer(self) -> None:
        assert not self.closes

    def loseConnection(self) -> None:
        self.closes += 1

    def _continue(self) -> None:
        self.continues += 1

    @property
    def sent(self) -> bytes:
        return b"".join(self.written)

    @property
    def is_closed(self) -> bool:
        return self.closes > 0


class FailingClient(Client):
    """A client whose transport fails."""

    def write(self, data: bytes) -> None:
        raise OSError("no such transport")


@pytest.fixture
def client() -> Client:
    return Client()


LOST = QueueFailed("disk full")


def test_reply_is_not_sent_to_disconnected_client(client: Client) -> None:
    calls: list[bool] = []
    client.is_left = True
    client.outbox.reply(b"first")
    client.outbox.reply(b"item", sent=calls.append, answers_waiter=True)
    client.barrier.end_of_tick()
    assert client.sent == b"first"
    assert calls == []
    client.outbox.lost()
    assert calls == [False]


def test_replies_of_a_tick_are_written_together_in_order(client: Client) -> None:
    for reply in (b"one", b"two", b"three"):
        client.outbox.reply(reply)
    assert client.written == []
    client.barrier.end_of_tick()
    assert client.written == [b"onetwothree"]


def test_unsafe_reply_holds_only_later_replies(client: Client) -> None:
    batch = Batch()
    client.outbox.reply(b"before ")
    client.outbox.reply(b"stored ", batch)
    client.outbox.reply(b"after ")
    client.barrier.end_of_tick()
    assert client.sent == b"before "
    client.outbox.reply(b"later")
    client.barrier.end_of_tick()
    assert client.sent == b"before "
    batch.settle(None)
    assert client.sent == b"before stored after later"


def test_replies_keep_order_when_a_later_batch_is_safe_first(client: Client) -> None:
    first, second = Batch(), Batch()
    client.outbox.reply(b"first ", first)
    client.outbox.reply(b"second ", second)
    client.barrier.end_of_tick()
    second.settle(None)
    assert client.sent == b""
    first.settle(None)
    assert client.sent == b"first second "


# Notification of senders.


def test_sent_is_false_at_once_if_client_has_disconnected(client: Client) -> None:
    calls: list[bool] = []
    client.outbox.lost()
    client.outbox.reply(b"item", None, calls.append)
    assert calls == [False]


def test_sent_is_false_if_write_finds_client_disconnected() -> None:
    class LosingClient(Client):
        def write(self, data: bytes) -> None:
            self.outbox.lost()

    calls: list[bool] = []
    client = LosingClient()
    client.outbox.reply(b"item", None, calls.append)
    client.barrier.end_of_tick()
    assert calls == [False]


# Closing.


def test_disconnects_once_if_batch_settles_in_tick_of_close(client: Client) -> None:
    batch = Batch()
    client.outbox.reply(b"one", batch)
    client.barrier.end_of_tick()
    client.outbox.close()
    batch.settle(None)
    client.barrier.end_of_tick()
    assert client.sent == b"one"
    assert client.closes == 1


def test_forgotten_replies_are_not_sent_and_count_as_lost(client: Client) -> None:
    calls: list[object] = []
    batch, monitor = Batch(), Command()
    client.outbox.reply(b"one ")
    client.barrier.end_of_tick()
    client.outbox.current_command = monitor
    client.outbox.reply(b"two ", batch, calls.append, lambda: calls.append("lost"))
    client.outbox.reply(b"three ")
    client.outbox.current_command = Command()
    client.outbox.reply(b"four")
    client.outbox.forget(monitor)
    assert calls == [False, "lost"]
    client.barrier.end_of_tick()
    batch.settle(None)
    assert client.sent == b"one four"
    assert client.outbox.held_bytes == 0
    assert calls == [False, "lost"]


def test_lost_is_called_only_if_an_error_is_sent_instead(client: Client) -> None:
    called: list[bytes] = []
    safe, lost = Batch(), Batch()
    client.outbox.reply(b"safe", safe, None, lambda: called.append(b"safe"))
    client.outbox.reply(b"lost", lost, None, lambda: called.append(b"lost"))
    client.outbox.reply(b"gone", Batch(), None, lambda: called.append(b"gone"))
    client.barrier.end_of_tick()
    safe.settle(None)
    lost.settle(LOST)
    client.outbox.lost()
    assert called == [b"lost"]


def test_sent_of_earlier_reply_comes_before_a_loss(client: Client) -> None:
    calls: list[object] = []
    slow, lost = Batch(), Batch()
    client.outbox.reply(b"slow ", slow)
    client.outbox.reply(b"one ", None, lambda was_sent: calls.append(("one", was_sent)))
    client.outbox.reply(b"two", lost, lambda was_sent: calls.append(("two", was_sent)), lambda: calls.append("lost"))
    client.barrier.end_of_tick()
    lost.settle(LOST)
    slow.settle(None)
    assert client.sent == b"slow one "
    client.barrier.end_of_tick()
    assert client.sent == b"slow one SERVER_ERROR disk full\r\n"
    assert calls == [("one", True), "lost", ("two", False)]


# A full transport.


def test_batch_settled_during_pause_sends_nothing_before_resume(client: Client) -> None:
    batch = Batch()
    client.outbox.reply(b"stored", batch)
    client.barrier.end_of_tick()
    client.outbox.pause()
    batch.settle(None)
    assert client.sent == b""
    client.outbox.resume()
    client.barrier.end_of_tick()
    assert client.sent == b"stored"


# Held bytes.


def test_held_bytes_counts_unsent_replies(client: Client) -> None:
    batch = Batch()
    client.outbox.reply(b"12345")
    client.outbox.reply(b"123", batch)
    client.outbox.reply(b"1234")
    assert client.outbox.held_bytes == 12
    client.barrier.end_of_tick()
    assert client.outbox.held_bytes == 7
    batch.settle(LOST)
    assert client.sent == b"12345SERVER_ERROR disk full\r\n1234"
    assert client.outbox.held_bytes == 0


# Other connections.


def test_failing_transport_does_not_block_others_when_batch_settles() -> None:
    barrier = Barrier(lambda end_of_tick: None)
    batch = Batch()
    FailingClient(barrier).outbox.reply(b"one", batch)
    healthy = Client(barrier)
    healthy.outbox.reply(b"two", batch)
    barrier.end_of_tick()
    batch.settle(None)
    assert healthy.sent == b"two"
