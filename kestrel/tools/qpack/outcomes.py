"""Results of verifying and packing queues, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from kestrel.tools.files.scroll_contents import ScrollContents, ScrollQueueContents
from kestrel.tools.files.scrolls import ScrollQueueFile
from kestrel.tools.files.snapshot_files import FileReadResult
from kestrel.tools.files.summary import damage_json
from kestrel.tools.formatting import count, spell_queue


class OutcomeRemark(NamedTuple):
    """A sentence for standard error, in addition to the report."""

    sentence: str
    is_complaint: bool = True
    """True for damage or a failure, which changes the exit status."""


class QueueOutcome(NamedTuple):
    """The result for one queue, or for the folder."""

    remarks: tuple[OutcomeRemark, ...] = ()
    line: str | None = None
    """Line of the text report; None if there are only remarks."""
    fields: dict[str, Any] | None = None
    """Object of the JSON report; None if there are only remarks."""

    def text(self) -> str | None:
        """Return the line of the text report, or None."""
        return self.line

    def json(self) -> dict[str, Any] | None:
        """Return the object of the JSON report, or None."""
        return self.fields

    @property
    def complaints(self) -> Iterator[str]:
        """Sentences of the remarks that change the exit status."""
        return (remark.sentence for remark in self.remarks if remark.is_complaint)


def failed_outcome(queue: str | None, sentence: str, state: str = "failed") -> QueueOutcome:
    """Return the result for a queue that could not be read or packed.

    `queue` is None for a failure of a whole scroll or folder.
    """
    return QueueOutcome((OutcomeRemark(sentence),), None, {"queue": queue, "state": state, "reason": sentence})


NOT_PACKED: Final = "a scroll is not packed: the server erases its files as soon as no queue needs them"


def state_of(files: Sequence[FileReadResult]) -> str:
    """Return the state of files that were read: ``ok``, ``unfinished`` or ``damaged``."""
    if any(read.is_damaged for read in files):
        return "damaged"
    return "unfinished" if any(read.end.problem is not None for read in files) else "ok"


class ScrollReport:
    """A report about one queue of a scroll, which covers its reader file and the shared writer files."""

    def __init__(self, contents: ScrollContents, read: ScrollQueueContents) -> None:
        self._queue = read.queue
        self._left = read.left
        self._files = [*contents.writers, *([] if read.file is None else [read.file])]
        self._shared = contents.writers if len(contents.scroll.queues) > 1 else []
        self.state = state_of(self._files)
        if self.state == "ok" and (read.queue.name is None or read.state.is_deleted):
            self.state = "unnamed" if read.queue.name is None else "deleted"

    @property
    def bytes(self) -> int:
        """Total size of the queue's files in bytes, shared ones included."""
        return sum(read.size for read in self._files)

    @property
    def complaint(self) -> str | None:
        """Sentence about a queue that no server can serve because its name is unknown; None otherwise."""
        if self._queue.name is not None:
            return None
        return f"{self._queue.shown_name}: the name of its queue is not known, so no server serves it"

    def text(self) -> str:
        """Return the line of the text report."""
        shared = f", {len(self._shared)} of them shared" if self._shared else ""
        files = f"{count(len(self._files), 'file')}{shared}, {count(self.bytes, 'byte')}"
        return f"{self._queue.shown_name}: {self.state}: {files}, {count(self._left.items, 'item')}"

    def json(self) -> dict[str, Any]:
        """Return the object of the JSON report."""
        return {
            "queue": _spelled(self._queue),
            "state": self.state,
            "items": self._left.items,
            "files": len(self._files),
            "shared_files": len(self._shared),
            "bytes_before": self.bytes,
            "bytes_after": self.bytes,
            "damage": damage_json(self._files),
        }


def unpacked_queue_reports(queues: Sequence[ScrollQueueFile]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the text line and the JSON object for each queue of a scroll, which says that it is not packed."""
    for queue in queues:
        text = f"{queue.shown_name}: unchanged: {NOT_PACKED}"
        yield text, {"queue": _spelled(queue), "state": "unchanged", "reason": NOT_PACKED}


def _spelled(queue: ScrollQueueFile) -> str | None:
    return None if queue.name is None else spell_queue(queue.name)
