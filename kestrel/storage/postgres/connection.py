"""A database connection for one job at a time, opened on demand and closed if the database does not reply.

Its parameters and the settings of each session are at the end.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus
from psycopg.types.numeric import Int8BinaryDumper
from twisted.internet.defer import Deferred, fail
from twisted.internet.interfaces import IReactorTime

from kestrel.errors import DatabaseAway, OwnershipLost, StorageError, StorageRefused
from kestrel.storage.interfaces import InThread

TAKEN_OVER: Final = "another server has taken the queues over; to take them back, restart this server"

DISK_FULL: Final = "53100"
READ_ONLY: Final = "25006"
NOT_NULL: Final = "23502"

NOT_REPLICATED: Final = "SyncRepWaitForLSN"
"""Function in PostgreSQL that warns if a commit stops waiting for its synchronous standby.

`pg_cancel_backend` or a timeout causes this. The name does not depend on the language of the server, and only this
warning distinguishes such a commit from a safe one.
"""

PASSING: Final = (
    "40",  # deadlock, serialization failure
    "53",  # not enough memory, connections or other resources
    "55P03",  # another session holds a lock
    "57",  # operator intervention, shutdown, timeout
)
"""Prefixes of SQLSTATEs that do not depend on the batch, which can be retried."""


def storage_error(error: psycopg.Error) -> StorageError:
    """Return the storage error for an error after which the database has rolled back."""
    state = error.sqlstate or ""
    if state == DISK_FULL:
        return StorageRefused(error_line(error))
    if state == READ_ONLY:
        return DatabaseAway("the database takes no writes: it is a standby, or was made read-only")
    if state == NOT_NULL and error.diag.table_name == "owner":  # see ownership.FENCE
        return OwnershipLost(TAKEN_OVER)
    if state.startswith(PASSING):
        return DatabaseAway(f"the database cannot do it now: {error_line(error)}")
    return StorageError(error_line(error))


def error_line(error: psycopg.Error) -> str:
    """Return an error in one line, without its details, which may contain items."""
    said = error.diag.message_primary or str(error) or type(error).__name__
    line = "; ".join(part.strip() for part in said.splitlines() if part.strip())
    return f"{line} ({error.sqlstate})" if error.sqlstate else line


Connection: TypeAlias = "psycopg.Connection[tuple[Any, ...]]"

Result = TypeVar("Result")

# psycopg logs warnings of errors that it also raises. Without a handler they would go to stderr.
logging.getLogger("psycopg").addHandler(logging.NullHandler())

CLOSE_S: Final = 5.0
"""Time that a running job may still take when the line is closed."""

CLOSED: Final = "the storage is closed"


class _Asked(NamedTuple):
    """A job in the queue of a line."""

    job: Callable[[Connection], Any]
    more_s: float
    answer: Deferred[Any]


class Line:
    """A connection that runs jobs in a thread, one after another.

    `begin` is called in the thread with each new connection, before the first job. If a job takes longer than
    `timeout_s` plus its own extra time, its connection is shut down. This covers a database that hangs, which no
    timeout of TCP detects, and a dead network, which no timeout of the database detects.
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
        # The following attributes belong to the thread of the job.
        self._connection: Connection | None = None
        self._is_unsafe = False
        self._why_not: str | None = None
        """Reason why the last attempt to connect has failed, or None."""
        # The reactor thread shuts the socket down while the thread of the job may be closing it.
        self._cutting = threading.Lock()
        self._socket: socket.socket | None = None
        self._is_cut = False

    def run(self, job: Callable[[Connection], Result], more_s: float = 0) -> Deferred[Result]:
        """Call the job with the connection in a thread, and return its result. It may take `more_s` beyond the timeout.

        The Deferred fails with the exception of the job, or with the `storage_error` of an error of the database.
        `DatabaseAway` means that the connection is lost or cannot be opened. After every other error the database has
        rolled back. If the connection cannot be opened, all waiting jobs fail too, because each further attempt would
        take time.
        """
        if self._is_closed:
            return fail(DatabaseAway(CLOSED))
        answer: Deferred[Result] = Deferred()
        self._waiting.append(_Asked(job, more_s, answer))
        self._go_on()
        return answer

    def close(self) -> Deferred[None]:
        """Close the connection. Waiting jobs fail, and a running job has `CLOSE_S` to end."""
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
        # The shutdown wakes the thread that waits for the socket, which then sees the end of the connection.
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
            # The original traceback may contain data of the statement.
            raise self._meaning(connection, error) from None
        except BaseException:
            self._hang_up()
            raise

    def _connected(self) -> Connection:
        if self._connection is None:
            try:
                return self._connect()
            except psycopg.Error as error:
                # The error says nothing about the waiting batch, which may have been applied before.
                self._hang_up()
                away = self._away(f"the database cannot be used: {error_line(error)}")
                self._why_not = str(away)
                raise away from None
            except BaseException:
                self._hang_up()
                raise
        return self._connection

    def _connect(self) -> Connection:
        # Prepare each statement at its first use, because there are few and they are used often.
        connection = psycopg.connect(self._conninfo, autocommit=True, prepare_threshold=0)
        self._connection = connection
        # All numbers are bigint. psycopg would choose types by value, and prepare a statement for each choice.
        connection.adapters.register_dumper(int, Int8BinaryDumper)
        connection.add_notice_handler(self._noticed)
        # A separate descriptor, so that a late shutdown cannot hit another file with a reused number.
        self._socket = socket.socket(fileno=os.dup(connection.fileno()))
        if self._is_cut:
            self._cut()
        self._begin(connection)
        self._check_is_safe()
        return connection

    def _noticed(self, notice: psycopg.errors.Diagnostic) -> None:
        if notice.source_function == NOT_REPLICATED:
            self._is_unsafe = True

    def _check_is_safe(self) -> None:
        is_unsafe, self._is_unsafe = self._is_unsafe, False
        if is_unsafe:
            # The next connection begins with a commit. When that is safe, all earlier commits are safe too.
            raise DatabaseAway("the commit is not on its synchronous standby: the wait for the standby was cancelled")

    def _meaning(self, connection: Connection, error: psycopg.Error) -> Exception:
        if not _is_alive_after_rollback(connection):
            self._hang_up()
            return self._away(f"the connection is lost: {error_line(error)}")
        if error.sqlstate == READ_ONLY:
            # Another server may be the primary now.
            self._hang_up()
        return storage_error(error)

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
    """Roll back. Return True if the connection works and has no open transaction."""
    if connection.info.transaction_status is TransactionStatus.INERROR:
        with suppress(psycopg.Error):
            connection.execute("ROLLBACK")
    return connection.info.transaction_status is TransactionStatus.IDLE


