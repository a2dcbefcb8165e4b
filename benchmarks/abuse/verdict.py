"""When a server has stood an abuse: the arithmetic alone."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final, NamedTuple

MOST_RATIO: Final = 5.0
"""So many times its p99 in quiet may the p99 of the ordinary client be."""
FLOOR_MS: Final = 5.0
"""A p99 below this passes whatever it was in quiet: five times next to nothing is next to nothing."""
SHORT_MS: Final = 500.0
"""The same for the short form. Machines of a CI are noisy, and its rounds too short for a p99 that means much."""
LINES_PER_S: Final = 10.0
"""So much may the log say: what is refused, and what TLS has to say, are ten lines a second together."""
LINES_MORE: Final = 50


class Round(NamedTuple):
    """The ordinary client's p99 in quiet, and then under abuse."""

    quiet_ms: float
    abuse_ms: float

    @property
    def ratio(self) -> float:
        """How many times."""
        return self.abuse_ms / self.quiet_ms


class Seen(NamedTuple):
    """All that was seen of one abuse."""

    rounds: Sequence[Round]
    grown_bytes: int
    """By how much the server's memory grew, at its highest."""
    log_lines: int
    seconds: float
    """How long the server was there."""
    wrong: Sequence[str]
    """What must not be: an error of the ordinary client, a traceback, something lost."""

    @property
    def quiet_ms(self) -> float:
        """The median of the rounds."""
        return statistics.median(each.quiet_ms for each in self.rounds)

    @property
    def abuse_ms(self) -> float:
        """The median of the rounds."""
        return statistics.median(each.abuse_ms for each in self.rounds)

    @property
    def ratio(self) -> float:
        """The median of those of the rounds: a round is compared with the quiet just before it."""
        return statistics.median(each.ratio for each in self.rounds)


def failures(seen: Seen, most_grown_bytes: int, floor_ms: float = FLOOR_MS) -> list[str]:
    """What an abuse failed for, a sentence each; none: it passed."""
    failed = list(seen.wrong)
    if seen.rounds and seen.ratio > MOST_RATIO and seen.abuse_ms >= floor_ms:
        failed.append(f"p99 {seen.abuse_ms:.1f} ms is {seen.ratio:.1f} times that in quiet")
    if seen.grown_bytes > most_grown_bytes:
        failed.append(f"the server grew by {seen.grown_bytes >> 20} MiB, more than {most_grown_bytes >> 20}")
    most_lines = LINES_MORE + LINES_PER_S * seen.seconds
    if seen.log_lines > most_lines:
        failed.append(f"the log grew by {seen.log_lines:,} lines in {seen.seconds:.0f} s")
    return failed
