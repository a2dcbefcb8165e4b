"""The reader file of a new queue, which must say where the queue begins before anything else can be safe in it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from kestrel.disk.files import is_full
from kestrel.errors import QueueFailed
from kestrel.scroll.reader_file import ReaderState, encode_state
from kestrel.storage.failures import error_of, reason_of
from kestrel.storage.scroll.files import replace_file, write_file
from kestrel.storage.scroll.queue import ScrollQueue
from kestrel.storage.scroll.services import ScrollServices

log = Logger(__name__)


class Births:
    """Queues whose reader files are being made, and the commits that wait for that.

    `made` and `not_made` are called when a file is there, and when it cannot be. `make_room` gives up the reserve of a
    full medium; it returns False when the reserve is gone already.
    """

    def __init__(
        self,
        services: ScrollServices,
        made: Callable[[ScrollQueue], None],
        not_made: Callable[[ScrollQueue, QueueFailed], None],
        make_room: Callable[[], bool],
    ) -> None:
        self._services = services
        self._made = made
        self._not_made = not_made
        self._make_room = make_room
        self._waiting: dict[ScrollQueue, list[Deferred[None]]] = {}

    def at_once(self, queue: ScrollQueue) -> None:
        """Make the file of a queue that begins at the first item of its journal. Raises OSError.

        Without a file the queue would begin there as well, so the file need not be on the medium.
        """
        contents = encode_state(ReaderState())
        services = self._services
        replace_file(services.disk, queue.file.path, contents, services.numbers.next(), is_synced=False)
        queue.file.replaced(len(contents))

    def at_once_if_there_is_room(self, queue: ScrollQueue) -> None:
        """Make the file, but on a full medium leave that to the first commit that has something to write to it."""
        try:
            self.at_once(queue)
        except OSError as error:
            if not is_full(error):
                raise

    def begin(self, queue: ScrollQueue) -> None:
        """Make the file of any other queue in a thread. An empty file would give the queue items older than it."""
        self._waiting[queue] = []
        self._write(queue)

    def _write(self, queue: ScrollQueue) -> None:
        services, contents = self._services, queue.checkpoint()
        write = partial(write_file, is_synced=True)
        writing = services.jobs.run(write, services.disk, queue.file.path, contents, services.numbers.next())
        writing.addCallback(self._publish, queue, len(contents)).addErrback(self._failed, queue)

    def wait_for(self, queue: ScrollQueue) -> Deferred[None] | None:
        """None for a queue that has its file; else fires when it has, or fails with `QueueFailed`."""
        if queue not in self._waiting:
            return None
        made: Deferred[None] = Deferred()
        self._waiting[queue].append(made)
        return made

    def _publish(self, temporary: bytes, queue: ScrollQueue, size: int) -> None:
        disk = self._services.disk
        try:
            if queue.failure is None:
                disk.rename(temporary, queue.file.path)
                queue.end_checkpoint(size)
                self._made(queue)
            else:
                disk.erase(temporary)
        except OSError:
            with suppress(OSError):
                disk.erase(temporary)
            raise
        for done in self._waiting.pop(queue):
            done.callback(None)

    def _failed(self, failure: Failure, queue: ScrollQueue) -> None:
        cause = error_of(failure)
        if queue.failure is None and isinstance(cause, OSError) and is_full(cause) and self._make_room():
            self._write(queue)
            return
        error = QueueFailed(f"the queue cannot be made: {reason_of(cause)}")
        log.error("Queue {queue!r}: {reason}", queue=queue.name, reason=str(error))
        if queue.failure is None:
            self._not_made(queue, error)
        for done in self._waiting.pop(queue):
            done.errback(error)
