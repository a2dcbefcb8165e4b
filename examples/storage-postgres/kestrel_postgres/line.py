"""A connection to the database: made when it is needed, used by one job at a time, given up when it is silent."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeAlias, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.types.numeric import Int8BinaryDumper
from twisted.internet.defer import Deferred, DeferredLock, fail
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


class Line:
    """One connection. What is asked of it waits for its turn.

    `begin` is called in the thread with each new connection, before anything else is done with it. A job that takes
    longer than `timeout_s` finds its connection cut: that is how a database, or a network, that says nothing more
    comes to an end. No timeout of the database's could do that, and none of TCP's where it is the database that hangs.
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
        self._turn = DeferredLock()
        self._is_closed = False
        # Of the thread that has the job, but for the socket, by which the reactor thread cuts the connection.
        self._connection: Connection | None = None
        self._socket: socket.socket | None = None
        self._is_cut = False

    def run(self, job: Callable[[Connection], Result]) -> Deferred[Result]:
        """Call the job with the connection, in a thread.

        Fails with what the job raises, or with what `failures` makes of an error of the database. `DatabaseAway` says
        that the connection is lost; after any other the database has undone what it was about.
        """
        turn: Deferred[Result] = self._turn.run(self._run, job)
        return turn

    def close(self) -> Deferred[None]:
        """Hang up. What has not had its turn fails; what is under way has a few seconds to end."""
        self._is_closed = True
        cutting = self._clock.callLater(CLOSE_S, self._cut)

        def hang_up() -> Deferred[None]:
            if cutting.active():
                cutting.cancel()
            closed: Deferred[None] = self._in_thread(self._hang_up)
            return closed

        closed: Deferred[None] = self._turn.run(hang_up)
        return closed

    # On the reactor thread.

    def _run(self, job: Callable[[Connection], Result]) -> Deferred[Result]:
        if self._is_closed:
            return fail(DatabaseAway("the storage is closed"))
        self._is_cut = False
        cutting = self._clock.callLater(self._timeout_s, self._cut)

        def ended(result: Any) -> Any:
            if cutting.active():
                cutting.cancel()
            return result

        done: Deferred[Result] = self._in_thread(self._work, job)
        return done.addBoth(ended)

    def _cut(self) -> None:
        # Whoever waits for the socket is woken, and finds the connection at its end.
        self._is_cut = True
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    # In a thread.

    def _work(self, job: Callable[[Connection], Result]) -> Result:
        connection = self._connected()
        try:
            return job(connection)
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
                raise self._away(f"the database cannot be used: {failures.sentence(error)}") from None
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
        # A descriptor of its own, so that who cuts it can never hit another file that has got the number since.
        self._socket = socket.socket(fileno=os.dup(connection.fileno()))
        if self._is_cut:
            self._cut()
        self._begin(connection)
        return connection

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
