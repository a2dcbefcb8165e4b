"""Results of verifying and packing queues, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple


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
