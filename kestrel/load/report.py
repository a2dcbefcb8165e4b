"""The figures of a run, for people and for programs."""

from __future__ import annotations

from typing import Any, Final

from kestrel.load.figures import Figures, Lane
from kestrel.tools.shown import aligned

_MB: Final = 1_000_000
_SHARES: Final = (0.5, 0.9, 0.99)


def as_object(tool: str, figures: Figures, **about: object) -> dict[str, Any]:
    """One JSON object. Times are seconds, but for latencies, which are milliseconds."""
    return {
        "tool": tool,
        **about,
        "lanes": [_lane_object(lane) for lane in figures.lanes],
        **figures.counts,
        "interrupted": figures.is_interrupted,
        "failure": figures.failure,
        "verdict": verdict(figures),
    }


def table(figures: Figures) -> list[str]:
    """Lines: what was done, how much, how fast, and what the answers took."""
    lanes = [lane for lane in figures.lanes if lane.items]
    has_journal = any(lane.journal_bytes is not None for lane in lanes)
    head = ["", "items", "seconds", "items/s", "MB/s", "p50 ms", "p90 ms", "p99 ms", "max ms"]
    rows = [head + ["journal MB"] * has_journal]
    for lane in lanes:
        rate, mb_rate = _rates(lane)
        row = [lane.name, f"{lane.items:,}", f"{lane.seconds:.2f}", f"{rate:,.0f}", f"{mb_rate:.2f}"]
        row += [f"{ms:.2f}" for ms in _latencies_ms(lane)]
        if has_journal:
            row.append("" if lane.journal_bytes is None else f"{lane.journal_bytes / _MB:.2f}")
        rows.append(row)
    return list(aligned(rows))


def verdict(figures: Figures) -> str:
    """One sentence."""
    counts = figures.counts
    wrong = [f"{counts[name]:,} {name}" for name in ("missing", "doubled", "spoiled", "refused") if counts.get(name)]
    if figures.failure:
        return f"the run failed: {figures.failure}"
    if figures.is_interrupted:
        wrong = [each for each in wrong if not each.endswith("missing")]
        left = ["queues of the run are left on the server"] if figures.is_left else []
        return "; ".join(["interrupted: these are the figures so far", *([", ".join(wrong)] if wrong else []), *left])
    foreign = f"; {_counted(counts['foreign'])} of somebody else came too" if counts.get("foreign") else ""
    more = foreign + "".join(f"; {remark}" for remark in figures.remarks)
    if wrong:
        stored = _counted(counts.get("stored", 0))
        return f"not all is well: {', '.join(wrong)} of {stored} that the server stored{more}"
    if "seen" in counts:
        return f"all is well: {_counted(counts['seen'])} stored, and each came once{more}"
    return f"all is well: {_counted(counts.get('stored', 0))} stored{more}"


def _counted(number: int) -> str:
    return "1 item" if number == 1 else f"{number:,} items"


def _rates(lane: Lane) -> tuple[float, float]:
    seconds = lane.seconds or 1e-6
    return lane.items / seconds, lane.bytes / _MB / seconds


def _latencies_ms(lane: Lane) -> list[float]:
    return [us / 1000 for us in (*lane.took_us.at(_SHARES), lane.took_us.maximum)]


def _lane_object(lane: Lane) -> dict[str, Any]:
    rate, mb_rate = _rates(lane) if lane.items else (0.0, 0.0)
    p50, p90, p99, most = _latencies_ms(lane)
    told = {"name": lane.name, "items": lane.items, "bytes": lane.bytes, "seconds": round(lane.seconds, 6)}
    told |= {"items_per_s": round(rate, 3), "mb_per_s": round(mb_rate, 6)}
    told |= {"p50_ms": p50, "p90_ms": p90, "p99_ms": p99, "max_ms": most}
    return told | ({} if lane.journal_bytes is None else {"journal_bytes": lane.journal_bytes})
