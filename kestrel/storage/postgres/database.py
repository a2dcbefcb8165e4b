"""`PostgresDatabase`, which implements `IDatabase` with three independent connections to PostgreSQL.

One connection writes and owns the queues, one reads, and one deletes the items of removed queues. The last is opened
only when needed.
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
from kestrel.storage.postgres import queries, schema
from kestrel.storage.postgres.batch_sql import Plan
from kestrel.storage.postgres.connection import Connection, Line, begin_session
from kestrel.storage.postgres.ownership import LOCK_S, Ownership

log = Logger(__name__)

SLOWEST: Final = 1 << 20
"""Lowest assumed network speed, in bytes per second. A large batch gets more time, or it would be retried forever."""


@implementer(IDatabase)
class PostgresDatabase:
    """Queues in one schema of a PostgreSQL database.

    `conninfo` is a connection string. A job fails after `timeout_s`; a batch has one more second for each MiB. `lock_s`
    is the time limit for acquiring a lock, and must be shorter than `timeout_s`.
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
        # The following attributes belong to the reactor thread. Reads must see the batch of this number.
        self._number = 0
        self._is_something_left = False
        self._is_erasing = False
        self._is_closed = False
        # The following attributes belong to the thread of the write connection.
        self._ownership = Ownership()
        self._queues: dict[bytes, queries.QueueRow] = {}

    # IDatabase.

    def list_queues(self) -> Deferred[Sequence[StoredQueue]]:
        """Take ownership of the queues, and return all of them. Create missing tables."""

        def listed(found: tuple[list[StoredQueue], bool]) -> list[StoredQueue]:
            queues, has_leftovers = found
            if has_leftovers:
                self._sweep()
            return queues

        return self._writing.run(self._list).addCallback(listed)

    def read_after(self, name: bytes, position: int, n: int, max_bytes: int) -> Deferred[Sequence[StoredItem]]:
        """Return up to `n` items of a queue above a position, lowest first, with at most `max_bytes` of data."""
        epoch, number = self._ownership.epoch, self._number

        def read(connection: Connection) -> Sequence[StoredItem]:
            return queries.read_after(connection, name, position, n, max_bytes, epoch=epoch, number=number)

        return self._reading.run(read)

    def apply(self, batch: WriteBatch) -> Deferred[None]:
        """Apply all changes of a batch in one transaction."""

        def applied(leaves_something: bool) -> None:
            self._number = batch.number
            if leaves_something:
                self._sweep()

        size = sum(len(item.data) for changes in batch.changes for item in changes.puts)
        writing = self._writing.run(lambda connection: self._apply(connection, batch), size // SLOWEST)
        return writing.addCallback(applied)

    def close(self) -> Deferred[None]:
        """Close all connections. Closing the write connection releases the queues."""
        self._is_closed = True
        lines = [line.close() for line in (self._sweeping, self._reading, self._writing)]
        return DeferredList(lines, consumeErrors=True).addCallback(lambda _: None)

    # In threads.

    def _begin(self, connection: Connection) -> None:
        begin_session(connection, self._schema, self._timeout_s, self._lock_s)

    def _begin_writing(self, connection: Connection) -> None:
        self._begin(connection)
        if self._ownership.epoch is None:
            schema.ensure(connection, self._schema)
        self._ownership.claim(connection)
        # Read for each connection, because the reply to the last batch may have been lost with the previous one.
        self._queues = {queue.stored.name: queue for queue in queries.list_queues(connection)}

    def _list(self, connection: Connection) -> tuple[list[StoredQueue], bool]:
        return [queue.stored for queue in self._queues.values()], queries.has_leftovers(connection)

    def _apply(self, connection: Connection, batch: WriteBatch) -> bool:
        """Apply a batch. Return True if items of abandoned ids may remain."""
        ownership = self._ownership
        if batch.number == ownership.number:
            # The batch was applied, but the reply, which would say if items remain, was lost.
            return True
        if batch.number < ownership.number:
            raise StorageError(f"batch {batch.number} comes after batch {ownership.number}")
        plan = Plan(batch, self._queues, ownership.next_queue)
        # The pipeline sends all statements at once. After a failed statement the rest is skipped.
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

    # Deleting items of abandoned ids.

    def _sweep(self) -> None:
        """Delete slices until none remains or one fails."""
        self._is_something_left = True
        if not self._is_erasing:
            self._erase()

    def _erase(self) -> None:
        self._is_erasing = self._is_something_left and not self._is_closed
        if self._is_erasing:
            self._is_something_left = False
            self._sweeping.run(queries.erase_slice).addCallbacks(self._erased, self._not_erased)

    def _erased(self, is_something_left: bool) -> None:
        # A batch may have abandoned another id meanwhile.
        self._is_something_left |= is_something_left
        self._erase()

    def _not_erased(self, failure: Failure) -> None:
        self._is_erasing = False
        # The next batch that abandons an id, or the next start, continues.
        if not self._is_closed:
            log.warn(
                "The data of deleted queues is not erased yet and uses space in the database: {reason}",
                reason=failure.getErrorMessage(),
            )
