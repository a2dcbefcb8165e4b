"""The states of a session: the table, and each state with each input over a whole server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest
from twisted.internet.defer import Deferred

from kestrel.errors import StorageError
from kestrel.session.session_state import RUNNING_STATES, TRANSITIONS, SessionEvent, SessionState, next_state
from kestrel.session.settings import SessionSettings
from kestrel.testing.server import MemoryClient, MemoryServer
from kestrel.testing.storage import SteppedQueue, SteppedStorage

# The table.

COLUMNS: Final = [
    SessionEvent.CLIENT_WAITS,
    SessionEvent.STORAGE_WAITS,
    SessionEvent.ANSWERED,
    SessionEvent.INPUT_ENDED,
    SessionEvent.ALL_DONE,
    SessionEvent.CLOSE,
    SessionEvent.LOST,
]

# What waits is one command at a time, so nothing else begins to wait and nothing is all done meanwhile.
EXPECTED: Final = {
    SessionState.OPEN: "WAITING LOADING - DRAINING OPEN CLOSING GONE",
    SessionState.WAITING: "- - OPEN CLOSING - CLOSING GONE",
    SessionState.LOADING: "- - OPEN DRAINING_LOADING - CLOSING GONE",
    SessionState.DRAINING: "CLOSING DRAINING_LOADING - DRAINING CLOSING CLOSING GONE",
    SessionState.DRAINING_LOADING: "- - DRAINING DRAINING_LOADING - CLOSING GONE",
    SessionState.CLOSING: "- - CLOSING CLOSING CLOSING CLOSING GONE",
    SessionState.GONE: "GONE GONE GONE GONE GONE GONE GONE",
}

PAIRS: Final = [
    (state, event, None if name == "-" else SessionState[name])
    for state, row in EXPECTED.items()
    for event, name in zip(COLUMNS, row.split(), strict=True)
]


@pytest.mark.parametrize(("state", "event", "expected"), PAIRS)
def test_the_state_after_each_event(state: SessionState, event: SessionEvent, expected: SessionState | None) -> None:
    if expected is None:
        with pytest.raises(KeyError):
            next_state(state, event)
    else:
        assert next_state(state, event) is expected


def test_every_pair_is_walked() -> None:
    assert {(state, event) for state, event, _ in PAIRS} == {
        (state, event) for state in SessionState for event in SessionEvent
    }


def test_commands_are_carried_out_only_while_nothing_waits_and_nobody_hung_up() -> None:
    assert {SessionState.OPEN, SessionState.DRAINING} == RUNNING_STATES


def test_every_state_can_be_reached_and_left_for_gone() -> None:
    reached = {SessionState.OPEN}
    while more := {next_state(state, event) for state in reached for event in TRANSITIONS[state]} - reached:
        reached |= more
    assert reached | {SessionState.GONE} == set(SessionState)
    assert {next_state(state, SessionEvent.LOST) for state in SessionState} == {SessionState.GONE}


# Each state with each input, from the outside: what the client reads, whether it is hung up on, and how many
# items are left in the queue for others once it is gone.


class Case:
    """One client in a given state, beside another that fills the queue."""

    def __init__(self) -> None:
        self.storage = SteppedStorage()
        self.server = MemoryServer(self.storage, session_settings=SessionSettings(max_open_reads=10))
        self.client = self.server.connect()
        self.other = self.server.connect()

    def put(self, data: bytes = b"x") -> None:
        """Another client puts an item."""
        self.other.send(b"set work 0 0 %d\r\n%b\r\n" % (len(data), data))
        self.server.settle()

    @property
    def store(self) -> SteppedQueue:
        """What is in the queue."""
        queue = self.server.manager.known(b"work")
        assert queue is not None
        assert isinstance(queue.store, SteppedQueue)
        return queue.store


def opened(case: Case) -> None:
    assert case.client.ask(b"version\r\n") == b"VERSION 1.2.3\r\n"


def waiting(case: Case) -> None:
    assert case.client.ask(b"get work/t=1000\r\n") == b""


def loading(case: Case) -> None:
    case.put()
    case.store.page_out()
    assert case.client.ask(b"get work\r\n") == b""
    assert case.store.is_filling


def draining(case: Case) -> None:
    # More than one turn takes, so that some of it is still to be carried out when the end arrives.
    case.client.send(b"version\r\n" * 1000)
    case.client.half_close()


def draining_loading(case: Case) -> None:
    case.put()
    case.store.page_out()
    case.client.send(b"get work\r\nversion\r\n")
    case.client.half_close()
    assert case.client.take() == b""
    assert case.store.is_filling


def closing(case: Case) -> None:
    case.storage.holds_commits = True
    assert case.client.ask(b"set other 0 0 1\r\nx\r\nquit\r\nversion\r\n") == b""
    assert b"other" in case.storage.committing


def gone(case: Case) -> None:
    case.storage.holds_commits = True
    case.client.send(b"set other 0 0 1\r\nx\r\nget work/t=1000\r\n")
    case.server.settle()
    case.client.disconnect()


def a_request(case: Case) -> None:
    case.client.send(b"version\r\n")


def an_item(case: Case) -> None:
    case.storage.holds_commits = False
    case.put(b"later")


def time(case: Case) -> None:
    case.server.advance(1.0)


def end_of_input(case: Case) -> None:
    case.client.half_close()


def disconnect(case: Case) -> None:
    case.client.disconnect()


def server_stops(case: Case) -> None:
    case.server.manager.wake_all()
    case.server.factories["memcache"].hang_up()


def the_head_is_loaded(case: Case) -> None:
    case.store.end_fill()


def the_head_cannot_be_loaded(case: Case) -> None:
    case.store.end_fill(StorageError("unreadable"))


def the_commit_ends(case: Case) -> None:
    case.storage.end_commits()


def the_commit_fails(case: Case) -> None:
    case.storage.end_commits(error=StorageError("disk full"))


VERSION: Final = b"VERSION 1.2.3\r\n"
ITEM: Final = b"VALUE work 0 1\r\nx\r\nEND\r\n"
LATER: Final = b"VALUE work 0 5\r\nlater\r\nEND\r\n"
STAYS, HUNG_UP = False, True

Step = Callable[[Case], None]

WALK: Final[list[tuple[Step, list[Step], bytes, bool, int]]] = [
    # state, inputs, what is read then, whether it is hung up on, items left
    (opened, [a_request], VERSION, STAYS, 0),
    (opened, [an_item], b"", STAYS, 1),
    (opened, [time], b"", STAYS, 0),
    (opened, [end_of_input], b"", HUNG_UP, 0),
    (opened, [disconnect], b"", HUNG_UP, 0),
    (opened, [server_stops], b"", HUNG_UP, 0),
    (waiting, [a_request], b"", STAYS, 0),
    (waiting, [an_item], LATER, STAYS, 0),
    (waiting, [a_request, an_item], LATER + VERSION, STAYS, 0),
    (waiting, [time], b"END\r\n", STAYS, 0),
    (waiting, [a_request, time], b"END\r\n" + VERSION, STAYS, 0),
    (waiting, [time, an_item], b"END\r\n", STAYS, 1),
    (waiting, [end_of_input], b"", HUNG_UP, 0),
    (waiting, [end_of_input, an_item], b"", HUNG_UP, 1),
    (waiting, [disconnect, an_item], b"", HUNG_UP, 1),
    (waiting, [disconnect, time], b"", HUNG_UP, 0),
    (waiting, [server_stops], b"END\r\n", HUNG_UP, 0),
    (loading, [a_request], b"", STAYS, 1),
    (loading, [the_head_is_loaded], ITEM, STAYS, 0),
    (loading, [a_request, the_head_is_loaded], ITEM + VERSION, STAYS, 0),
    (loading, [the_head_cannot_be_loaded], b"SERVER_ERROR unreadable\r\n", STAYS, 1),
    (loading, [an_item], b"", STAYS, 2),
    (loading, [time], b"", STAYS, 1),
    (loading, [end_of_input], b"", STAYS, 1),
    (loading, [end_of_input, the_head_is_loaded], ITEM, HUNG_UP, 0),
    (loading, [disconnect], b"", HUNG_UP, 1),
    (loading, [disconnect, the_head_is_loaded], b"", HUNG_UP, 1),
    (loading, [disconnect, the_head_cannot_be_loaded], b"", HUNG_UP, 1),
    (draining, [], VERSION * 1000, HUNG_UP, 0),
    (draining, [an_item], VERSION * 1000, HUNG_UP, 1),
    (draining, [end_of_input], VERSION * 1000, HUNG_UP, 0),
    (draining_loading, [time], b"", STAYS, 1),
    (draining_loading, [end_of_input], b"", STAYS, 1),
    (draining_loading, [the_head_is_loaded], ITEM + VERSION, HUNG_UP, 0),
    (draining_loading, [the_head_cannot_be_loaded], b"SERVER_ERROR unreadable\r\n" + VERSION, HUNG_UP, 1),
    (draining_loading, [disconnect, the_head_is_loaded], b"", HUNG_UP, 1),
    (closing, [a_request], b"", STAYS, 0),
    (closing, [the_commit_ends], b"STORED\r\n", HUNG_UP, 0),
    (closing, [the_commit_fails], b"SERVER_ERROR disk full\r\n", HUNG_UP, 0),
    (closing, [end_of_input, the_commit_ends], b"STORED\r\n", HUNG_UP, 0),
    (closing, [server_stops, the_commit_ends], b"STORED\r\n", HUNG_UP, 0),
    (closing, [disconnect, the_commit_ends], b"", HUNG_UP, 0),
    (closing, [time, an_item], b"", STAYS, 1),
    (gone, [the_commit_ends], b"", HUNG_UP, 0),
    (gone, [the_commit_fails], b"", HUNG_UP, 0),
    (gone, [time], b"", HUNG_UP, 0),
    (gone, [an_item], b"", HUNG_UP, 1),
    (gone, [server_stops], b"", HUNG_UP, 0),
]


def title(value: object) -> str | None:
    if isinstance(value, list):
        return "+".join(step.__name__ for step in value) or "rest"
    return getattr(value, "__name__", None)


@pytest.mark.parametrize(("state", "inputs", "read", "is_hung_up_on", "items_left"), WALK, ids=title)
def test_each_state_with_each_input(
    state: Step, inputs: list[Step], read: bytes, is_hung_up_on: bool, items_left: int
) -> None:
    case = Case()
    state(case)
    for each in inputs:
        each(case)
        case.server.settle()
    assert case.client.take() == read
    assert case.client.is_closed is is_hung_up_on
    queue = case.server.manager.known(b"work")
    assert (0 if queue is None else queue.store.items) == items_left


@pytest.mark.parametrize("state", [opened, waiting, loading, draining, draining_loading, closing])
def test_in_every_state_a_stop_hangs_up_and_a_disconnect_lets_the_stop_go_on(state: Step) -> None:
    case = Case()
    state(case)
    left: list[None] = []
    server_stops(case)
    case.other.disconnect()
    case.client.disconnect()
    case.server.settle()
    case.server.factories["memcache"].hang_up().addCallback(left.append)
    assert left == [None]


@pytest.mark.parametrize("state", [loading, draining_loading])
def test_a_stop_while_the_head_is_loaded_loses_no_item(state: Step) -> None:
    case = Case()
    state(case)
    server_stops(case)
    case.server.settle()
    assert case.client.is_closed
    the_head_is_loaded(case)
    case.server.settle()
    assert case.store.items == 1
    assert case.store.open_reads == 0


def test_a_stop_waits_for_a_command_about_the_server_that_is_under_way_and_says_its_reply() -> None:
    case = Case()
    done: Deferred[None] = Deferred()
    case.server.control.reload = lambda: done
    assert case.client.ask(b"set work 0 0 1\r\nx\r\nreload\r\nget work\r\n") == b"STORED\r\n"
    stopped: list[None] = []
    case.server.stop().addCallback(stopped.append)
    case.server.settle()
    assert case.other.is_closed
    assert (case.client.is_closed, stopped) == (False, [])
    done.callback(None)
    assert case.client.take() == b"Reloaded config.\r\n", "and nothing that was asked for after it"
    assert (case.client.is_closed, stopped) == (True, [None])


def test_a_stop_says_that_a_command_about_the_server_failed() -> None:
    case = Case()
    done: Deferred[None] = Deferred()
    case.server.control.reload = lambda: done
    assert case.client.ask(b"reload\r\nversion\r\n") == b""
    case.server.stop()
    case.server.settle()
    done.errback(StorageError("unreadable"))
    assert case.client.take() == b"SERVER_ERROR unreadable\r\n"
    assert case.client.is_closed


@pytest.mark.parametrize("state", [opened, waiting, loading, draining, draining_loading, closing, gone])
def test_in_every_state_open_reads_come_back_when_the_client_is_gone(state: Step) -> None:
    case = Case()
    other = case.server.connect()
    assert other.ask(b"set held 0 0 1\r\nx\r\n") == b"STORED\r\n"
    assert case.client.ask(b"get held/open\r\n") == b"VALUE held 0 1\r\nx\r\nEND\r\n"
    state(case)
    case.client.disconnect()
    case.storage.holds_commits = False
    if case.storage.committing:
        the_commit_ends(case)
    assert other.ask(b"get held\r\n") == b"VALUE held 0 1\r\nx\r\nEND\r\n"


def test_a_client_in_no_state_is_called_after_it_is_gone() -> None:
    """Twisted calls nothing on a lost connection; the timer of a wait must not either."""
    case = Case()
    waiting(case)
    case.client.disconnect()
    case.server.settle()
    assert case.server.clock.getDelayedCalls() == []


def test_a_connection_that_came_before_the_queues_are_loaded_is_answered_after() -> None:
    loaded: Deferred[dict[bytes, object]] = Deferred()

    class LoadingStorage(SteppedStorage):
        def start(self, settings_for: object) -> Deferred[dict[bytes, object]]:  # type: ignore[override]
            return loaded

    server = MemoryServer(LoadingStorage())
    client: MemoryClient = server.connect()
    assert client.ask(b"version\r\nget work\r\n") == b""
    loaded.callback({})
    assert client.take() == VERSION + b"END\r\n"
