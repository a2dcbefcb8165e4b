"""The options of a write to a live queue: ``df.write.format("kestrel")``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kestrel.spark.failures import SourceFailed
from kestrel.spark.option_values import check_option_names, parse_boolean
from kestrel.spark.stream.servers import NAMES, StreamServers, has_server_options, parse_servers

KEYS: Final = "keys"

_OF_SPARK: Final = {"checkpointlocation", "queryname"}
"""Options of Spark itself that Spark passes on."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The parsed options of a write. Tasks get a copy."""

    servers: StreamServers
    has_keys: bool = False
    """True if each item is written with a key (`kestrel.keyed`)."""


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Parse Spark's options, whose names are case-insensitive. Raises `SourceFailed`."""
    if not has_server_options(given):
        raise SourceFailed(
            'journal files are read-only; to write to live queues, use option("servers", "mq1,mq2") and '
            'option("queue", "work")'
        )
    ours = {name: value for name, value in given.items() if name.lower() not in _OF_SPARK}
    values = check_option_names(ours, (*NAMES, KEYS))
    return SinkOptions(parse_servers(values), has_keys=parse_boolean(values, KEYS, False))
