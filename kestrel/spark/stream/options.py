"""The options of streams of live queues, and of writes to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from kestrel.spark.failures import SourceFailed
from kestrel.spark.option_values import (
    check_option_names,
    parse_boolean,
    parse_choice,
    parse_positive,
    parse_size_option,
)
from kestrel.spark.stream.servers import NAMES, StreamServers, has_server_options, parse_seconds, parse_servers

READER: Final = "spark"

LONGEST_READER_BYTES: Final = 255

RANGE_ROWS: Final = 100_000
"""Default number of rows in a batch read by ids, of which the driver holds only numbers."""

OPEN_ROWS: Final = 10_000
"""Default number of rows in a batch of open reads, which the driver holds in memory."""

OPEN_BYTES: Final = 16 * 1024 * 1024

MOST_OPEN_BYTES: Final = 64 * 1024 * 1024
"""Upper bound of ``maxBytes``: Spark sends the items to tasks in messages of limited size."""

HOLD_S: Final = 300.0

SLICES: Final = 4


class Delivery(Enum):
    """The delivery guarantee of a stream."""

    EXACTLY_ONCE = "exactly_once"
    AT_LEAST_ONCE = "at_least_once"


_OWN: Final = {Delivery.EXACTLY_ONCE: ("reader",), Delivery.AT_LEAST_ONCE: ("maxBytes", "hold")}
"""Options that only one kind of stream has."""

OPTIONS: Final = (*NAMES, "delivery", "maxRows", "slices", *(name for own in _OWN.values() for name in own))


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The parsed options of a stream of live queues."""

    servers: StreamServers
    delivery: Delivery
    max_rows: int
    """Maximum of rows in a batch, of all servers together."""
    slices: int = SLICES
    """Maximum of tasks for the items of one server in a batch."""
    reader: bytes = READER.encode()
    """Exactly once only: the reader name under which the servers keep the items."""
    max_bytes: int = OPEN_BYTES
    """At least once only: approximate maximum of item bytes in a batch."""
    hold_ms: int = int(HOLD_S * 1000)
    """At least once only: open transaction timeout, after which a server delivers an item again, in ms."""

    @property
    def queue(self) -> str:
        """The queue's name as text."""
        return self.servers.queue.decode()


def parse_stream_options(given: Mapping[str, str]) -> StreamOptions:
    """Parse Spark's options, whose names are case-insensitive. Raises `SourceFailed`."""
    values = check_option_names(given, OPTIONS)
    delivery = Delivery(parse_choice(values, "delivery", *(each.value for each in Delivery)))
    for other, names in _OWN.items():
        for name in names:
            if name in values and other is not delivery:
                raise SourceFailed(f'{name} requires option("delivery", "{other.value}")')
    return StreamOptions(
        servers=parse_servers(values),
        delivery=delivery,
        max_rows=parse_positive(values, "maxRows", RANGE_ROWS if delivery is Delivery.EXACTLY_ONCE else OPEN_ROWS),
        slices=parse_positive(values, "slices", SLICES),
        reader=_reader_of(values),
        max_bytes=_max_bytes_of(values),
        hold_ms=_hold_ms_of(values),
    )


def _reader_of(values: Mapping[str, str]) -> bytes:
    reader = values.get("reader", READER).encode()
    if not 0 < len(reader) <= LONGEST_READER_BYTES:
        raise SourceFailed(f"reader must be a name of 1 to {LONGEST_READER_BYTES} bytes, not {len(reader)}")
    return reader


def _max_bytes_of(values: Mapping[str, str]) -> int:
    size = parse_size_option(values, "maxBytes", OPEN_BYTES)
    if not 0 < size <= MOST_OPEN_BYTES:
        raise SourceFailed(f"maxBytes must be from 1 to {MOST_OPEN_BYTES}, not {values['maxBytes']!r}")
    return size


def _hold_ms_of(values: Mapping[str, str]) -> int:
    hold_s = parse_seconds(values, "hold", HOLD_S)
    if hold_s < 1:
        raise SourceFailed(f"hold must be at least 1s, not {values['hold']}")
    return int(hold_s * 1000)


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
