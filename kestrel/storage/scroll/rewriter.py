"""Rewriting of a scroll's files: exact copies after a failed sync, and compaction of reader files that have grown."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Final, NamedTuple

from twisted.logger import Logger

from kestrel.disk import crash_points
from kestrel.disk.copy import erased_on_error
from kestrel.disk.files import Disk
from kestrel.disk.reader import FileReader
from kestrel.scroll.reader_file import encode_state, read_state
from kestrel.scroll.writer_file import WriterFile
from kestrel.storage.failures import reason_of
from kestrel.storage.folder_resources import FolderResources
from kestrel.storage.log.sync_scheduler import RETRY_S
from kestrel.storage.scroll.files import copy_file, write_file
from kestrel.storage.scroll.journal import ScrollJournal
from kestrel.storage.scroll.queue import ScrollQueue

log = Logger(__name__)

# A reader file is compacted when it exceeds one of these sizes and is twice as large as after its last rewrite.

COMPACTED_BYTES: Final = 4096
"""Size that is checked at each checkpoint."""

LARGEST_BYTES: Final = 1 << 20
"""Size that is checked after each write."""

COMPACTED_ON_A_FULL_DISK: Final = 512
"""Size that is checked after each write on a full disk, so that gets and confirms do not run out of space."""


class _Copy(NamedTuple):
    """A file to rewrite: an exact copy of its first `size` bytes, or a compacted reader file."""

    owner: WriterFile | ScrollQueue
    """The writer file, or the queue whose reader file is rewritten."""
    path: bytes
    size: int
    is_compacted: bool
    contents: bytes | None
    """Content of a compacted reader file, or None to compact what the file contains."""


class ScrollRewriter:
    """A rewriter for the files of one journal. Nothing may be written to the files while it runs."""

    def __init__(self, journal: ScrollJournal, resources: FolderResources) -> None:
        self._journal = journal
        self._resources = resources
        self._grown: dict[ScrollQueue, None] = {}
        """Readers whose files must be compacted, in order. The values are unused."""
        self._not_before_s = 0.0
        """Time before which no reader file is compacted, because the last attempt failed."""

    # Compaction of reader files.

    @property
    def has_grown(self) -> bool:
        """True if there are reader files to compact."""
        return bool(self._grown)

    @property
    def is_compaction_due(self) -> bool:
        """True if there are reader files to compact, and no attempt has just failed."""
        return bool(self._grown) and self._resources.jobs.seconds() >= self._not_before_s

    def note_growth(self, queues: Sequence[ScrollQueue]) -> None:
        """Note which of the reader files just written to must be compacted."""
        for queue in queues:
            least = COMPACTED_ON_A_FULL_DISK if self._resources.is_disk_full() else LARGEST_BYTES
            if queue.file.size > max(least, 2 * queue.compacted_bytes):
                self._grown[queue] = None

    def note_checkpoint(self, queues: Sequence[ScrollQueue]) -> None:
        """Note which reader files have grown or do not record their readers' current state."""
        for queue in queues:
            if not queue.file.size:
                continue  # the file is being created
            if queue.has_changes or queue.file.size > max(COMPACTED_BYTES, 2 * queue.compacted_bytes):
                self._grown[queue] = None

    async def compact(self) -> None:
        """Compact the reader files that have grown. Log an error, and try again later."""
        queues, self._grown = [queue for queue in self._grown if queue.failure is None], {}
        try:
            await self.write_anew([], queues, is_exact=False)
        except Exception as error:
            if self._journal.failure is not None:
                return
            log.error(
                "The reader files of scroll {stem!r} are not rewritten: {reason}",
                stem=self._journal.stem,
                reason=reason_of(error),
            )
            self._not_before_s = self._resources.jobs.seconds() + RETRY_S
            for queue in queues:
                queue.give_up_checkpoint()

    # Rewriting.

    async def write_anew(self, files: list[WriterFile], queues: list[ScrollQueue], *, is_exact: bool) -> None:
        """Rewrite the writer files in `files` and the reader files of `queues`. Raises OSError.

        Each new file is synced before it replaces the old one. If `is_exact` is true, files are copied unchanged, and
        their data and names are durable when this returns. Otherwise reader files are compacted.
        """
        journal, resources = self._journal, self._resources
        began_s = resources.jobs.seconds()
        copies = [_Copy(file, resources.path(file.file_name), file.size, False, None) for file in files]
        for queue in queues:
            # A checkpoint is durable, so it must not include changes whose commit has not written them.
            checkpoint = None if is_exact or queue.has_unwritten else queue.begin_checkpoint()
            copies.append(_Copy(queue, queue.file.path, queue.file.size, not is_exact, checkpoint))
        written = await resources.jobs.run(self._write_temporary, copies)
        with erased_on_error(resources.disk, [path for path, _ in written]):
            for copy, temporary in zip(copies, written, strict=True):
                self._publish(copy, *temporary)
        resources.record_duration(journal.name, "journal_rewrite_usec", began_s)
        if journal.sync_period_ms is None and not is_exact:
            return
        names = journal.names
        await resources.jobs.run(resources.disk.sync_folder, resources.folder)
        journal.synced_names = names
        for copy in copies if is_exact else ():
            if isinstance(copy.owner, WriterFile):
                journal.synced(copy.owner, copy.size)
            else:
                copy.owner.file.replaced(copy.size)
                journal.unsynced_readers.discard(copy.owner)

    def _write_temporary(self, copies: Sequence[_Copy]) -> list[tuple[bytes, int]]:
        """Write and sync temporary files. Return their paths and sizes. Runs in a thread and raises OSError."""
        disk, next_number = self._resources.disk, self._resources.numbers.next
        paths: list[bytes] = []
        sizes: list[int] = []
        with erased_on_error(disk, paths):
            for copy in copies:
                if copy.is_compacted:
                    contents = copy.contents or _compacted(disk, copy.path)
                    paths.append(write_file(disk, copy.path, contents, next_number(), is_synced=True))
                    sizes.append(len(contents))
                else:
                    paths.append(copy_file(disk, copy.path, copy.size, next_number()))
                    sizes.append(copy.size)
        disk.crash_point(crash_points.COPY_WRITTEN)
        return list(zip(paths, sizes, strict=True))

    def _publish(self, copy: _Copy, temporary: bytes, size: int) -> None:
        """Rename a temporary file to the file that it replaces, or erase it if that file is no longer needed."""
        disk, owner = self._resources.disk, copy.owner
        if self._journal.failure is not None:
            is_needed, path = False, b""
        elif isinstance(owner, WriterFile):
            is_needed, path = owner in self._journal.files, copy.path
        else:
            is_needed, path = not owner.is_deleted, owner.file.path
        if not is_needed:
            disk.erase(temporary)
            return
        self._journal.names += 1
        disk.rename(temporary, path)
        disk.crash_point(crash_points.COPY_PUBLISHED)
        if isinstance(owner, ScrollQueue):
            self._resources.open_files.close(owner.file)
            if copy.is_compacted:
                owner.end_compaction(size) if copy.contents is None else owner.end_checkpoint(size)
                self._journal.unsynced_readers.discard(owner)


def _compacted(disk: Disk, path: bytes) -> bytes:
    """Return the compacted content of a reader file. Raises OSError, also if the file is damaged."""
    with FileReader(disk, path) as reader:
        state, end = read_state(reader)
    if end.problem is not None:
        raise OSError(errno.EIO, f"the reader file is damaged: {end.problem}")
    return encode_state(state)