OLDEST: Final = 140_000
"""PostgreSQL 14, the first version that notices a disconnected client while it runs a statement."""

CONNECT: Final[Mapping[str, str]] = {
    "connect_timeout": "10",
    # A dead network is noticed after 10 + 3 * 5 s on an idle connection, and after 30 s if sent data is not
    # acknowledged.
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
    # Connect to the host that accepts writes. A standby is useless.
    "target_session_attrs": "read-write",
    # An isolated primary still accepts connections, but cannot commit without its standby. With a fixed order, each
    # attempt would reach it before the new primary.
    "load_balance_hosts": "random",
    "application_name": "kestrel",
    "client_encoding": "UTF8",
}
"""Connection parameters that the connection string may override."""

SESSION: Final[Mapping[str, str]] = {
    # These let the database notice a dead network. Until then our dead session still holds the lock.
    "tcp_keepalives_idle": "10s",
    "tcp_keepalives_interval": "5s",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "30s",
    # Every statement should scan an index over just the rows that it needs. The planner knows a queue only as of the
    # last ANALYZE, and would sometimes choose to read and sort a whole table or queue. A generic plan saves planning
    # again.
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
}


def begin_session(connection: Connection, schema: str, timeout_s: float, lock_s: float) -> None:
    """Apply the settings to a new session. Raises `StorageError` if the server is too old."""
    if connection.info.server_version < OLDEST:
        raise StorageError("the database is older than PostgreSQL 14")
    timeout = f"{round(timeout_s * 1000)}ms"
    settings = {
        **SESSION,
        "search_path": sql.Identifier(schema).as_string(connection),
        "lock_timeout": f"{round(lock_s * 1000)}ms",
        # Ends a disconnected session, which still holds its locks.
        "statement_timeout": timeout,
        "idle_in_transaction_session_timeout": timeout,
    }
    connection.execute(
        "SELECT set_config(name, value, false) FROM unnest(%s::text[], %s::text[]) AS t(name, value)",
        (list(settings), list(settings.values())),
    )
    # Detects a disconnected client during a statement. Servers on some systems do not support it.
    with suppress(psycopg.errors.InvalidParameterValue):
        connection.execute("SET client_connection_check_interval = '1s'")
