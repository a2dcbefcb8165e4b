"""The outbox: replies in order, each held until what it reports is safe."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kestrel.commands import Command
from kestrel.errors import QueueFailed
from kestrel.session.outbox import Outbox, OutboxOwner
from kestrel.storage.barrier import Barrier, Batch
from kestrel.storage.total_memory import MemoryLimit, MemoryShare


class Wire(OutboxOwner):
    """An outbox between a barrier whose ticks a test ends and a speaker that notes what it is told."""

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
    def said(self) -> bytes:
        return b"".join(self.written)


class BrokenWire(Wire):
    """Its transport fails."""

    def send_replies(self, replies: bytes) -> None:
        raise OSError("no such transport")


@pytest.fixture
def wire() -> Wire:
    return Wire()


LOST = QueueFailed("disk full")


def test_what_was_waited_for_does_not_leave_to_a_client_that_has_left(wire: Wire) -> None:
    told: list[bool] = []
    wire.is_left = True
    wire.outbox.reply(b"first")
    wire.outbox.reply(b"item", sent=told.append, answers_waiter=True)
    wire.barrier.end_of_tick()
    assert wire.said == b"first"
    assert told == []
    wire.outbox.lost()
    assert told == [False]


def test_a_reply_leaves_at_the_end_of_the_tick(wire: Wire) -> None:
    wire.outbox.reply(b"one")
    assert wire.said == b""
    wire.barrier.end_of_tick()
    assert wire.said == b"one"


def test_a_reply_asks_for_an_end_of_the_tick_once() -> None:
    asked: list[Callable[[], None]] = []
    wire = Wire(Barrier(asked.append))
    wire.outbox.reply(b"one")
    wire.outbox.reply(b"two")
    assert len(asked) == 1
    asked.pop()()
    assert wire.said == b"onetwo"
    wire.outbox.reply(b"three")
    asked.pop()()
    assert wire.said == b"onetwothree"


def test_replies_of_one_tick_leave_in_one_write_and_in_order(wire: Wire) -> None:
    for reply in (b"one", b"two", b"three"):
        wire.outbox.reply(reply)
    wire.barrier.end_of_tick()
    assert wire.written == [b"onetwothree"]


def test_a_reply_waits_until_its_batch_is_safe(wire: Wire) -> None:
    batch = Batch()
    wire.outbox.reply(b"stored", batch)
    wire.barrier.end_of_tick()
    assert wire.said == b""
    batch.settle(None)
    assert wire.said == b"stored"


def test_an_unsafe_reply_holds_back_those_after_it_and_none_before_it(wire: Wire) -> None:
    batch = Batch()
    wire.outbox.reply(b"before ")
    wire.outbox.reply(b"stored ", batch)
    wire.outbox.reply(b"after ")
    wire.barrier.end_of_tick()
    assert wire.said == b"before "
    wire.outbox.reply(b"later")
    wire.barrier.end_of_tick()
    assert wire.said == b"before "
    batch.settle(None)
    assert wire.said == b"before stored after later"


def test_replies_leave_in_order_even_if_a_later_one_is_safe_first(wire: Wire) -> None:
    first, second = Batch(), Batch()
    wire.outbox.reply(b"first ", first)
    wire.outbox.reply(b"second ", second)
    wire.barrier.end_of_tick()
    second.settle(None)
    assert wire.said == b""
    first.settle(None)
    assert wire.said == b"first second "


def test_replies_that_wait_for_one_batch_leave_when_it_is_safe(wire: Wire) -> None:
    batch = Batch()
    for _ in range(3):
        wire.outbox.reply(b"stored ", batch)
    wire.barrier.end_of_tick()
    batch.settle(None)
    assert wire.said == b"stored stored stored "


def test_one_connection_does_not_wait_for_the_batch_of_another() -> None:
    barrier = Barrier(lambda end_of_tick: None)
    slow, quick = Wire(barrier), Wire(barrier)
    slow.outbox.reply(b"stored", Batch())
    quick.outbox.reply(b"version")
    barrier.end_of_tick()
    assert (slow.said, quick.said) == (b"", b"version")


def test_a_reply_whose_batch_is_lost_is_replaced_and_the_others_stand(wire: Wire) -> None:
    batch = Batch()
    wire.outbox.reply(b"before ")
    wire.outbox.reply(b"stored ", batch)
    wire.outbox.reply(b"after")
    wire.barrier.end_of_tick()
    batch.settle(LOST)
    assert wire.said == b"before <lost: disk full>after"
    assert not wire.is_lost


def test_a_batch_that_was_lost_before_the_end_of_the_tick_replaces_its_reply_too(wire: Wire) -> None:
    batch = Batch()
    wire.outbox.reply(b"stored", batch)
    batch.settle(LOST)
    wire.barrier.end_of_tick()
    assert wire.said == b"<lost: disk full>"


# Who is told what became of a reply.


def test_sent_is_told_when_the_reply_was_handed_to_the_transport(wire: Wire) -> None:
    told: list[tuple[bool, bytes]] = []
    batch = Batch()
    wire.outbox.reply(b"item", batch, lambda was_sent: told.append((was_sent, wire.said)))
    wire.barrier.end_of_tick()
    assert told == []
    batch.settle(None)
    assert told == [(True, b"item")]


def test_sent_is_told_false_for_a_reply_that_was_replaced(wire: Wire) -> None:
    told: list[bool] = []
    batch = Batch()
    wire.outbox.reply(b"item", batch, told.append)
    wire.barrier.end_of_tick()
    batch.settle(LOST)
    assert told == [False]


def test_sent_is_told_false_for_each_reply_of_a_client_that_is_gone(wire: Wire) -> None:
    told: list[tuple[int, bool]] = []
    wire.outbox.reply(b"one", None, lambda was_sent: told.append((1, was_sent)))
    wire.outbox.reply(b"two", Batch(), lambda was_sent: told.append((2, was_sent)))
    wire.outbox.lost()
    assert told == [(1, False), (2, False)]
    wire.barrier.end_of_tick()
    assert wire.said == b""
    assert len(told) == 2


def test_sent_is_told_false_at_once_when_the_client_is_gone_already(wire: Wire) -> None:
    told: list[bool] = []
    wire.outbox.lost()
    wire.outbox.reply(b"item", None, told.append)
    assert told == [False]


def test_sent_is_told_false_when_the_client_turns_out_to_be_gone_in_the_write() -> None:
    class LosingWire(Wire):
        def send_replies(self, replies: bytes) -> None:
            self.outbox.lost()

    told: list[bool] = []
    wire = LosingWire()
    wire.outbox.reply(b"item", None, told.append)
    wire.barrier.end_of_tick()
    assert told == [False]


def test_a_batch_that_settles_after_the_client_has_gone_says_nothing(wire: Wire) -> None:
    batch = Batch()
    wire.outbox.reply(b"stored", batch)
    wire.barrier.end_of_tick()
    wire.outbox.lost()
    batch.settle(None)
    assert wire.said == b""
    assert not wire.is_lost


# Hanging up.


def test_close_hangs_up_after_the_replies_before_it(wire: Wire) -> None:
    wire.outbox.reply(b"bye")
    wire.outbox.close()
    assert not wire.is_lost
    wire.barrier.end_of_tick()
    assert wire.said == b"bye"
    assert wire.is_lost


def test_close_waits_for_a_reply_that_is_not_safe(wire: Wire) -> None:
    batch = Batch()
    wire.outbox.reply(b"stored", batch)
    wire.outbox.close()
    wire.barrier.end_of_tick()
    assert not wire.is_lost
    batch.settle(LOST)
    assert wire.said == b"<lost: disk full>"
    assert wire.is_lost


def test_it_hangs_up_once_where_a_batch_settles_in_the_tick_of_the_close(wire: Wire) -> None:
    batch = Batch()
    wire.outbox.reply(b"one", batch)
    wire.barrier.end_of_tick()
    wire.outbox.close()
    batch.settle(None)
    wire.barrier.end_of_tick()
    assert wire.said == b"one"
    assert wire.losses == 1


def test_nothing_is_said_after_a_close(wire: Wire) -> None:
    told: list[bool] = []
    wire.outbox.close()
    wire.outbox.reply(b"after", None, told.append)
    wire.barrier.end_of_tick()
    wire.barrier.end_of_tick()
    assert wire.is_lost
    assert wire.said == b""
    assert told == [False]


def test_what_is_forgotten_of_a_command_is_not_said_and_counts_as_lost(wire: Wire) -> None:
    told: list[object] = []
    batch, monitor = Batch(), Command()
    wire.outbox.reply(b"one ")
    wire.barrier.end_of_tick()
    wire.outbox.current_command = monitor
    wire.outbox.reply(b"two ", batch, told.append, lambda: told.append("lost"))
    wire.outbox.reply(b"three ")
    wire.outbox.current_command = Command()
    wire.outbox.reply(b"four")
    wire.outbox.forget(monitor)
    assert told == [False, "lost"]
    wire.barrier.end_of_tick()
    batch.settle(None)
    assert wire.said == b"one four"
    assert wire.outbox.held_bytes == 0
    assert told == [False, "lost"]


def test_lost_is_called_only_where_an_error_is_said_instead(wire: Wire) -> None:
    called: list[bytes] = []
    safe, lost = Batch(), Batch()
    wire.outbox.reply(b"safe", safe, None, lambda: called.append(b"safe"))
    wire.outbox.reply(b"lost", lost, None, lambda: called.append(b"lost"))
    wire.outbox.reply(b"gone", Batch(), None, lambda: called.append(b"gone"))
    wire.barrier.end_of_tick()
    safe.settle(None)
    lost.settle(LOST)
    wire.outbox.lost()
    assert called == [b"lost"]


def test_what_has_left_in_front_is_told_before_a_loss(wire: Wire) -> None:
    told: list[object] = []
    slow, lost = Batch(), Batch()
    wire.outbox.reply(b"slow ", slow)
    wire.outbox.reply(b"one ", None, lambda was_sent: told.append(("one", was_sent)))
    wire.outbox.reply(
        b"two", lost, lambda was_sent: told.append(("two", was_sent)), lambda: told.append("lost")
    )
    wire.barrier.end_of_tick()
    lost.settle(LOST)
    slow.settle(None)
    assert wire.said == b"slow one <lost: disk full>"
    assert told == [("one", True), "lost", ("two", False)]


# A transport that takes no more.


def test_a_paused_outbox_holds_its_replies_until_it_is_resumed(wire: Wire) -> None:
    wire.outbox.pause()
    wire.outbox.reply(b"one ")
    wire.barrier.end_of_tick()
    assert wire.said == b""
    wire.outbox.resume()
    wire.outbox.reply(b"two")
    wire.barrier.end_of_tick()
    assert wire.said == b"one two"


def test_a_batch_that_settles_during_a_pause_lets_nothing_out_before_its_end(wire: Wire) -> None:
    batch = Batch()
    wire.outbox.reply(b"stored", batch)
    wire.barrier.end_of_tick()
    wire.outbox.pause()
    batch.settle(None)
    assert wire.said == b""
    wire.outbox.resume()
    wire.barrier.end_of_tick()
    assert wire.said == b"stored"


def test_a_paused_outbox_hangs_up_only_after_its_replies(wire: Wire) -> None:
    wire.outbox.pause()
    wire.outbox.reply(b"bye")
    wire.outbox.close()
    wire.barrier.end_of_tick()
    assert not wire.is_lost
    wire.outbox.resume()
    wire.barrier.end_of_tick()
    assert wire.said == b"bye"
    assert wire.is_lost


# What it holds.


def test_held_bytes_are_the_replies_that_have_not_left(wire: Wire) -> None:
    batch = Batch()
    wire.outbox.reply(b"12345")
    wire.outbox.reply(b"123", batch)
    wire.outbox.reply(b"1234")
    assert wire.outbox.held_bytes == 12
    wire.barrier.end_of_tick()
    assert wire.outbox.held_bytes == 7
    batch.settle(LOST)
    assert wire.said == b"12345<lost: disk full>1234"
    assert wire.outbox.held_bytes == 0


def test_a_client_that_is_gone_holds_nothing(wire: Wire) -> None:
    wire.outbox.reply(b"12345", Batch())
    wire.outbox.lost()
    assert wire.outbox.held_bytes == 0
    wire.outbox.reply(b"123")
    assert wire.outbox.held_bytes == 0


def test_the_session_is_told_after_replies_have_left_and_only_then(wire: Wire) -> None:
    batch = Batch()
    wire.outbox.reply(b"one")
    wire.outbox.reply(b"two", batch)
    assert wire.releases == 0
    wire.barrier.end_of_tick()
    assert wire.releases == 1
    wire.outbox.reply(b"three")
    wire.barrier.end_of_tick()
    assert wire.releases == 1
    batch.settle(None)
    assert wire.releases == 2


# Others.


def test_a_transport_that_fails_does_not_keep_others_from_their_replies() -> None:
    barrier = Barrier(lambda end_of_tick: None)
    BrokenWire(barrier).outbox.reply(b"one")
    healthy = Wire(barrier)
    healthy.outbox.reply(b"two")
    barrier.end_of_tick()
    assert healthy.said == b"two"


def test_a_transport_that_fails_when_a_batch_settles_does_not_keep_others_from_their_replies() -> None:
    barrier = Barrier(lambda end_of_tick: None)
    batch = Batch()
    BrokenWire(barrier).outbox.reply(b"one", batch)
    healthy = Wire(barrier)
    healthy.outbox.reply(b"two", batch)
    barrier.end_of_tick()
    batch.settle(None)
    assert healthy.said == b"two"


def test_a_client_that_is_gone_is_not_hung_up_on_when_its_batch_is_settled_at_last(wire: Wire) -> None:
    batch = Batch()
    wire.outbox.reply(b"stored", batch)
    wire.outbox.close()
    wire.barrier.end_of_tick()
    wire.outbox.lost()
    batch.settle(None)
    assert not wire.is_lost
    assert wire.said == b""
