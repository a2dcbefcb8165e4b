"""The part of an offset that identifies its stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from kestrel.spark.failures import SourceFailed

Offset: TypeAlias = "dict[str, Any]"
"""An offset, which Spark stores in the checkpoint as JSON."""


def check_offset(offset: Mapping[str, Any], ours: Mapping[str, str]) -> None:
    """Raise `SourceFailed` unless the offset has the values of `ours`."""
    for name, value in ours.items():
        theirs = offset.get(name)
        if theirs != value:
            raise SourceFailed(
                f'the checkpoint belongs to a stream with option("{name}", "{theirs}"), not "{value}": use that value, '
                "or another checkpointLocation"
            )
