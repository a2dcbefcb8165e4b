"""What all offsets of streams out of queues say: whose they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from kestrel.spark.failures import SourceFailed

Offset: TypeAlias = "dict[str, Any]"
"""As Spark keeps it in a checkpoint: JSON."""


def check_offset(offset: Mapping[str, Any], ours: Mapping[str, str]) -> None:
    """Raise `SourceFailed` unless the offset says of itself what this stream's say."""
    for name, value in ours.items():
        theirs = offset.get(name)
        if theirs != value:
            raise SourceFailed(
                f'the checkpoint is of a stream with option("{name}", "{theirs}"), not "{value}": name that, '
                "or another checkpointLocation"
            )
