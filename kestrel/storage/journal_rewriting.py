"""A queue's older files are replaced by one, in threads, while the queue goes on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger

from kestrel.journal.fileset import rotated_name, temporary_name
from kestrel.journal.pack import Stopped, publish, write_temporary
from kestrel.journal.rewrite import Replacement
from kestrel.storage.journal_queue import JournalQueue
from kestrel.storage.journal_services import Services

log = Logger()


class Phase(Enum):
    """How far a replacement is. Only PUBLISHING cannot be stopped: it is over at once, and leaves a whole journal."""

    WAITING = "waiting"
    WRITING = "writing"
    WRITTEN = "written"
    PUBLISHING = "publishing"
    OVER = "over"


class HalfPublished(OSError):
    """The new file may have its place, and some of the old ones theirs."""


class _Run:
    """One replacement under way."""

    def __init__(self, is_urgent: bool) -> None:
        self.is_urgent = is_urgent
        self.phase = Phase.WAITING
        self.is_stopped = False
        self.waiting: list[Deferred[None]] = []


class Rewriting:
    """The replacements of one queue's files, one at a time."""

    def __init__(self, queue: JournalQueue, services: Services) -> None:
        self._queue = queue
        self._services = services
        self._run: _Run | None = None

    @property
    def is_running(self) -> bool:
        """Whether one is under way."""
        return self._run is not None

    @property
    def is_publishing(self) -> bool:
        """Whether a thread is renaming the queue's files."""
        return self._run is not None and self._run.phase is Phase.PUBLISHING

    def published(self) -> Deferred[None]:
        """Fires when no thread is renaming the queue's files."""
        return self._wait_for(self._run) if self._run is not None and self.is_publishing else succeed(None)

    def stop(self) -> Deferred[None]:
        """Give up what is under way; fires when no thread is at work on it."""
        run = self._run
        if run is None:
            return succeed(None)
        run.is_stopped = True
        if run.phase in (Phase.WRITING, Phase.PUBLISHING):
            return self._wait_for(run)
        self._run = None
        return succeed(None)

    def stop_if_it_can_wait(self) -> None:
        """Give up what is under way, unless it is urgent."""
        if self._run is not None and not self._run.is_urgent:
            self.stop()

    def _wait_for(self, run: _Run) -> Deferred[None]:
        done: Deferred[None] = Deferred()
        run.waiting.append(done)
        return done

    async def replace(
        self,
        replacement: Replacement,
        *,
        before_publishing: Callable[[], Awaitable[None]] | None = None,
        is_urgent: bool = False,
    ) -> None:
        """Write the new file, and let it take its place when `before_publishing` is done.

        Raises `Stopped`, OSError, or what `before_publishing` raises; then the files are as they were. After
        `HalfPublished` only a new start of the queue tells what they are. Urgent ones do not wait for other queues'.
        """
        run = self._run = _Run(is_urgent)
        slots = self._services.rewriting
        if not is_urgent:
            await slots.acquire()
        try:
            await self._write(run, replacement)
            if before_publishing is not None:
                await before_publishing()
            await self._publish(run, replacement)
        finally:
            if not is_urgent:
                slots.release()
            self._set_phase(run, Phase.OVER)
            if self._run is run:
                self._run = None

    def _set_phase(self, run: _Run, phase: Phase) -> None:
        run.phase = phase
        waiting, run.waiting = run.waiting, []
        for done in waiting:
            done.callback(None)

    async def _write(self, run: _Run, replacement: Replacement) -> None:
        if run.is_stopped:
            raise Stopped
        queue, services = self._queue, self._services
        number = replacement.boundary.number
        runs = replacement.runs(services.disk, services.folder, queue.history.up_to(number))
        run.phase = Phase.WRITING
        await services.jobs.run(
            write_temporary, services.disk, services.folder, queue.name, number, runs, lambda: run.is_stopped
        )
        self._set_phase(run, Phase.WRITTEN)

    async def _publish(self, run: _Run, replacement: Replacement) -> None:
        queue, services = self._queue, self._services
        disk, folder, number = services.disk, services.folder, replacement.boundary.number
        if run.is_stopped:
            await services.jobs.run(disk.erase, folder + b"/" + temporary_name(queue.name, number))
            raise Stopped
        replaced = [span.file_name for span in queue.history.up_to(number)]
        run.phase = Phase.PUBLISHING
        try:
            left = await services.jobs.run(publish, disk, folder, queue.name, number, replaced, replacement.size)
        except OSError as error:
            raise HalfPublished(error.errno, error.strerror) from error
        if queue.is_deleted:  # what was renamed while the others went must go as well
            left += [folder + b"/" + rotated_name(queue.name, number)]
        elif queue.failure is None:
            queue.replaced(replacement)
        for path in left:
            services.jobs.run(disk.erase, path).addErrback(
                lambda failure: log.failure("A replaced journal file could not be erased", failure)
            )
