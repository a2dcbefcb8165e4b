"""What a person may say of writing to a live queue: the options of ``df.write.format("kestrel")``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kestrel.spark.failures import SourceFailed
from kestrel.spark.option_values import check_option_names, parse_boolean
from kestrel.spark.stream.servers import NAMES, StreamServers, has_server_options, parse_servers

KEYS: Final = "keys"

_OF_SPARK: Final = {"checkpointlocation", "queryname"}
"""What Spark hands on of what it was told itself."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """All of them, understood. They travel to the tasks."""

    servers: StreamServers
    has_keys: bool = False
    """Whether each item carries a key (`kestrel.keyed`)."""


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Spark's options, whose names come in any case. Raises `SourceFailed`."""
    if not has_server_options(given):
        raise SourceFailed(
            'files of journals are only read; live queues are written to: option("servers", "mq1,mq2") and '
            'option("queue", "work")'
        )
    ours = {name: value for name, value in given.items() if name.lower() not in _OF_SPARK}
    values = check_option_names(ours, (*NAMES, KEYS))
    return SinkOptions(parse_servers(values), has_keys=parse_boolean(values, KEYS, False))
