"""Apache Spark support for journals: tables, item histories and reports (docs/spark.md). Needs ``kestrel-mq[spark]``.

Programs import `histories`, `views`, `with_keys` and `backlog` from here: ``from kestrel.spark import histories``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from kestrel.spark.item_histories import histories
    from kestrel.spark.report.views import views
    from kestrel.spark.stream.item_columns import with_keys
    from kestrel.spark.stream.queue_reader import backlog

__all__ = ["backlog", "histories", "views", "with_keys"]

_MODULES: Final = {
    "backlog": "kestrel.spark.stream.queue_reader",
    "histories": "kestrel.spark.item_histories",
    "views": "kestrel.spark.report.views",
    "with_keys": "kestrel.spark.stream.item_columns",
}


def __getattr__(name: str) -> Any:
    """Import a function on first use, so that this package can be imported without PySpark."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
