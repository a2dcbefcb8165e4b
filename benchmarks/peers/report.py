"""The results as table rows and curves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from benchmarks.harness import MB, Column, Figure, Spread
from benchmarks.peers.interleaved_runs import ITEMS, ITEMS_BY_CPU, REQUESTS, USER_TIME, Measured
from benchmarks.peers.ratio_chart import Curve
from benchmarks.peers.servers import BEANSTALKD, KESTREL, KESTREL_PURE, MEMCACHED, REDIS

COLUMNS: Final = (
    Column("axis", "varied"),
    Column("point", "to"),
    Column("server", "server"),
    Column("requests_per_s", "requests/s", ",.0f"),
    Column("items_per_s", "items/s", ",.0f"),
    Column("p50_us", "p50 us", ",.0f"),
    Column("p99_us", "p99 us", ",.0f"),
    Column("p999_us", "p99.9 us", ",.0f"),
    Column("mb_per_s", "MB/s", ",.0f"),
    Column("cpu_us", "CPU us a request", ",.1f"),
    Column("user_us", "user us", ",.2f"),
    Column("memory_mb", "MB", ",.0f"),
    Column("busy", "generator busy", ".0%"),
    Column("items_ratio", "kestrel to it, items", ".2f"),
    Column("items_ratio_least", "least", ".2f"),
    Column("items_ratio_most", "most", ".2f"),
    Column("requests_ratio", "requests", ".2f"),
    Column("cpu_ratio", "items by CPU", ".2f"),
    Column("user_ratio", "user time of an item", ".2f"),
    Column("pure_items_ratio", "pure to it, items", ".2f"),
    Column("pure_requests_ratio", "requests", ".2f"),
)
"""Columns of the cases. A ratio is in the row of the server that kestrel is compared with."""

MEMORY_COLUMNS: Final = (
    Column("server", "server"),
    Column("items", "items of 1 KiB", ",d"),
    Column("memory_mb", "MB", ",.0f"),
    Column("bytes_per_item", "grown by, bytes an item", ",.0f"),
)

RATIOS: Final = (
    (ITEMS, "items_ratio"),
    (REQUESTS, "requests_ratio"),
    (ITEMS_BY_CPU, "cpu_ratio"),
    (USER_TIME, "user_ratio"),
)


def rows(measured: Sequence[Measured]) -> Iterator[dict[str, Figure]]:
    """Yield a row for each case and server."""
    for each in measured:
        for server in each.memory_bytes:
            yield {
                "axis": each.case.axis,
                "point": each.case.point,
                "server": server,
                **_figures(each, server),
                **_ratios(each, server),
            }


def _figures(measured: Measured, server: str) -> Mapping[str, Figure]:
    figures = measured.median(server)
    named = ("requests_per_s", "items_per_s", "p50_us", "p99_us", "p999_us", "cpu_us", "user_us", "busy")
    return {
        **{name: float(getattr(figures, name)) for name in named},
        "mb_per_s": figures.items_per_s * measured.case.load.size / MB,
        "memory_mb": measured.memory_bytes[server] / MB,
    }


def _ratios(measured: Measured, server: str) -> Mapping[str, Figure]:
    ratios: dict[str, Figure] = {}
    for ours, prefix in ((KESTREL.name, ""), (KESTREL_PURE.name, "pure_")):
        for figure, name in RATIOS:
            ratio = None if server == ours else measured.ratio(ours, server, figure)
            if ratio is not None:
                ratios |= {
                    f"{prefix}{name}": ratio.median,
                    f"{prefix}{name}_least": ratio.least,
                    f"{prefix}{name}_most": ratio.most,
                }
    return ratios


def curves(measured: Sequence[Measured]) -> dict[str, list[Curve]]:
    """Return curves by axis: the ratios of items per second of kestrel to other servers."""
    drawn: dict[str, dict[str, dict[str, Spread]]] = {}
    for each in measured:
        for ours in (KESTREL.name, KESTREL_PURE.name):
            for server in (BEANSTALKD.name, REDIS.name, MEMCACHED.name):
                ratio = each.ratio(ours, server, ITEMS)
                if ratio is not None:
                    by_name = drawn.setdefault(each.case.axis, {})
                    by_name.setdefault(f"{ours} to {server}", {})[each.case.point] = ratio
    return {axis: [Curve(name, ratios) for name, ratios in by_name.items()] for axis, by_name in drawn.items()}
