"""Measurements of a run, their progress line, and reports about them as text and as JSON."""

from __future__ import annotations

from typing import Any, Final

from kestrel.histogram import Histogram
from kestrel.tools.formatting import align_table
from kestrel.tools.progress import TerminalLine


class RequestStats:
    """Statistics of one kind of request: number, sizes and latencies. Times are from a monotonic clock."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.items = 0
        self.bytes = 0
        self.latency_us = Histogram()
        """Latencies from request to answer, in microseconds."""
        self.journal_bytes: int | None = None
        """Size of the queue's journal after these requests, if it was measured."""
        self._began_s = 0.0
        self._ended_s = 0.0

    def add(self, size: int, began_s: float, ended_s: float) -> None:
        if not self.items or began_s < self._began_s:
            self._began_s = began_s
        self._ended_s = max(self._ended_s, ended_s)
        self.items += 1
        self.bytes += size
        self.latency_us.add(round((ended_s - began_s) * 1_000_000))

    @property
    def seconds(self) -> float:
        return self._ended_s - self._began_s


class RunStats:
    """Statistics, counts and outcome of a run."""

    def __init__(self) -> None:
        self.request_stats_list: list[RequestStats] = []
        self.counts: dict[str, int] = {}
        """Other counts by name, such as ``stored``. Those of errors, such as ``missing``, are 0 in a good run."""
        self.remarks: list[str] = []
        """Further remarks for the verdict."""
        self.is_interrupted = False
        self.is_left = False
        """True if restoring the queues failed, so that some may be left on the server."""
        self.failure: str | None = None
        """Message of the failure that ended the run, if any."""

    def request_stats(self, name: str) -> RequestStats:
        """Add and return the statistics of a new kind of request."""
        request_stats = RequestStats(name)
        self.request_stats_list.append(request_stats)
        return request_stats

    @property
    def wrong(self) -> int:
        """Number of doubled, spoiled, refused and missing items.

        After an interruption or failure, missing items do not count.
        """
        wrong = ["doubled", "spoiled", "refused"] + ([] if self.is_interrupted or self.failure else ["missing"])
        return sum(self.counts.get(name, 0) for name in wrong)


_MB: Final = 1_000_000
_SHARES: Final = (0.5, 0.9, 0.99)


def report_json(tool: str, run_stats: RunStats, **about: object) -> dict[str, Any]:
    """Return the report as one JSON object. Latencies are in milliseconds, other times in seconds."""
    return {
        "tool": tool,
        **about,
        "lanes": list(map(_lane, run_stats.request_stats_list)),
        **run_stats.counts,
        "interrupted": run_stats.is_interrupted,
        "failure": run_stats.failure,
        "verdict": format_verdict(run_stats),
    }


def format_table(run_stats: RunStats) -> list[str]:
    """Return the lines of a table: a header, and a row for each kind of request that moved items."""
    lanes = [_lane(request_stats) for request_stats in run_stats.request_stats_list if request_stats.items]
    has_journal = any("journal_bytes" in lane for lane in lanes)
    head = ["", "items", "seconds", "items/s", "MB/s", "p50 ms", "p90 ms", "p99 ms", "max ms"]
    rows = [head + ["journal MB"] * has_journal]
    for lane in lanes:
        row = [lane["name"], f"{lane['items']:,}", f"{lane['seconds']:.2f}", f"{lane['items_per_s']:,.0f}"]
        row += [f"{lane[name]:.2f}" for name in ("mb_per_s", "p50_ms", "p90_ms", "p99_ms", "max_ms")]
        if has_journal:
            row.append(f"{lane['journal_bytes'] / _MB:.2f}" if "journal_bytes" in lane else "")
        rows.append(row)
    return list(align_table(rows))


def _lane(request_stats: RequestStats) -> dict[str, Any]:
    seconds = request_stats.seconds or 1e-6
    p50, p90, p99 = request_stats.latency_us.quantiles(_SHARES)
    lane = {
        "name": request_stats.name,
        "items": request_stats.items,
        "bytes": request_stats.bytes,
        "seconds": round(request_stats.seconds, 6),
        "items_per_s": round(request_stats.items / seconds, 3),
        "mb_per_s": round(request_stats.bytes / _MB / seconds, 6),
        "p50_ms": p50 / 1000,
        "p90_ms": p90 / 1000,
        "p99_ms": p99 / 1000,
        "max_ms": request_stats.latency_us.maximum / 1000,
    }
    return lane if request_stats.journal_bytes is None else lane | {"journal_bytes": request_stats.journal_bytes}


def format_verdict(run_stats: RunStats) -> str:
    """Return the verdict on a run in one sentence."""
    counts = run_stats.counts
    wrong = [f"{counts[name]:,} {name}" for name in ("missing", "doubled", "spoiled", "refused") if counts.get(name)]
    if run_stats.failure:
        return f"the run failed: {run_stats.failure}"
    if run_stats.is_interrupted:
        wrong = [each for each in wrong if not each.endswith("missing")]
        left = ["queues of the run are left on the server"] if run_stats.is_left else []
        return "; ".join(["interrupted: these are the figures so far", *([", ".join(wrong)] if wrong else []), *left])
    foreign = f"; {_counted(counts['foreign'])} of other clients came too" if counts.get("foreign") else ""
    more = foreign + "".join(f"; {remark}" for remark in run_stats.remarks)
    if wrong:
        stored = _counted(counts.get("stored", 0))
        return f"not all is well: {', '.join(wrong)} of {stored} that the server stored{more}"
    if "seen" in counts:
        return f"all is well: {_counted(counts['seen'])} stored, and each came once{more}"
    return f"all is well: {_counted(counts.get('stored', 0))} stored{more}"


def _counted(number: int) -> str:
    return "1 item" if number == 1 else f"{number:,} items"


REDRAW_INTERVAL_S: Final = 0.2


class RunProgress:
    """A progress line on standard error, which is drawn only on a terminal."""

    def __init__(self, tool: str, run_stats: RunStats) -> None:
        self._tool = tool
        self._run_stats = run_stats
        self._line = TerminalLine()

    def draw(self) -> None:
        """Redraw the line. It shows only the last three kinds of requests, since a run may have many."""
        if self._line.is_terminal:
            request_stats_list = "  ".join(
                f"{request_stats.name} {request_stats.items:,}"
                for request_stats in self._run_stats.request_stats_list[-3:]
            )
            self._line.draw(f"{self._tool}: {request_stats_list}")

    def clear(self) -> None:
        self._line.clear()
