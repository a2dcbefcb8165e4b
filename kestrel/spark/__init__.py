"""Journals on Spark: as tables, as histories of items, as reports. docs/spark.md says how. Needs ``kestrel-mq[spark]``.

`histories` and `with_keys` are for programs: ``from kestrel.spark import histories``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from kestrel.spark.history.histories import histories
    from kestrel.spark.stream.keys import with_keys

__all__ = ["histories", "with_keys"]

_MODULES: Final = {"histories": "kestrel.spark.history.histories", "with_keys": "kestrel.spark.stream.keys"}


def __getattr__(name: str) -> Any:
    """One of these, once somebody asks for it: a command can say that PySpark is missing."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
