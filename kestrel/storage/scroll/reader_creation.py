"""Creation of reader files. A queue's reader file must record where the queue begins before its items are durable."""

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
from kestrel.storage.scroll.scroll_resources import ScrollResources

log = Logger(__name__)


class ReaderFileCreation:
    """The queues whose reader files are being created, and the commits that wait for these files.

    `created` is called when a file exists, and `creation_failed` when it cannot be created. `release_reserve` frees the
    disk reserve; it returns False if the reserve was already used.
    """

    def __init__(
        self,
        resources: ScrollResources,
        created: Callable[[ScrollQueue], None],
        creation_failed: Callable[[ScrollQueue, QueueFailed], None],
        release_reserve: Callable[[], bool],
    ) -> None:
        self._resources = resources
        self._created = created
        self._creation_failed = creation_failed
        self._release_reserve = release_reserve
        self._waiting: dict[ScrollQueue, list[Deferred[None]]] = {}

    def create_now(self, queue: ScrollQueue) -> None:
        """Create the reader file of a queue that begins at the first item of its journal. Raises OSError.

        The file is not synced, because a queue without a file begins there too.
        """
        contents = encode_state(ReaderState())
        resources = self._resources
        replace_file(resources.disk, queue.file.path, contents, resources.numbers.next(), is_synced=False)
        queue.file.replaced(len(contents))

    def create_now_unless_full(self, queue: ScrollQueue) -> None:
        """Create the reader file as `create_now`, but ignore a full disk. Raises OSError.

        On a full disk, the first commit that writes to the file creates it.
        """
        try:
            self.create_now(queue)
        except OSError as error:
            if not is_full(error):
                raise

    def begin(self, queue: ScrollQueue) -> None:
        """Create and sync the reader file of a queue whose journal has items, in a thread.

        Without a synced file, a power failure would give the queue items that are older than the queue.
        """
        self._waiting[queue] = []
        self._write(queue)

    def _write(self, queue: ScrollQueue) -> None:
        """Write a temporary reader file in a thread, then publish it."""
        resources, contents = self._resources, queue.checkpoint()
        write = partial(write_file, is_synced=True)
        writing = resources.jobs.run(write, resources.disk, queue.file.path, contents, resources.numbers.next())
        writing.addCallback(self._publish, queue, len(contents)).addErrback(self._failed, queue)

    def wait_for(self, queue: ScrollQueue) -> Deferred[None] | None:
        """Return None if the queue's file is not being created, or a Deferred that fires when it exists.

        The Deferred fails with `QueueFailed` if the file cannot be created.
        """
        if queue not in self._waiting:
            return None
        created: Deferred[None] = Deferred()
        self._waiting[queue].append(created)
        return created

    def _publish(self, temporary: bytes, queue: ScrollQueue, size: int) -> None:
        """Rename a temporary reader file to its final name and fire the waiting commits. Raises OSError."""
        disk = self._resources.disk
        try:
            if queue.failure is None:
                disk.rename(temporary, queue.file.path)
                queue.end_checkpoint(size)
                self._created(queue)
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
        if queue.failure is None and isinstance(cause, OSError) and is_full(cause) and self._release_reserve():
            self._write(queue)
            return
        error = QueueFailed(f"the queue cannot be created: {reason_of(cause)}")
        log.error("Queue {queue!r}: {reason}", queue=queue.name, reason=str(error))
        if queue.failure is None:
            self._creation_failed(queue, error)
        for done in self._waiting.pop(queue):
            done.errback(error)
