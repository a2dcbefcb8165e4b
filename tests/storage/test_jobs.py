"""A storage that closes waits for its threads and cancels its timers."""

from __future__ import annotations

import pytest
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from kestrel.storage.jobs import Jobs
from kestrel.testing.threads import SteppedThreads


class JobsUnderTest(Jobs):
    def __init__(self) -> None:
        self.clock = Clock()
        self.threads = SteppedThreads()
        super().__init__(self.clock, self.threads)
        self.done: list[object] = []
        self.closed: list[object] = []

    def begin_close(self) -> None:
        self.close().addCallback(self.closed.append)


@pytest.fixture
def jobs() -> JobsUnderTest:
    return JobsUnderTest()


def test_idle_jobs_close_at_once(jobs: JobsUnderTest) -> None:
    jobs.begin_close()
    assert len(jobs.closed) == 1


def test_close_waits_for_jobs_that_running_jobs_start(jobs: JobsUnderTest) -> None:
    jobs.run(int, "1").addCallback(lambda _: jobs.run(int, "2")).addCallback(jobs.done.append)
    jobs.begin_close()
    jobs.threads.run_one()
    assert (jobs.done, jobs.closed) == ([], [])
    jobs.threads.run_one()
    assert (jobs.done, len(jobs.closed)) == ([2], 1)


def test_failed_job_does_not_prevent_closing(jobs: JobsUnderTest) -> None:
    failures: list[Failure] = []
    jobs.run(int, "none").addErrback(failures.append)
    jobs.begin_close()
    jobs.threads.run_all()
    assert (len(failures), len(jobs.closed)) == (1, 1)


def test_later_calls_at_the_given_time(jobs: JobsUnderTest) -> None:
    jobs.later(2, jobs.done.append, "due")
    jobs.clock.advance(1.9)
    assert jobs.done == []
    jobs.clock.advance(0.1)
    assert jobs.done == ["due"]


def test_within_calls_once_at_the_earliest_time(jobs: JobsUnderTest) -> None:
    call = jobs.within(2, None, lambda: jobs.done.append("due"))
    assert jobs.within(3, call, lambda: jobs.done.append("later")) is call
    assert jobs.within(1, call, lambda: jobs.done.append("sooner")) is call
    jobs.clock.advance(0.9)
    assert jobs.done == []
    jobs.clock.advance(0.1)
    jobs.clock.advance(10)
    assert jobs.done == ["due"]


def test_within_schedules_again_after_a_call(jobs: JobsUnderTest) -> None:
    call = jobs.within(1, None, lambda: jobs.done.append("due"))
    jobs.clock.advance(1)
    jobs.within(1, call, lambda: jobs.done.append("again"))
    jobs.clock.advance(1)
    assert jobs.done == ["due", "again"]


def test_cancelled_call_can_be_cancelled_again(jobs: JobsUnderTest) -> None:
    call = jobs.within(1, None, lambda: jobs.done.append("cancelled"))
    for _ in range(2):
        jobs.cancel(call)
    jobs.clock.advance(1)
    assert jobs.done == []


def test_close_cancels_calls_and_refuses_more(jobs: JobsUnderTest) -> None:
    jobs.later(2, jobs.done.append, "due")
    jobs.begin_close()
    jobs.later(2, jobs.done.append, "too late")
    jobs.clock.advance(5)
    assert jobs.done == []
    assert jobs.clock.getDelayedCalls() == []
