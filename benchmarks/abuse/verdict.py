"""The limits that a server must keep to pass an abuse. Only arithmetic."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final, NamedTuple

MOST_RATIO: Final = 5.0
"""The limit for the ordinary client's p99, as a multiple of the p99 without abuse."""
FLOOR_MS: Final = 5.0
"""A p99 below this many milliseconds always passes: a multiple of a tiny value means nothing."""
SHORT_MS: Final = 500.0
"""The value of `FLOOR_MS` for --short. CI machines are noisy, and short rounds give unreliable percentiles."""
LINES_PER_S: Final = 10.0
"""The log lines per second that are allowed: the server's limit for refusals and TLS errors together."""
LINES_MORE: Final = 50


class Round(NamedTuple):
    """The p99 of the ordinary client without and then with abuse."""

    quiet_ms: float
    abuse_ms: float

    @property
    def ratio(self) -> float:
        """The ratio of the p99 with abuse to the p99 without."""
        return self.abuse_ms / self.quiet_ms


class Seen(NamedTuple):
    """The measurements of one abuse."""

    rounds: Sequence[Round]
    grown_bytes: int
    """The maximum growth of the server's memory."""
    log_lines: int
    seconds: float
    """Seconds that the server ran."""
    wrong: Sequence[str]
    """Complaints: errors of the ordinary client, tracebacks, lost items."""

    @property
    def quiet_ms(self) -> float:
        """The median over the rounds, without abuse."""
        return statistics.median(each.quiet_ms for each in self.rounds)

    @property
    def abuse_ms(self) -> float:
        """The median over the rounds, with abuse."""
        return statistics.median(each.abuse_ms for each in self.rounds)

    @property
    def ratio(self) -> float:
        """The median of the rounds' ratios. Each round is compared with the quiet time just before it."""
        return statistics.median(each.ratio for each in self.rounds)


def failures(seen: Seen, most_grown_bytes: int, floor_ms: float = FLOOR_MS) -> list[str]:
    """Return the reasons why the server fails, one sentence each. Empty if it passes."""
    failed = list(seen.wrong)
    if seen.rounds and seen.ratio > MOST_RATIO and seen.abuse_ms >= floor_ms:
        failed.append(f"p99 {seen.abuse_ms:.1f} ms is {seen.ratio:.1f} times the quiet p99")
    if seen.grown_bytes > most_grown_bytes:
        failed.append(f"the server grew by {seen.grown_bytes >> 20} MiB, more than {most_grown_bytes >> 20}")
    most_lines = LINES_MORE + LINES_PER_S * seen.seconds
    if seen.log_lines > most_lines:
        failed.append(f"the log grew by {seen.log_lines:,} lines in {seen.seconds:.0f} s")
    return failed
