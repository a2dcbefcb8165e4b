"""What a person may say of writing to a live queue: the options of ``df.write.format("kestrel")``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kestrel.spark.failures import SourceFailed
from kestrel.spark.given import known_options, truth_of
from kestrel.spark.stream.servers import NAMES, Servers, names_servers, servers_of

KEYS: Final = "keys"

_OF_SPARK: Final = {"checkpointlocation", "queryname"}
"""What Spark hands on of what it was told itself."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """All of them, understood. They travel to the tasks."""

    servers: Servers
    has_keys: bool = False
    """Whether each item carries a key (`kestrel.keyed`)."""


def sink_options_of(given: Mapping[str, str]) -> SinkOptions:
    """Spark's options, whose names come in any case. Raises `SourceFailed`."""
    if not names_servers(given):
        raise SourceFailed(
            'files of journals are only read; live queues are written to: option("servers", "mq1,mq2") and '
            'option("queue", "work")'
        )
    ours = {name: value for name, value in given.items() if name.lower() not in _OF_SPARK}
    values = known_options(ours, (*NAMES, KEYS))
    return SinkOptions(servers_of(values), has_keys=truth_of(values, KEYS, False))
