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


def scroll_outcome(contents: ScrollContents, read: ScrollQueueContents) -> QueueOutcome:
    """Return the result of reading one queue of a scroll: its reader file and the shared writer files."""
    queue = read.queue
    files = [*contents.writers, *([] if read.file is None else [read.file])]
    shared = contents.writers if len(contents.scroll.queues) > 1 else []
    state = state_of(files)
    if state == "ok" and (queue.name is None or read.state.is_deleted):
        state = "unnamed" if queue.name is None else "deleted"
    remarks: tuple[OutcomeRemark, ...] = ()
    if queue.name is None:
        remarks = (OutcomeRemark(f"{queue.shown_name}: the name of its queue is not known, so no server serves it"),)
    size = sum(each.size for each in files)
    of_these = f", {len(shared)} of them shared" if shared else ""
    counted = f"{count(len(files), 'file')}{of_these}, {count(size, 'byte')}, {count(read.left.items, 'item')}"
    fields = {
        "queue": _spelled(queue),
        "state": state,
        "items": read.left.items,
        "files": len(files),
        "shared_files": len(shared),
        "bytes_before": size,
        "bytes_after": size,
        "damage": damage_json(files),
    }
    return QueueOutcome(remarks, f"{queue.shown_name}: {state}: {counted}", fields)


def unpacked_outcome(queue: ScrollQueueFile) -> QueueOutcome:
    """Return the result for a queue of a scroll, which says that it is not packed."""
    fields = {"queue": _spelled(queue), "state": "unchanged", "reason": NOT_PACKED}
    return QueueOutcome((), f"{queue.shown_name}: unchanged: {NOT_PACKED}", fields)


def _spelled(queue: ScrollQueueFile) -> str | None:
    return None if queue.name is None else spell_queue(queue.name)
