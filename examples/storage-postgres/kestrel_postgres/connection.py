"""A connection to the database: made when it is needed, used by one job at a time, given up when it is silent."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.types.numeric import Int8BinaryDumper
from twisted.internet.defer import Deferred, fail
from twisted.internet.interfaces import IReactorTime

from kestrel.errors import DatabaseAway
from kestrel.storage.interfaces import InThread
from kestrel_postgres import failures

Connection: TypeAlias = "psycopg.Connection[tuple[Any, ...]]"

Result = TypeVar("Result")

# It warns of errors that are raised besides. Without a handler that would go to the standard error.
logging.getLogger("psycopg").addHandler(logging.NullHandler())

CLOSE_S: Final = 5.0
"""How long a job that is under way may still take when the line is to be closed."""

CLOSED: Final = "the storage is closed"


class _Asked(NamedTuple):
    """A job that waits for its turn."""

    job: Callable[[Connection], Any]
    more_s: float
    answer: Deferred[Any]


class Line:
    """One connection. What is asked of it waits for its turn.

    `begin` is called in the thread with each new connection, before anything else is done with it. A job that takes
    longer than `timeout_s`, and what it was given beyond that, finds its connection cut: that is how a database, or a
    network, that says nothing more comes to an end. No timeout of the database's could do that, and none of TCP's where
    it is the database that hangs.
    """

    def __init__(
        self,
        clock: IReactorTime,
        in_thread: InThread,
        conninfo: str,
        timeout_s: float,
        begin: Callable[[Connection], None],
    ) -> None:
        self._clock = clock
        self._in_thread = in_thread
        self._conninfo = conninfo
        self._timeout_s = timeout_s
        self._begin = begin
        self._waiting: deque[_Asked] = deque()
        self._is_busy = False
        self._idle: Deferred[None] | None = None
        self._is_closed = False
        # Of the thread that has the job.
        self._connection: Connection | None = None
        self._is_unsafe = False
        self._why_not: str | None = None
        """Why there is no connection, if making it has failed."""
        # By the socket the reactor thread cuts the connection, while the other one may be about to close it.
        self._cutting = threading.Lock()
        self._socket: socket.socket | None = None
        self._is_cut = False

    def run(self, job: Callable[[Connection], Result], more_s: float = 0) -> Deferred[Result]:
        """Call the job with the connection, in a thread. It has `more_s` beyond the usual time.

        Fails with what the job raises, or with what `failures` makes of an error of the database. `DatabaseAway` says
        that the connection is lost, or cannot be made; after any other the database has undone what it was about. Who
        waits while it cannot be made fails as well: many may wait, and each attempt takes its time.
        """
        if self._is_closed:
            return fail(DatabaseAway(CLOSED))
        answer: Deferred[Result] = Deferred()
        self._waiting.append(_Asked(job, more_s, answer))
        self._go_on()
        return answer

    def close(self) -> Deferred[None]:
        """Hang up. What has not had its turn fails; what is under way has a few seconds to end."""
        self._is_closed = True
        self._fail_waiting(CLOSED)
        cutting = self._clock.callLater(CLOSE_S, self._cut)

        def hang_up(_: object) -> Deferred[None]:
            if cutting.active():
                cutting.cancel()
            closed: Deferred[None] = self._in_thread(self._hang_up)
            return closed

        self._idle = Deferred()
        closed = self._idle.addCallback(hang_up)
        self._go_on()
        return closed

    # On the reactor thread.

    def _go_on(self) -> None:
        if self._is_busy:
            return
        if self._waiting:
            self._begin_job(self._waiting.popleft())
        elif self._idle is not None:
            idle, self._idle = self._idle, None
            idle.callback(None)

    def _begin_job(self, asked: _Asked) -> None:
        self._is_busy = True
        self._is_cut = False
        cutting = self._clock.callLater(self._timeout_s + asked.more_s, self._cut)

        def ended(result: Any) -> None:
            if cutting.active():
                cutting.cancel()
            self._is_busy = False
            why_not, self._why_not = self._why_not, None
            if why_not is not None:
                self._fail_waiting(why_not)
            self._go_on()
            asked.answer.callback(result)

        self._in_thread(self._work, asked.job).addBoth(ended)

    def _fail_waiting(self, reason: str) -> None:
        waiting, self._waiting = self._waiting, deque()
        for asked in waiting:
            asked.answer.errback(DatabaseAway(reason))

    def _cut(self) -> None:
        # Whoever waits for the socket is woken, and finds the connection at its end.
        with self._cutting:
            self._is_cut = True
            if self._socket is not None:
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    # In a thread.

    def _work(self, job: Callable[[Connection], Result]) -> Result:
        connection = self._connected()
        try:
            result = job(connection)
            self._check_is_safe()
            return result
        except psycopg.Error as error:
            raise self._meaning(connection, error) from None  # its own traceback may tell what was in the statement
        except BaseException:
            self._hang_up()
            raise

    def _connected(self) -> Connection:
        if self._connection is None:
            try:
                return self._connect()
            except psycopg.Error as error:
                # Whatever it says, it says nothing of the batch that waits for this, and which may have been applied.
                self._hang_up()
                away = self._away(f"the database cannot be used: {failures.sentence(error)}")
                self._why_not = str(away)
                raise away from None
            except BaseException:
                self._hang_up()
                raise
        return self._connection

    def _connect(self) -> Connection:
        # Each statement is prepared at its first use: they are few, and come again and again.
        connection = psycopg.connect(self._conninfo, autocommit=True, prepare_threshold=0)
        self._connection = connection
        # All our numbers are bigint. By itself it chooses by their values, and prepares a statement for each choice.
        connection.adapters.register_dumper(int, Int8BinaryDumper)
        connection.add_notice_handler(self._noticed)
        # A descriptor of its own, so that who cuts it can never hit another file that has got the number since.
        self._socket = socket.socket(fileno=os.dup(connection.fileno()))
        if self._is_cut:
            self._cut()
        self._begin(connection)
        self._check_is_safe()
        return connection

    def _noticed(self, notice: psycopg.errors.Diagnostic) -> None:
        if notice.source_function == failures.NOT_REPLICATED:
            self._is_unsafe = True

    def _check_is_safe(self) -> None:
        is_unsafe, self._is_unsafe = self._is_unsafe, False
        if is_unsafe:  # the next connection begins with a commit, and once that is safe, so is all before it
            raise DatabaseAway("what was committed is not on its synchronous standby: somebody ended the wait for it")

    def _meaning(self, connection: Connection, error: psycopg.Error) -> Exception:
        if not _is_alive_after_rollback(connection):
            self._hang_up()
            return self._away(f"the connection is lost: {failures.sentence(error)}")
        if error.sqlstate == failures.READ_ONLY:
            self._hang_up()  # another server may be the one to write to by now
        return failures.meaning(error)

    def _away(self, sentence: str) -> DatabaseAway:
        return DatabaseAway("the database did not answer in time" if self._is_cut else sentence)

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        with self._cutting:
            dup, self._socket = self._socket, None
            if dup is not None:
                dup.close()
        if connection is not None:
            connection.close()


def _is_alive_after_rollback(connection: Connection) -> bool:
    """Only then has the database answered, and undone what it was about."""
    if connection.info.transaction_status is TransactionStatus.INERROR:
        with suppress(psycopg.Error):
            connection.execute("ROLLBACK")
    return connection.info.transaction_status is TransactionStatus.IDLE
