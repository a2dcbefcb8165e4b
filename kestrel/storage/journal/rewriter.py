"""A queue's older files are replaced by one, in threads, while the queue goes on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger

from kestrel.disk.files import Disk
from kestrel.journal.fileset import pack_name, rotated_name, temporary_name
from kestrel.journal.pack import WriteStopped, publish, write_temporary
from kestrel.journal.rewrite import ReplacementRecords
from kestrel.storage.folder_resources import FolderResources
from kestrel.storage.journal.queue import JournalQueue

log = Logger(__name__)


class RewritePhase(Enum):
    """How far a replacement is. Only PUBLISHING cannot be stopped: it is over at once, and leaves a whole journal."""

    WAITING = "waiting"
    WRITING = "writing"
    WRITTEN = "written"
    PUBLISHING = "publishing"
    OVER = "over"


class _ActiveRewrite:
    """One replacement under way."""

    def __init__(self, is_urgent: bool) -> None:
        self.is_urgent = is_urgent
        self.phase = RewritePhase.WAITING
        self.is_stopped = False
        self._waiting: list[Deferred[None]] = []

    def enter(self, phase: RewritePhase) -> None:
        """It has come so far."""
        self.phase = phase
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done.callback(None)

    def next_phase(self) -> Deferred[None]:
        """Fires when the present phase is over."""
        done: Deferred[None] = Deferred()
        self._waiting.append(done)
        return done


class JournalRewriter:
    """The replacements of one queue's files, one at a time."""

    def __init__(self, queue: JournalQueue, resources: FolderResources) -> None:
        self._queue = queue
        self._resources = resources
        self._active: _ActiveRewrite | None = None

    @property
    def is_running(self) -> bool:
        """Whether one is under way."""
        return self._active is not None

    @property
    def is_publishing(self) -> bool:
        """Whether a thread is renaming the queue's files."""
        return self._active is not None and self._active.phase is RewritePhase.PUBLISHING

    def published(self) -> Deferred[None]:
        """Fires when no thread is renaming the queue's files."""
        return self._active.next_phase() if self._active is not None and self.is_publishing else succeed(None)

    def stop(self) -> Deferred[None]:
        """Give up what is under way; fires when no thread is at work on it."""
        run = self._active
        if run is None:
            return succeed(None)
        run.is_stopped = True
        if run.phase in (RewritePhase.WRITING, RewritePhase.PUBLISHING):
            return run.next_phase()
        self._active = None
        return succeed(None)

    def stop_unless_urgent(self) -> None:
        """Give up what is under way, unless it is urgent."""
        if self._active is not None and not self._active.is_urgent:
            self.stop()

    async def replace(
        self,
        replacement: ReplacementRecords,
        *,
        before_publishing: Callable[[], Awaitable[None]] | None = None,
        is_urgent: bool = False,
    ) -> None:
        """Write the new file, and put it in place when `before_publishing` is done.

        Raises `WriteStopped`, OSError, or the error of `before_publishing`. The files are then unchanged. After
        `PublishIncomplete` the new file counts, and the queue must be opened again. An urgent rewrite does not wait for
        others.
        """
        run = self._active = _ActiveRewrite(is_urgent)
        slots = self._resources.rewrite_slots
        if not is_urgent:
            await slots.acquire()
        try:
            self._enter(run, RewritePhase.WRITING)
            await self._in_thread(self._write, replacement, replacement, lambda: run.is_stopped)
            run.enter(RewritePhase.WRITTEN)
            try:
                if before_publishing is not None:
                    await before_publishing()
                self._enter(run, RewritePhase.PUBLISHING)
            except BaseException:
                self._erase(temporary_name(self._queue.name, replacement.boundary.number))
                raise
            await self._publish(run, replacement)
        finally:
            if not is_urgent:
                slots.release()
            run.enter(RewritePhase.OVER)
            if self._active is run:
                self._active = None

    def _enter(self, run: _ActiveRewrite, phase: RewritePhase) -> None:
        if run.is_stopped:
            raise WriteStopped
        run.enter(phase)

    def _in_thread(self, function: Callable[..., Any], replacement: ReplacementRecords, *args: object) -> Deferred[Any]:
        resources = self._resources
        number = replacement.boundary.number
        return resources.jobs.run(function, resources.disk, resources.folder, self._queue.name, number, *args)

    def _write(
        self,
        disk: Disk,
        folder: bytes,
        queue: bytes,
        number: int,
        replacement: ReplacementRecords,
        is_stopped: Callable[[], bool],
    ) -> None:
        runs = replacement.runs(disk, folder, self._queue.history.rotated_up_to(number))
        write_temporary(disk, folder, queue, number, runs, replacement.most_bytes(), is_stopped)

    async def _publish(self, run: _ActiveRewrite, replacement: ReplacementRecords) -> None:
        queue, number = self._queue, replacement.boundary.number
        replaced = [span.file_name for span in queue.history.rotated_up_to(number)]
        try:
            left = await self._in_thread(publish, replacement, replaced, replacement.size)
        except OSError:
            if not queue.is_deleted:
                self._erase(temporary_name(queue.name, number))
                raise
            left = [pack_name(queue.name, number)]
        if queue.is_deleted:  # what was renamed while the other files went goes as well
            left.append(rotated_name(queue.name, number))
        elif queue.failure is None:
            queue.replaced(replacement)
        for name in left:
            self._erase(name)

    def _erase(self, name: bytes) -> None:
        resources = self._resources
        resources.jobs.run(resources.disk.erase, resources.folder + b"/" + name).addErrback(
            lambda failure: log.failure("A journal file that is not needed any more could not be erased", failure)
        )
