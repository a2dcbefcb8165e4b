"""`PostgresDatabase`: what a `WindowedStorage` asks of a database (`IDatabase`), as jobs for connections to PostgreSQL.

Three connections, none of which waits for another: one writes, and owns the queues; one reads; one erases, and is not
made before there is something to be erased.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from kestrel.errors import StorageError
from kestrel.storage.database import IDatabase, StoredItem, StoredQueue, WriteBatch
from kestrel.storage.interfaces import InThread
from kestrel_postgres import cleanup, queries, schema, session
from kestrel_postgres.batch_sql import Plan
from kestrel_postgres.connection import Connection, Line
from kestrel_postgres.ownership import LOCK_S, Ownership

log = Logger()

SLOWEST: Final = 1 << 20
"""Bytes in a second. A batch that was given up while it is sent comes again, and would do so for ever."""


@implementer(IDatabase)
class PostgresDatabase:
    """Queues in one schema of a PostgreSQL database (`IDatabase`).

    `conninfo` is a connection string. Whatever takes longer than `timeout_s` is given up, but for a large batch, which
    has a second more for each MiB; a lock that somebody else has is waited for `lock_s`, which is shorter.
    """

    def __init__(
        self,
        conninfo: str,
        schema: str,
        timeout_s: float,
        clock: IReactorTime,
        in_thread: InThread,
        *,
        lock_s: float = LOCK_S,
    ) -> None:
        self._schema = schema
        self._timeout_s = timeout_s
        self._lock_s = lock_s
        self._writing = Line(clock, in_thread, conninfo, timeout_s, self._begin_writing)
        self._reading = Line(clock, in_thread, conninfo, timeout_s, self._begin)
        self._sweeping = Line(clock, in_thread, conninfo, timeout_s, self._begin)
        # Of the reactor thread: the batch that reads must see.
        self._number = 0
        self._is_something_left = False
        self._is_erasing = False
        self._is_closed = False
        # Of the thread that has the connection that writes.
        self._ownership = Ownership()
        self._queues: dict[bytes, queries.Queue] = {}

    # What a storage asks.

    def list_queues(self) -> Deferred[Sequence[StoredQueue]]:
        """Take the queues, and tell which there are. The tables are made where there are none."""

        def listed(found: tuple[list[StoredQueue], bool]) -> list[StoredQueue]:
            queues, has_leftovers = found
            if has_leftovers:
                self._sweep()
            return queues

        return self._writing.run(self._list).addCallback(listed)

    def read_after(self, name: bytes, position: int, n: int, max_bytes: int) -> Deferred[Sequence[StoredItem]]:
        """The items of that queue behind that position, lowest first."""
        epoch, number = self._ownership.epoch, self._number

        def read(connection: Connection) -> Sequence[StoredItem]:
            return queries.read_after(connection, name, position, n, max_bytes, epoch=epoch, number=number)

        return self._reading.run(read)

    def apply(self, batch: WriteBatch) -> Deferred[None]:
        """Do all of that batch in one transaction."""

        def applied(leaves_something: bool) -> None:
            self._number = batch.number
            if leaves_something:
                self._sweep()

        size = sum(len(item.data) for changes in batch.changes for item in changes.puts)
        writing = self._writing.run(lambda connection: self._apply(connection, batch), size // SLOWEST)
        return writing.addCallback(applied)

    def close(self) -> Deferred[None]:
        """Hang up. Closing the connection that writes lets go of the queues."""
        self._is_closed = True
        lines = [line.close() for line in (self._sweeping, self._reading, self._writing)]
        return DeferredList(lines, consumeErrors=True).addCallback(lambda _: None)

    # In threads.

    def _begin(self, connection: Connection) -> None:
        session.begin(connection, self._schema, self._timeout_s, self._lock_s)

    def _begin_writing(self, connection: Connection) -> None:
        self._begin(connection)
        if self._ownership.epoch is None:
            schema.ensure(connection, self._schema)
        self._ownership.claim(connection)
        # With each connection anew: the answer to the last batch may be what got lost with the one before.
        self._queues = {queue.stored.name: queue for queue in queries.list_queues(connection)}

    def _list(self, connection: Connection) -> tuple[list[StoredQueue], bool]:
        return [queue.stored for queue in self._queues.values()], cleanup.has_leftovers(connection)

    def _apply(self, connection: Connection, batch: WriteBatch) -> bool:
        """Returns whether there is something to be erased now."""
        ownership = self._ownership
        if batch.number == ownership.number:
            return True  # it was applied, and its answer got lost, with what it said of that
        if batch.number < ownership.number:
            raise StorageError(f"batch {batch.number} comes after batch {ownership.number}")
        plan = Plan(batch, self._queues, ownership.next_queue)
        # All of it is sent at once, and answered at once. What follows a statement that fails is not done.
        with connection.pipeline():
            connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
            ownership.fence(connection, batch.number, plan.next_queue)
            for statement, parameters in plan.statements():
                connection.execute(statement, parameters, binary=True)
            connection.execute("COMMIT")
        ownership.number = batch.number
        ownership.next_queue = plan.next_queue
        plan.bring_up_to_date(self._queues)
        return bool(plan.left)

    # Erasing.

    def _sweep(self) -> None:
        """Erase one slice after the other, until nothing is left or it fails."""
        self._is_something_left = True
        if not self._is_erasing:
            self._erase()

    def _erase(self) -> None:
        self._is_erasing = self._is_something_left and not self._is_closed
        if self._is_erasing:
            self._is_something_left = False
            self._sweeping.run(cleanup.erase_slice).addCallbacks(self._erased, self._not_erased)

    def _erased(self, is_something_left: bool) -> None:
        self._is_something_left |= is_something_left  # a batch may have left more since this one looked
        self._erase()

    def _not_erased(self, failure: Failure) -> None:
        self._is_erasing = False
        if not self._is_closed:  # the next batch that leaves something, or the next start, goes on with it
            log.warn(
                "What deleted queues have left in the database is not erased yet: {reason}",
                reason=failure.getErrorMessage(),
            )
