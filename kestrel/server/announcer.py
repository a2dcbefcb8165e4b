"""Membership of the server in the server sets of its status, while it serves.

Calls to ZooKeeper run in threads, and their results are passed to the reactor. Queues do not depend on ZooKeeper: they
are served even if it does not answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Thread
from typing import Any, Final

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import Interface

from kestrel.cluster.member import READ, SERVER_SETS, WRITE
from kestrel.cluster.zookeeper import connection_problem
from kestrel.queues.status import StatusLevel
from kestrel.queues.timer import Timer
from kestrel.storage.interfaces import InThread

log = Logger(__name__)


class IServerSet(Interface):
    """The membership of one server in one server set.

    Both methods are called in a thread, never at the same time, and may block. They may raise any exception. They are
    called again after a failure, in each new session, and once a minute.
    """

    def join() -> None:
        """Make the server a member for the duration of this session. It may already be one."""

    def leave() -> None:
        """Remove the server from the set. It may already be removed."""


SETS_OF: Final[Mapping[StatusLevel, frozenset[str]]] = {
    StatusLevel.UP: frozenset({READ, WRITE}),
    StatusLevel.WRITE_AVOID: frozenset({READ}),
    StatusLevel.READ_ONLY: frozenset({READ}),
    StatusLevel.QUIESCENT: frozenset(),
    StatusLevel.DOWN: frozenset(),
}

MIN_RETRY_S: Final = 1.0
MAX_RETRY_S: Final = 30.0
"""Longest pause after a failure other than a lost connection. The pause doubles with each failure."""

RECHECK_S: Final = 60.0
"""Interval of the check that the nodes in ZooKeeper still exist."""

SLOW_JOIN_WARNING_S: Final = 5.0
"""Time after the start at which a warning is logged if the server has not joined its sets."""

STOP_TIMEOUT_S: Final = 3.0
"""How long a stop waits for ZooKeeper."""


class Announcer:
    """The membership of one server. `sets` are the two server sets by name; `where` describes them in the log.

    `client` is a kazoo client, or an object with its `add_listener`, `start_async`, `stop` and `close`. States are the
    texts CONNECTED, SUSPENDED and LOST.

    It has one task: make the server a member of exactly the wanted sets. It repeats the task when the wanted sets
    change, after each failure, in each new session, which starts without nodes, and once a minute.
    """

    def __init__(
        self,
        client: Any,
        sets: Mapping[str, IServerSet],
        where: str,
        clock: IReactorTime,
        in_thread: InThread,
        schedule: Callable[..., object],
    ) -> None:
        self._client = client
        self._sets = sets
        self._where = where
        self._clock = clock
        self._in_thread = in_thread
        self._schedule = schedule
        self._wanted: frozenset[str] = frozenset()
        self._is_connected = False
        self._is_due = False
        self._working: Deferred[None] | None = None
        self._start_again = Timer(clock, self._begin)
        self._try_again = Timer(clock, self._reconcile)
        self._slow_join_warning = Timer(clock, self._warn_slow_join)
        self._pause_s = MIN_RETRY_S
        self._problem = ""
        self._is_loss_logged = False
        """Whether the log says that the connection is lost. A completed join or leave resets it."""
        self._may_be_named = False
        """Whether the log says that the sets name this server, or may name it."""
        self._is_stopping = False
        self.is_in: frozenset[str] | None = None
        """Sets that this server is known to be in; None while that is unknown."""

    def start(self, status: StatusLevel) -> None:
        """Connect, and join the sets of `status` as soon as there is a session."""
        self._wanted = SETS_OF[status]
        self._slow_join_warning.start(SLOW_JOIN_WARNING_S)
        self._begin()

    def _begin(self) -> None:
        self._in_thread(self._start_client).addErrback(self._on_start_failed)

    def _start_client(self) -> None:
        """Start the client. A custom client may block, raise, or already be started."""
        is_connected = getattr(self._client, "connected", False)
        self._client.add_listener(self._on_client_state)
        self._client.start_async()
        if is_connected:
            self._on_client_state("CONNECTED")

    def _on_client_state(self, state: object) -> None:
        """Pass a state of the client to the reactor. Called in the client's threads."""
        self._schedule(self._session_is, str(state))

    def _on_start_failed(self, failure: Failure) -> None:
        if not self._is_stopping:
            self._complain("Cannot start ZooKeeper's client; trying again: {reason}", failure)
            self._start_again.start(self._longer_pause_s())

    def _warn_slow_join(self) -> None:
        if self._is_connected:
            log.warn("ZooKeeper is slow: {where} may not name this server yet", where=self._where)
            return
        log.warn(
            "ZooKeeper cannot be reached, and {where} does not name this server yet: {reason}",
            where=self._where,
            reason=connection_problem(self._client),
        )

    def apply_status(self, status: StatusLevel) -> None:
        """Join and leave the sets as `status` requires."""
        self._want(SETS_OF[status])

    def _want(self, sets: frozenset[str]) -> None:
        if sets != self._wanted:
            self._wanted = sets
            self._reconcile()

    def _session_is(self, state: str) -> None:
        """Act on a state of kazoo's client."""
        self._is_connected = state == "CONNECTED"
        if self._is_stopping:
            return
        if self._is_connected:
            self._reconcile()
            return
        was_in, self.is_in = self.is_in, None
        if not self._is_loss_logged:  # once: a ZooKeeper may accept and close connections again and again
            self._is_loss_logged = True
            self._log_loss(was_in if self._working is None else None)
        if state == "LOST" and self._may_be_named:
            self._may_be_named = False
            log.warn("The session with ZooKeeper is lost: {where} does not name this server", where=self._where)

    def _log_loss(self, was_in: frozenset[str] | None) -> None:
        """Log that the connection is lost. `was_in` is None if the result of a join or leave is unknown.

        ZooKeeper may have made a node and closed the connection before its answer arrived.
        """
        self._may_be_named = was_in is None or bool(was_in)
        if was_in is None:
            log.warn(
                "ZooKeeper does not answer any more: {where} may name this server until its session ends",
                where=self._where,
            )
        elif was_in:
            log.warn(
                "ZooKeeper does not answer any more: {where} names this server until its session ends",
                where=self._where,
            )
        else:
            log.warn("ZooKeeper does not answer any more: changes of {where} wait until it does", where=self._where)

    def _reconcile(self) -> None:
        """Start to join and leave sets, or repeat that when the current attempt ends."""
        if self._is_stopping:
            return
        self._is_due = True
        if self._working is None and self._is_connected:
            self._is_due = False
            self._stop_waiting()
            wanted = self._wanted
            self._working = self._in_thread(self._join_and_leave, wanted)
            self._working.addCallbacks(lambda _: self._is_done(wanted), self._has_failed)
            self._working.addBoth(self._has_ended)

    def _join_and_leave(self, wanted: frozenset[str]) -> None:
        # leave before joining, so that no client is sent to a server that refuses it
        for name in sorted(SERVER_SETS, key=lambda name: name in wanted):
            if name in wanted:
                self._sets[name].join()
            else:
                self._sets[name].leave()

    def _is_done(self, sets: frozenset[str]) -> None:
        """Record that the joins and leaves succeeded: this server is now in exactly `sets`.

        Logs `sets` if they changed, and checks again after `RECHECK_S`. If the connection or the wanted sets have
        changed meanwhile, only the retry pause is reset.
        """
        self._problem = ""
        self._pause_s = MIN_RETRY_S
        if self._is_due or self._is_stopping or not self._is_connected:
            return  # the session has changed, or a later change is due
        self._slow_join_warning.stop()
        self._is_loss_logged = False
        self._try_again.start(RECHECK_S)
        if sets != self.is_in:
            self.is_in = sets
            self._may_be_named = bool(sets)
            log.info("In {where} this server is now in {sets}", where=self._where, sets=_listed(sets))

    def _has_failed(self, failure: Failure) -> None:
        if self._is_stopping:
            return
        if self._is_connected:  # otherwise the lost connection has already been logged
            self._complain("This server cannot join or leave {where}, and tries again: {reason}", failure)
        self._stop_waiting()
        self._try_again.start(self._longer_pause_s())

    def _complain(self, sentence: str, failure: Failure) -> None:
        """Log a failure, unless it was the last one logged."""
        self._slow_join_warning.stop()
        problem = _reason(failure)
        if problem != self._problem:
            self._problem = problem
            log.error(sentence, where=self._where, reason=problem)

    def _longer_pause_s(self) -> float:
        pause_s = self._pause_s
        self._pause_s = min(2 * pause_s, MAX_RETRY_S)
        return pause_s

    def _has_ended(self, _: object) -> None:
        self._working = None
        if self._is_due:
            self._reconcile()

    def _stop_waiting(self) -> None:
        self._start_again.stop()
        self._try_again.stop()

    def stop(self) -> Deferred[None]:
        """Leave the sets and end the session. Fires when that is done, after `STOP_TIMEOUT_S`, or at once if there is
        no connection. If it is not done by then, ZooKeeper ends the session.
        """
        self._stop_waiting()
        self._slow_join_warning.stop()
        self._is_stopping = True
        self._is_due = False
        stopped: Deferred[None] = Deferred()
        if not self._is_connected:
            self._in_thread(lambda: self._client.stop()).addErrback(_failed_to_leave)
            return succeed(None)

        def over(_: object = None) -> None:
            if late.active():
                late.cancel()
            if not stopped.called:
                stopped.callback(None)

        late = self._clock.callLater(STOP_TIMEOUT_S, over)
        idle = self._working or succeed(None)
        idle.addCallback(lambda _: self._in_thread(self._leave_and_end)).addErrback(_failed_to_leave).addBoth(over)
        return stopped

    def _leave_and_end(self) -> None:
        try:
            self._join_and_leave(frozenset())
        finally:
            self._client.stop()
            self._client.close()


def _failed_to_leave(failure: Failure) -> None:
    log.warn("ZooKeeper was not told that this server stops: {reason}", reason=_reason(failure))


def _reason(failure: Failure) -> str:
    # Most of kazoo's errors have no text.
    return failure.getErrorMessage() or type(failure.value).__name__


def _listed(sets: frozenset[str]) -> str:
    return " and ".join(sorted(sets)) or "none of the two sets"


def run_in_daemon_thread(schedule: Callable[..., object]) -> InThread:
    """Return a function that runs functions in daemon threads. The process can exit while ZooKeeper does not answer.

    `schedule` calls a function on the reactor's thread.
    """

    def call(function: Callable[..., Any], *arguments: Any) -> Deferred[Any]:
        called: Deferred[Any] = Deferred()

        def run() -> None:
            try:
                result = function(*arguments)
            except BaseException:
                result = Failure()
            schedule(called.callback, result)

        try:
            Thread(target=run, name="zookeeper", daemon=True).start()
        except RuntimeError:  # the system's limit on threads is reached
            return fail(Failure())
        return called

    return call
