"""The outbox: replies in order, each held until the change that it reports is safe."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kestrel.commands import Command
from kestrel.errors import QueueFailed
from kestrel.session.outbox import Outbox, OutboxOwner
from kestrel.storage.barrier import Barrier, Batch
from kestrel.storage.total_memory import MemoryLimit, MemoryShare


class RecordingOwner(OutboxOwner):
    """An outbox with a barrier whose ticks the test ends, and an owner that records calls."""

    def __init__(self, barrier: Barrier | None = None) -> None:
        self.barrier = barrier or Barrier(lambda end_of_tick: None)
        self.written: list[bytes] = []
        self.is_lost = False
        self.is_left = False
        self.losses = 0
        self.releases = 0
        self.outbox = Outbox(self.barrier, self, MemoryShare(MemoryLimit()))

    def send_replies(self, replies: bytes) -> None:
        self.written.append(replies)

    def encode_lost_reply(self, command: Command, failure: Exception) -> bytes:
        return b"<lost: %b>" % str(failure).encode()

    def peer_has_left(self) -> bool:
        return self.is_left

    def on_replies_sent(self) -> None:
        self.releases += 1

    def hang_up(self) -> None:
        self.is_lost = True
        self.losses += 1

    @property
    def sent(self) -> bytes:
        return b"".join(self.written)


class FailingOwner(RecordingOwner):
    """An owner whose transport fails."""

    def send_replies(self, replies: bytes) -> None:
        raise OSError("no such transport")


@pytest.fixture
def owner() -> RecordingOwner:
    return RecordingOwner()


LOST = QueueFailed("disk full")


def test_reply_is_not_sent_to_disconnected_client(owner: RecordingOwner) -> None:
    calls: list[bool] = []
    owner.is_left = True
    owner.outbox.reply(b"first")
    owner.outbox.reply(b"item", sent=calls.append, answers_waiter=True)
    owner.barrier.end_of_tick()
    assert owner.sent == b"first"
    assert calls == []
    owner.outbox.lost()
    assert calls == [False]


def test_reply_is_sent_at_end_of_tick(owner: RecordingOwner) -> None:
    owner.outbox.reply(b"one")
    assert owner.sent == b""
    owner.barrier.end_of_tick()
    assert owner.sent == b"one"


def test_reply_requests_one_end_of_tick() -> None:
    asked: list[Callable[[], None]] = []
    owner = RecordingOwner(Barrier(asked.append))
    owner.outbox.reply(b"one")
    owner.outbox.reply(b"two")
    assert len(asked) == 1
    asked.pop()()
    assert owner.sent == b"onetwo"
    owner.outbox.reply(b"three")
    asked.pop()()
    assert owner.sent == b"onetwothree"


def test_replies_of_a_tick_are_written_together_in_order(owner: RecordingOwner) -> None:
    for reply in (b"one", b"two", b"three"):
        owner.outbox.reply(reply)
    owner.barrier.end_of_tick()
    assert owner.written == [b"onetwothree"]


def test_reply_waits_until_its_batch_is_safe(owner: RecordingOwner) -> None:
    batch = Batch()
    owner.outbox.reply(b"stored", batch)
    owner.barrier.end_of_tick()
    assert owner.sent == b""
    batch.settle(None)
    assert owner.sent == b"stored"


def test_unsafe_reply_holds_only_later_replies(owner: RecordingOwner) -> None:
    batch = Batch()
    owner.outbox.reply(b"before ")
    owner.outbox.reply(b"stored ", batch)
    owner.outbox.reply(b"after ")
    owner.barrier.end_of_tick()
    assert owner.sent == b"before "
    owner.outbox.reply(b"later")
    owner.barrier.end_of_tick()
    assert owner.sent == b"before "
    batch.settle(None)
    assert owner.sent == b"before stored after later"


def test_replies_keep_order_when_a_later_batch_is_safe_first(owner: RecordingOwner) -> None:
    first, second = Batch(), Batch()
    owner.outbox.reply(b"first ", first)
    owner.outbox.reply(b"second ", second)
    owner.barrier.end_of_tick()
    second.settle(None)
    assert owner.sent == b""
    first.settle(None)
    assert owner.sent == b"first second "


def test_replies_of_one_batch_are_sent_when_it_is_safe(owner: RecordingOwner) -> None:
    batch = Batch()
    for _ in range(3):
        owner.outbox.reply(b"stored ", batch)
    owner.barrier.end_of_tick()
    batch.settle(None)
    assert owner.sent == b"stored stored stored "


def test_connection_does_not_wait_for_batch_of_another() -> None:
    barrier = Barrier(lambda end_of_tick: None)
    slow, quick = RecordingOwner(barrier), RecordingOwner(barrier)
    slow.outbox.reply(b"stored", Batch())
    quick.outbox.reply(b"version")
    barrier.end_of_tick()
    assert (slow.sent, quick.sent) == (b"", b"version")


def test_reply_of_lost_batch_is_replaced_by_an_error(owner: RecordingOwner) -> None:
    batch = Batch()
    owner.outbox.reply(b"before ")
    owner.outbox.reply(b"stored ", batch)
    owner.outbox.reply(b"after")
    owner.barrier.end_of_tick()
    batch.settle(LOST)
    assert owner.sent == b"before <lost: disk full>after"
    assert not owner.is_lost


def test_batch_lost_before_end_of_tick_replaces_its_reply(owner: RecordingOwner) -> None:
    batch = Batch()
    owner.outbox.reply(b"stored", batch)
    batch.settle(LOST)
    owner.barrier.end_of_tick()
    assert owner.sent == b"<lost: disk full>"


# Notification of senders.


def test_sent_is_true_after_reply_is_written(owner: RecordingOwner) -> None:
    calls: list[tuple[bool, bytes]] = []
    batch = Batch()
    owner.outbox.reply(b"item", batch, lambda was_sent: calls.append((was_sent, owner.sent)))
    owner.barrier.end_of_tick()
    assert calls == []
    batch.settle(None)
    assert calls == [(True, b"item")]


def test_sent_is_false_for_replaced_reply(owner: RecordingOwner) -> None:
    calls: list[bool] = []
    batch = Batch()
    owner.outbox.reply(b"item", batch, calls.append)
    owner.barrier.end_of_tick()
    batch.settle(LOST)
    assert calls == [False]


def test_sent_is_false_for_each_reply_to_disconnected_client(owner: RecordingOwner) -> None:
    calls: list[tuple[int, bool]] = []
    owner.outbox.reply(b"one", None, lambda was_sent: calls.append((1, was_sent)))
    owner.outbox.reply(b"two", Batch(), lambda was_sent: calls.append((2, was_sent)))
    owner.outbox.lost()
    assert calls == [(1, False), (2, False)]
    owner.barrier.end_of_tick()
    assert owner.sent == b""
    assert len(calls) == 2


def test_sent_is_false_at_once_if_client_has_disconnected(owner: RecordingOwner) -> None:
    calls: list[bool] = []
    owner.outbox.lost()
    owner.outbox.reply(b"item", None, calls.append)
    assert calls == [False]


def test_sent_is_false_if_write_finds_client_disconnected() -> None:
    class LosingOwner(RecordingOwner):
        def send_replies(self, replies: bytes) -> None:
            self.outbox.lost()

    calls: list[bool] = []
    owner = LosingOwner()
    owner.outbox.reply(b"item", None, calls.append)
    owner.barrier.end_of_tick()
    assert calls == [False]


def test_batch_settled_after_disconnect_sends_nothing(owner: RecordingOwner) -> None:
    batch = Batch()
    owner.outbox.reply(b"stored", batch)
    owner.barrier.end_of_tick()
    owner.outbox.lost()
    batch.settle(None)
    assert owner.sent == b""
    assert not owner.is_lost


# Closing.


def test_close_disconnects_after_earlier_replies(owner: RecordingOwner) -> None:
    owner.outbox.reply(b"bye")
    owner.outbox.close()
    assert not owner.is_lost
    owner.barrier.end_of_tick()
    assert owner.sent == b"bye"
    assert owner.is_lost


def test_close_waits_for_unsafe_reply(owner: RecordingOwner) -> None:
    batch = Batch()
    owner.outbox.reply(b"stored", batch)
    owner.outbox.close()
    owner.barrier.end_of_tick()
    assert not owner.is_lost
    batch.settle(LOST)
    assert owner.sent == b"<lost: disk full>"
    assert owner.is_lost


def test_disconnects_once_if_batch_settles_in_tick_of_close(owner: RecordingOwner) -> None:
    batch = Batch()
    owner.outbox.reply(b"one", batch)
    owner.barrier.end_of_tick()
    owner.outbox.close()
    batch.settle(None)
    owner.barrier.end_of_tick()
    assert owner.sent == b"one"
    assert owner.losses == 1


def test_nothing_is_sent_after_close(owner: RecordingOwner) -> None:
    calls: list[bool] = []
    owner.outbox.close()
    owner.outbox.reply(b"after", None, calls.append)
    owner.barrier.end_of_tick()
    owner.barrier.end_of_tick()
    assert owner.is_lost
    assert owner.sent == b""
    assert calls == [False]


def test_forgotten_replies_are_not_sent_and_count_as_lost(owner: RecordingOwner) -> None:
    calls: list[object] = []
    batch, monitor = Batch(), Command()
    owner.outbox.reply(b"one ")
    owner.barrier.end_of_tick()
    owner.outbox.current_command = monitor
    owner.outbox.reply(b"two ", batch, calls.append, lambda: calls.append("lost"))
    owner.outbox.reply(b"three ")
    owner.outbox.current_command = Command()
    owner.outbox.reply(b"four")
    owner.outbox.forget(monitor)
    assert calls == [False, "lost"]
    owner.barrier.end_of_tick()
    batch.settle(None)
    assert owner.sent == b"one four"
    assert owner.outbox.held_bytes == 0
    assert calls == [False, "lost"]


def test_lost_is_called_only_if_an_error_is_sent_instead(owner: RecordingOwner) -> None:
    called: list[bytes] = []
    safe, lost = Batch(), Batch()
    owner.outbox.reply(b"safe", safe, None, lambda: called.append(b"safe"))
    owner.outbox.reply(b"lost", lost, None, lambda: called.append(b"lost"))
    owner.outbox.reply(b"gone", Batch(), None, lambda: called.append(b"gone"))
    owner.barrier.end_of_tick()
    safe.settle(None)
    lost.settle(LOST)
    owner.outbox.lost()
    assert called == [b"lost"]


def test_sent_of_earlier_reply_comes_before_a_loss(owner: RecordingOwner) -> None:
    calls: list[object] = []
    slow, lost = Batch(), Batch()
    owner.outbox.reply(b"slow ", slow)
    owner.outbox.reply(b"one ", None, lambda was_sent: calls.append(("one", was_sent)))
    owner.outbox.reply(b"two", lost, lambda was_sent: calls.append(("two", was_sent)), lambda: calls.append("lost"))
    owner.barrier.end_of_tick()
    lost.settle(LOST)
    slow.settle(None)
    assert owner.sent == b"slow one <lost: disk full>"
    assert calls == [("one", True), "lost", ("two", False)]


# A full transport.


def test_paused_outbox_holds_replies_until_resumed(owner: RecordingOwner) -> None:
    owner.outbox.pause()
    owner.outbox.reply(b"one ")
    owner.barrier.end_of_tick()
    assert owner.sent == b""
    owner.outbox.resume()
    owner.outbox.reply(b"two")
    owner.barrier.end_of_tick()
    assert owner.sent == b"one two"


def test_batch_settled_during_pause_sends_nothing_before_resume(owner: RecordingOwner) -> None:
    batch = Batch()
    owner.outbox.reply(b"stored", batch)
    owner.barrier.end_of_tick()
    owner.outbox.pause()
    batch.settle(None)
    assert owner.sent == b""
    owner.outbox.resume()
    owner.barrier.end_of_tick()
    assert owner.sent == b"stored"


def test_paused_outbox_disconnects_only_after_its_replies(owner: RecordingOwner) -> None:
    owner.outbox.pause()
    owner.outbox.reply(b"bye")
    owner.outbox.close()
    owner.barrier.end_of_tick()
    assert not owner.is_lost
    owner.outbox.resume()
    owner.barrier.end_of_tick()
    assert owner.sent == b"bye"
    assert owner.is_lost


# Held bytes.


def test_held_bytes_counts_unsent_replies(owner: RecordingOwner) -> None:
    batch = Batch()
    owner.outbox.reply(b"12345")
    owner.outbox.reply(b"123", batch)
    owner.outbox.reply(b"1234")
    assert owner.outbox.held_bytes == 12
    owner.barrier.end_of_tick()
    assert owner.outbox.held_bytes == 7
    batch.settle(LOST)
    assert owner.sent == b"12345<lost: disk full>1234"
    assert owner.outbox.held_bytes == 0


def test_disconnected_client_holds_no_bytes(owner: RecordingOwner) -> None:
    owner.outbox.reply(b"12345", Batch())
    owner.outbox.lost()
    assert owner.outbox.held_bytes == 0
    owner.outbox.reply(b"123")
    assert owner.outbox.held_bytes == 0


def test_owner_is_notified_after_each_write(owner: RecordingOwner) -> None:
    batch = Batch()
    owner.outbox.reply(b"one")
    owner.outbox.reply(b"two", batch)
    assert owner.releases == 0
    owner.barrier.end_of_tick()
    assert owner.releases == 1
    owner.outbox.reply(b"three")
    owner.barrier.end_of_tick()
    assert owner.releases == 1
    batch.settle(None)
    assert owner.releases == 2


# Other connections.


def test_failing_transport_does_not_block_replies_to_others() -> None:
    barrier = Barrier(lambda end_of_tick: None)
    FailingOwner(barrier).outbox.reply(b"one")
    healthy = RecordingOwner(barrier)
    healthy.outbox.reply(b"two")
    barrier.end_of_tick()
    assert healthy.sent == b"two"


def test_failing_transport_does_not_block_others_when_batch_settles() -> None:
    barrier = Barrier(lambda end_of_tick: None)
    batch = Batch()
    FailingOwner(barrier).outbox.reply(b"one", batch)
    healthy = RecordingOwner(barrier)
    healthy.outbox.reply(b"two", batch)
    barrier.end_of_tick()
    batch.settle(None)
    assert healthy.sent == b"two"


def test_disconnected_client_is_not_closed_when_its_batch_settles(owner: RecordingOwner) -> None:
    batch = Batch()
    owner.outbox.reply(b"stored", batch)
    owner.outbox.close()
    owner.barrier.end_of_tick()
    owner.outbox.lost()
    batch.settle(None)
    assert not owner.is_lost
    assert owner.sent == b""
