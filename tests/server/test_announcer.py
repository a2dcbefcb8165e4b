"""A server is in the sets of its status, whatever happens to ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import LogEvent, LogLevel, globalLogPublisher
from twisted.python.failure import Failure

from kestrel.cluster.member import READ, WRITE
from kestrel.queues.status import StatusLevel
from kestrel.server.announcer import MAX_RETRY_S, MIN_RETRY_S, RECHECK_S, SLOW_JOIN_WARNING_S, STOP_TIMEOUT_S, Announcer

BOTH = {READ, WRITE}


class FakeZooKeeper:
    """A client of a simulated ZooKeeper, and the threads that would wait for it."""

    handler = SimpleNamespace(problem="Connection refused")

    def __init__(self) -> None:
        self.members: set[str] = set()
        self.doing: list[str] = []
        self.connected = False
        self.failing: Exception | None = None
        self.is_held = False
        self.held: list[Callable[[], None]] = []
        self._listeners: list[Callable[[Any], object]] = []

    # The interface of kazoo's client.

    def add_listener(self, listener: Callable[[Any], object]) -> None:
        self._listeners.append(listener)

    def start_async(self) -> None:
        self.doing.append("start")
        if self.failing is not None:
            raise self.failing

    def stop(self) -> None:
        self.doing.append("stop")
        self.members.clear()

    def close(self) -> None:
        self.doing.append("close")

    # The controls of a test.

    def becomes(self, state: str) -> None:
        for listener in self._listeners:
            listener(state)

    def loses_the_session(self) -> None:
        self.members.clear()
        self.becomes("LOST")

    def in_thread(self, function: Callable[..., Any], *arguments: Any) -> Deferred[Any]:
        done: Deferred[Any] = Deferred()

        def run() -> None:
            try:
                result = function(*arguments)
            except Exception:
                result = Failure()
            done.callback(result)

        if self.is_held:
            self.held.append(run)
        else:
            run()
        return done

    def goes_on(self) -> None:
        self.is_held = False
        while self.held:
            self.held.pop(0)()


class FakeSet:
    def __init__(self, zookeeper: FakeZooKeeper, name: str) -> None:
        self._zookeeper = zookeeper
        self._name = name

    def _do(self, what: str) -> None:
        self._zookeeper.doing.append(f"{what} {self._name}")
        if self._zookeeper.failing is not None:
            raise self._zookeeper.failing

    def join(self) -> None:
        self._do("join")
        self._zookeeper.members.add(self._name)

    def leave(self) -> None:
        self._do("leave")
        self._zookeeper.members.discard(self._name)


class Announced:
    """Return an announcer over a simulated ZooKeeper."""

    def __init__(self, status: StatusLevel = StatusLevel.UP, zookeeper: FakeZooKeeper | None = None) -> None:
        self.zookeeper = zookeeper or FakeZooKeeper()
        self.clock = Clock()
        sets: Any = {name: FakeSet(self.zookeeper, name) for name in BOTH}
        self.announcer = Announcer(
            self.zookeeper, sets, "zk://zoo/k", self.clock, self.zookeeper.in_thread, lambda f, *a: f(*a)
        )
        self.announcer.start(status)


@pytest.fixture
def announced() -> Announced:
    return Announced()


@pytest.fixture
def logged() -> Iterator[list[LogEvent]]:
    """Return the warnings and errors that are logged in a test."""
    events: list[LogEvent] = []

    def observe(event: LogEvent) -> None:
        if event["log_level"] >= LogLevel.warn:
            events.append(event)

    globalLogPublisher.addObserver(observe)
    yield events
    globalLogPublisher.removeObserver(observe)


def formats(logged: list[LogEvent]) -> list[str]:
    return [each["log_format"] for each in logged]


@pytest.fixture
def joined(announced: Announced) -> Announced:
    announced.zookeeper.becomes("CONNECTED")
    assert announced.zookeeper.members == BOTH
    return announced


@pytest.mark.parametrize(
    ("status", "sets"),
    [
        (StatusLevel.UP, BOTH),
        (StatusLevel.WRITE_AVOID, {READ}),
        (StatusLevel.READ_ONLY, {READ}),
        (StatusLevel.QUIESCENT, set()),
        (StatusLevel.DOWN, set()),
    ],
)
def test_each_status_has_its_sets(status: StatusLevel, sets: set[str], joined: Announced) -> None:
    joined.announcer.apply_status(status)
    assert joined.zookeeper.members == joined.announcer.is_in == sets
    of_the_start = Announced(status)
    of_the_start.zookeeper.becomes("CONNECTED")
    assert of_the_start.zookeeper.members == sets


def test_sets_are_left_before_others_are_joined() -> None:
    announced = Announced(StatusLevel.READ_ONLY)
    announced.zookeeper.becomes("CONNECTED")
    assert announced.zookeeper.doing == ["start", "leave write", "join read"]


def test_a_lost_session_joins_again(joined: Announced) -> None:
    joined.zookeeper.becomes("SUSPENDED")
    assert joined.announcer.is_in is None
    joined.zookeeper.loses_the_session()
    assert not joined.zookeeper.members
    joined.zookeeper.becomes("CONNECTED")
    assert joined.zookeeper.members == joined.announcer.is_in == BOTH


def test_a_status_change_during_an_outage_is_applied_after_it(joined: Announced) -> None:
    joined.zookeeper.becomes("SUSPENDED")
    joined.announcer.apply_status(StatusLevel.QUIESCENT)
    joined.announcer.apply_status(StatusLevel.WRITE_AVOID)
    assert joined.zookeeper.members == BOTH
    joined.zookeeper.becomes("CONNECTED")
    assert joined.zookeeper.members == {READ}


def test_the_last_of_several_pending_status_changes_is_applied(joined: Announced) -> None:
    joined.zookeeper.is_held = True
    for status in (StatusLevel.QUIESCENT, StatusLevel.UP, StatusLevel.READ_ONLY):
        joined.announcer.apply_status(status)
    assert len(joined.zookeeper.held) == 1
    joined.zookeeper.goes_on()
    assert joined.zookeeper.members == joined.announcer.is_in == {READ}


def test_a_new_session_during_a_change_joins_again(joined: Announced) -> None:
    joined.zookeeper.is_held = True
    joined.announcer.apply_status(StatusLevel.READ_ONLY)
    joined.zookeeper.loses_the_session()
    joined.zookeeper.becomes("CONNECTED")
    doing = len(joined.zookeeper.doing)
    joined.zookeeper.goes_on()
    assert joined.zookeeper.doing[doing:] == ["leave write", "join read"] * 2


def test_a_failed_change_is_retried_after_a_pause(joined: Announced) -> None:
    joined.zookeeper.failing = PermissionError("no")
    joined.announcer.apply_status(StatusLevel.QUIESCENT)
    assert joined.zookeeper.members == BOTH
    joined.zookeeper.failing = None
    joined.clock.advance(MIN_RETRY_S * 0.9)
    assert joined.zookeeper.members == BOTH
    joined.clock.advance(MIN_RETRY_S * 0.2)
    assert not joined.zookeeper.members


def test_change_does_not_wait_for_retry_pause(joined: Announced) -> None:
    joined.zookeeper.failing = PermissionError("no")
    joined.announcer.apply_status(StatusLevel.QUIESCENT)
    joined.zookeeper.failing = None
    joined.announcer.apply_status(StatusLevel.READ_ONLY)
    assert joined.zookeeper.members == {READ}
    assert len(joined.clock.getDelayedCalls()) == 1


def test_a_stop_leaves_and_ends_the_session(joined: Announced) -> None:
    stopped = joined.announcer.stop()
    assert stopped.called
    assert joined.zookeeper.doing[-4:] == ["leave read", "leave write", "stop", "close"]
    assert not joined.clock.getDelayedCalls()
    joined.zookeeper.becomes("LOST")
    joined.announcer.apply_status(StatusLevel.DOWN)
    assert joined.zookeeper.doing[-1] == "close"


def test_stop_waits_for_pending_change_up_to_limit(joined: Announced) -> None:
    joined.zookeeper.is_held = True
    joined.announcer.apply_status(StatusLevel.READ_ONLY)
    stopped = joined.announcer.stop()
    joined.clock.advance(STOP_TIMEOUT_S * 0.9)
    assert not stopped.called
    joined.clock.advance(STOP_TIMEOUT_S * 0.2)
    assert stopped.called
    joined.zookeeper.goes_on()
    assert joined.zookeeper.doing[-1] == "close"
    assert not joined.clock.getDelayedCalls()


def test_stop_does_not_wait_for_unreachable_zookeeper(announced: Announced) -> None:
    announced.zookeeper.is_held = True
    assert announced.announcer.stop().called
    assert not announced.clock.getDelayedCalls()


def test_a_failure_during_a_stop_is_not_retried(joined: Announced) -> None:
    joined.zookeeper.is_held = True
    joined.announcer.apply_status(StatusLevel.READ_ONLY)
    joined.zookeeper.failing = PermissionError("no")
    stopped = joined.announcer.stop()
    joined.zookeeper.goes_on()
    assert stopped.called
    assert not joined.clock.getDelayedCalls()


def test_removed_members_are_restored_by_the_next_check(joined: Announced) -> None:
    joined.zookeeper.members.clear()
    joined.clock.advance(RECHECK_S)
    assert joined.zookeeper.members == BOTH


def test_pauses_after_failures_grow_until_a_success(joined: Announced) -> None:
    joined.zookeeper.failing = PermissionError("no")
    joined.announcer.apply_status(StatusLevel.READ_ONLY)
    tried = []
    for second in range(1, 100):
        doing = len(joined.zookeeper.doing)
        joined.clock.advance(1)
        if len(joined.zookeeper.doing) > doing:
            tried.append(second)
    assert tried == [1, 3, 7, 15, 31, 61, 91]
    assert MAX_RETRY_S == 30
    joined.zookeeper.failing = None
    joined.announcer.apply_status(StatusLevel.QUIESCENT)
    joined.zookeeper.failing = PermissionError("no")
    joined.announcer.apply_status(StatusLevel.UP)
    joined.zookeeper.failing = None
    joined.clock.advance(MIN_RETRY_S)
    assert joined.zookeeper.members == BOTH


def test_connections_closed_again_and_again_are_logged_once(announced: Announced, logged: list[LogEvent]) -> None:
    for _ in range(100):
        announced.zookeeper.is_held = True
        announced.zookeeper.becomes("CONNECTED")
        announced.zookeeper.failing = ConnectionError()
        announced.zookeeper.becomes("SUSPENDED")
        announced.zookeeper.becomes("LOST")
        announced.zookeeper.goes_on()
        announced.clock.advance(1)
    assert formats(logged) == [
        "ZooKeeper does not answer any more: {where} may name this server until its session ends",
        "The session with ZooKeeper is lost: {where} does not name this server",
        "ZooKeeper cannot be reached, and {where} does not name this server yet: {reason}",
    ]


def test_a_slow_join_is_logged_as_slow(announced: Announced, logged: list[LogEvent]) -> None:
    announced.zookeeper.is_held = True
    announced.zookeeper.becomes("CONNECTED")
    announced.clock.advance(SLOW_JOIN_WARNING_S)
    assert [each["log_format"] for each in logged] == ["ZooKeeper is slow: {where} may not name this server yet"]


def test_results_of_a_lost_session_are_ignored(joined: Announced) -> None:
    joined.zookeeper.is_held = True
    joined.announcer.apply_status(StatusLevel.READ_ONLY)
    joined.zookeeper.loses_the_session()
    joined.zookeeper.becomes("CONNECTED")
    joined.zookeeper.held.pop(0)()
    assert joined.announcer.is_in is None  # the member ended with the session, and is added again
    joined.zookeeper.goes_on()
    assert joined.announcer.is_in == {READ}


def test_a_failed_start_of_the_client_is_retried() -> None:
    zookeeper = FakeZooKeeper()
    zookeeper.failing = RuntimeError("can't start new thread")
    announced = Announced(zookeeper=zookeeper)
    zookeeper.failing = None
    announced.clock.advance(MIN_RETRY_S)
    assert zookeeper.doing == ["start", "start"]
    zookeeper.becomes("CONNECTED")
    assert zookeeper.members == BOTH


def test_an_already_connected_client_joins() -> None:
    zookeeper = FakeZooKeeper()
    zookeeper.connected = True
    assert Announced(zookeeper=zookeeper).announcer.is_in == BOTH


def test_a_stop_before_the_client_has_started_leaves_nothing() -> None:
    zookeeper = FakeZooKeeper()
    zookeeper.is_held = True
    zookeeper.failing = RuntimeError("no")
    announced = Announced(zookeeper=zookeeper)
    assert announced.announcer.stop().called
    zookeeper.goes_on()
    assert not announced.clock.getDelayedCalls()


def test_an_exception_while_closing_the_client_fails_no_stop(announced: Announced) -> None:
    announced.zookeeper.stop = None  # type: ignore[method-assign,assignment]
    assert announced.announcer.stop().called


def test_session_loss_during_leave_leaves_sets_unknown(joined: Announced, logged: list[LogEvent]) -> None:
    joined.zookeeper.is_held = True
    joined.announcer.apply_status(StatusLevel.QUIESCENT)
    joined.zookeeper.becomes("SUSPENDED")
    joined.zookeeper.goes_on()
    assert formats(logged) == [
        "ZooKeeper does not answer any more: {where} may name this server until its session ends"
    ]


def test_each_loss_after_a_join_is_logged_once(joined: Announced, logged: list[LogEvent]) -> None:
    for _ in range(2):
        joined.zookeeper.becomes("SUSPENDED")
        joined.zookeeper.loses_the_session()
        joined.zookeeper.becomes("CONNECTED")
    assert formats(logged) == 2 * [
        "ZooKeeper does not answer any more: {where} names this server until its session ends",
        "The session with ZooKeeper is lost: {where} does not name this server",
    ]
