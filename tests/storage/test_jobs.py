"""Work beside the reactor: a stop waits for what runs, and forgets what was to come later."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.python.failure import Failure

from kestrel.storage.jobs import Jobs
from kestrel.testing.threads import SteppedThreads


class Bench:
    def __init__(self) -> None:
        self.clock = Clock()
        self.threads = SteppedThreads()
        self.jobs = Jobs(self.clock, self.threads)
        self.done: list[object] = []
        self.closed: list[object] = []

    def close(self) -> None:
        self.jobs.close().addCallback(self.closed.append)


def test_a_stop_with_nothing_running_is_done_at_once() -> None:
    bench = Bench()
    bench.close()
    assert len(bench.closed) == 1


def test_a_stop_waits_for_what_runs_and_for_what_that_leads_to() -> None:
    bench = Bench()
    bench.jobs.run(int, "1").addCallback(lambda _: bench.jobs.run(int, "2")).addCallback(bench.done.append)
    bench.close()
    bench.threads.run_one()
    assert (bench.done, bench.closed) == ([], [])
    bench.threads.run_one()
    assert (bench.done, len(bench.closed)) == ([2], 1)


def test_a_job_that_fails_holds_up_no_stop() -> None:
    bench = Bench()
    failures: list[Failure] = []
    bench.jobs.run(int, "none").addErrback(failures.append)
    bench.close()
    bench.threads.run_all()
    assert (len(failures), len(bench.closed)) == (1, 1)


def test_what_is_due_later_is_done_then() -> None:
    bench = Bench()
    bench.jobs.later(2, bench.done.append, "due")
    bench.clock.advance(1.9)
    assert bench.done == []
    bench.clock.advance(0.1)
    assert bench.done == ["due"]


def test_what_is_due_already_is_done_at_the_sooner_of_both_times_and_once() -> None:
    bench = Bench()
    call = bench.jobs.within(2, None, lambda: bench.done.append("due"))
    assert bench.jobs.within(3, call, lambda: bench.done.append("later")) is call
    assert bench.jobs.within(1, call, lambda: bench.done.append("sooner")) is call
    bench.clock.advance(0.9)
    assert bench.done == []
    bench.clock.advance(0.1)
    bench.clock.advance(10)
    assert bench.done == ["due"]


def test_what_was_done_may_be_due_again() -> None:
    bench = Bench()
    call = bench.jobs.within(1, None, lambda: bench.done.append("due"))
    bench.clock.advance(1)
    bench.jobs.within(1, call, lambda: bench.done.append("again"))
    bench.clock.advance(1)
    assert bench.done == ["due", "again"]


def test_what_is_forgotten_is_not_done_and_what_was_done_may_be_forgotten() -> None:
    bench = Bench()
    call = bench.jobs.within(1, None, lambda: bench.done.append("forgotten"))
    for _ in range(2):
        bench.jobs.cancel(call)
    bench.clock.advance(1)
    assert bench.done == []


def test_after_a_stop_nothing_is_done_later() -> None:
    bench = Bench()
    bench.jobs.later(2, bench.done.append, "due")
    bench.close()
    bench.jobs.later(2, bench.done.append, "too late")
    bench.clock.advance(5)
    assert bench.done == []
    assert bench.clock.getDelayedCalls() == []
