"""Report tables over item histories, which `kestrel.spark.item_histories.histories` makes.

Each function takes the DataFrame of histories and returns a DataFrame whose first columns are ``scope``, ``server`` and
``queue``. It has rows for each queue, for each server and for the whole fleet, or for the requested scopes. Spark does
all work; only the choice of an interval collects one row. Each report reads all histories, so persist them.
docs/spark.md describes the columns.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kestrel.spark.reports.tables import (
        Scope,
        biggest,
        busiest,
        depth,
        expired_and_discarded,
        interval_of,
        oldest,
        redeliveries,
        summary,
        throughput,
        waiting,
    )

__all__ = [
    "Scope",
    "biggest",
    "busiest",
    "depth",
    "expired_and_discarded",
    "interval_of",
    "oldest",
    "redeliveries",
    "summary",
    "throughput",
    "waiting",
]


def __getattr__(name: str) -> Any:
    """Import a name on first use, so that `kestrel-report` can report that PySpark is missing."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.tables"), name)
