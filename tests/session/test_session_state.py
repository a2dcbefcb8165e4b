"""The states of a session: the transition table, and each state with each input over a whole server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest
from twisted.internet.defer import Deferred

from kestrel.config.model import Config
from kestrel.errors import StorageError
from kestrel.session.session_state import (
    DRAINING,
    GONE,
    OPEN,
    TRANSITIONS,
    SessionEvent,
    next_state,
)
from kestrel.testing.server import MemoryServer
from kestrel.testing.storage import SteppedQueue, SteppedStorage
from tests.session.servers import store_of

# The transition table.


def test_commands_run_only_in_open_and_draining_states() -> None:
    assert [state for state in TRANSITIONS if state.runs_commands] == [OPEN, DRAINING]


def test_every_state_is_reachable_and_leads_to_gone() -> None:
    reached = {OPEN}
    while more := {next_state(state, event) for state in reached for event in TRANSITIONS[state]} - reached:
        reached |= more
    assert reached | {GONE} == set(TRANSITIONS)
    assert {next_state(state, SessionEvent.LOST) for state in TRANSITIONS} == {GONE}


# Each state with each input over a whole server: the replies, whether the server disconnects, and the items left for
# other clients.


class Case:
    """A client in a given state, and another client that fills the queue."""

    def __init__(self) -> None:
        self.storage = SteppedStorage()
        self.server = MemoryServer(self.storage, session_settings=Config(max_open_transactions=10))
        self.client = self.server.connect()
        self.other = self.server.connect()

    def put(self, data: bytes = b"x") -> None:
        """Put an item from the other client."""
        self.other.send(b"set work 0 0 %d\r\n%b\r\n" % (len(data), data))
        self.server.settle()

    @property
    def store(self) -> SteppedQueue:
        """Return the store of the queue."""
        return store_of(self.server)


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
    # This takes more than one time slice, so some requests are still pending when the input ends.
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


def head_is_loaded(case: Case) -> None:
    case.store.end_fill()


def head_load_fails(case: Case) -> None:
    case.store.end_fill(StorageError("unreadable"))


def commit_ends(case: Case) -> None:
    case.storage.end_commits()


def commit_fails(case: Case) -> None:
    case.storage.end_commits(error=StorageError("disk full"))


VERSION: Final = b"VERSION 1.2.3\r\n"
ITEM: Final = b"VALUE work 0 1\r\nx\r\nEND\r\n"
LATER: Final = b"VALUE work/t=1000 0 5\r\nlater\r\nEND\r\n"
STAYS, HUNG_UP = False, True

Step = Callable[[Case], None]

WALK: Final[list[tuple[Step, list[Step], bytes, bool, int]]] = [
    # state, inputs, replies, whether the server disconnects, items left
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
    (loading, [head_is_loaded], ITEM, STAYS, 0),
    (loading, [a_request, head_is_loaded], ITEM + VERSION, STAYS, 0),
    (loading, [head_load_fails], b"SERVER_ERROR unreadable\r\n", STAYS, 1),
    (loading, [an_item], b"", STAYS, 2),
    (loading, [time], b"", STAYS, 1),
    (loading, [end_of_input], b"", STAYS, 1),
    (loading, [end_of_input, head_is_loaded], ITEM, HUNG_UP, 0),
    (loading, [disconnect], b"", HUNG_UP, 1),
    (loading, [disconnect, head_is_loaded], b"", HUNG_UP, 1),
    (loading, [disconnect, head_load_fails], b"", HUNG_UP, 1),
    (draining, [], VERSION * 1000, HUNG_UP, 0),
    (draining, [an_item], VERSION * 1000, HUNG_UP, 1),
    (draining, [end_of_input], VERSION * 1000, HUNG_UP, 0),
    (draining_loading, [time], b"", STAYS, 1),
    (draining_loading, [end_of_input], b"", STAYS, 1),
    (draining_loading, [head_is_loaded], ITEM + VERSION, HUNG_UP, 0),
    (draining_loading, [head_load_fails], b"SERVER_ERROR unreadable\r\n" + VERSION, HUNG_UP, 1),
    (draining_loading, [disconnect, head_is_loaded], b"", HUNG_UP, 1),
    (closing, [a_request], b"", STAYS, 0),
    (closing, [commit_ends], b"STORED\r\n", HUNG_UP, 0),
    (closing, [commit_fails], b"SERVER_ERROR disk full\r\n", HUNG_UP, 0),
    (closing, [end_of_input, commit_ends], b"STORED\r\n", HUNG_UP, 0),
    (closing, [server_stops, commit_ends], b"STORED\r\n", HUNG_UP, 0),
    (closing, [disconnect, commit_ends], b"", HUNG_UP, 0),
    (closing, [time, an_item], b"", STAYS, 1),
    (gone, [commit_ends], b"", HUNG_UP, 0),
    (gone, [commit_fails], b"", HUNG_UP, 0),
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
def test_stop_ends_every_state_after_disconnect(state: Step) -> None:
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
def test_stop_during_load_of_head_loses_no_item(state: Step) -> None:
    case = Case()
    state(case)
    server_stops(case)
    case.server.settle()
    assert case.client.is_closed
    head_is_loaded(case)
    case.server.settle()
    assert case.store.items == 1
    assert case.store.open_reads == 0


def test_stop_waits_for_running_reload_and_sends_its_reply() -> None:
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
    assert case.client.take() == b"Reloaded config.\r\n", "no reply to later requests"
    assert (case.client.is_closed, stopped) == (True, [None])


def test_stop_reports_failure_of_running_reload() -> None:
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
def test_disconnect_requeues_open_reads_in_every_state(state: Step) -> None:
    case = Case()
    other = case.server.connect()
    assert other.ask(b"set held 0 0 1\r\nx\r\n") == b"STORED\r\n"
    assert case.client.ask(b"get held/open\r\n") == b"VALUE held/open 0 1\r\nx\r\nEND\r\n"
    state(case)
    case.client.disconnect()
    case.storage.holds_commits = False
    if case.storage.committing:
        commit_ends(case)
    assert other.ask(b"get held\r\n") == b"VALUE held 0 1\r\nx\r\nEND\r\n"
