"""A timer that can be started and stopped repeatedly."""

from __future__ import annotations

from twisted.internet.task import Clock

from kestrel.queues.timer import Timer


def test_timer_calls_once_and_can_restart_from_its_call() -> None:
    clock, calls = Clock(), []

    def due() -> None:
        assert not timer.is_running
        calls.append(clock.seconds())
        if len(calls) < 3:
            timer.start(2)

    timer = Timer(clock, due)
    timer.start(1)
    assert timer.is_running
    clock.pump([0.5] * 20)
    assert calls == [1, 3, 5]


def test_latest_start_counts() -> None:
    clock, calls = Clock(), []
    timer = Timer(clock, lambda: calls.append(clock.seconds()))
    timer.start(1)
    timer.start(3)
    clock.pump([1] * 5)
    assert calls == [3]


def test_stopped_timer_does_not_call_and_leaves_nothing() -> None:
    clock = Clock()
    timer = Timer(clock, lambda: 1 / 0)
    timer.stop()
    timer.start(1)
    timer.stop()
    assert not timer.is_running
    assert clock.getDelayedCalls() == []
