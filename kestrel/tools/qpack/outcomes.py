"""What looking after queues comes to: a thing to be told of each, to a person or to a program."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple


class OutcomeRemark(NamedTuple):
    """A sentence for a person, beside the report."""

    sentence: str
    is_complaint: bool = True
    """Whether it is damage, or something could not be read or done: the exit status tells of it."""


class QueueOutcome(NamedTuple):
    """What there is to say of one queue, or of its folder."""

    remarks: tuple[OutcomeRemark, ...] = ()
    line: str | None = None
    """For a person; None where the remarks say it all."""
    fields: dict[str, Any] | None = None
    """For a program; None where there is nothing to it but the remarks."""

    def text(self) -> str | None:
        """For a person."""
        return self.line

    def json(self) -> dict[str, Any] | None:
        """For a program."""
        return self.fields

    @property
    def complaints(self) -> Iterator[str]:
        """What the exit status tells of."""
        return (remark.sentence for remark in self.remarks if remark.is_complaint)


def failed_outcome(queue: str | None, sentence: str, state: str = "failed") -> QueueOutcome:
    """A queue could not be read or packed; None for all those of a scroll, or of the folder."""
    return QueueOutcome((OutcomeRemark(sentence),), None, {"queue": queue, "state": state, "reason": sentence})
