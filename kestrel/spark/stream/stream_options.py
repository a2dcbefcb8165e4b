"""What a person may say of a stream out of queues: the options of ``spark.readStream.format("kestrel")``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from kestrel.spark.failures import SourceFailed
from kestrel.spark.option_values import check_option_names, parse_choice, parse_positive, parse_size_option
from kestrel.spark.stream.servers import NAMES, StreamServers, parse_seconds, parse_servers

READER: Final = "spark"

LONGEST_READER_BYTES: Final = 255

RANGE_ROWS: Final = 100_000
"""In a batch that is read by ids: no more than numbers of it are in the driver's memory."""

OPEN_ROWS: Final = 10_000
"""In a batch of open reads, which are in the driver's memory."""

OPEN_BYTES: Final = 16 * 1024 * 1024

MOST_OPEN_BYTES: Final = 64 * 1024 * 1024
"""They go to tasks in messages of Spark, which have bounds."""

HOLD_S: Final = 300.0

SLICES: Final = 4


class Delivery(Enum):
    """How often an item comes, whatever fails."""

    EXACTLY_ONCE = "exactly_once"
    AT_LEAST_ONCE = "at_least_once"


_OWN: Final = {Delivery.EXACTLY_ONCE: ("reader",), Delivery.AT_LEAST_ONCE: ("maxBytes", "hold")}
"""The options that only streams of one kind have."""

OPTIONS: Final = (*NAMES, "delivery", "maxRows", "slices", *(name for own in _OWN.values() for name in own))


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """All of them, understood."""

    servers: StreamServers
    delivery: Delivery
    max_rows: int
    """In a batch, of all servers together."""
    slices: int = SLICES
    """So many tasks at most for what a batch has of one server."""
    reader: bytes = READER.encode()
    """Exactly once: the name by which the servers keep the items."""
    max_bytes: int = OPEN_BYTES
    """At least once: about so many bytes of items in a batch."""
    hold_ms: int = int(HOLD_S * 1000)
    """At least once: how long the servers wait for an item to be done before they give it out again."""

    @property
    def queue(self) -> str:
        """The queue's name as text."""
        return self.servers.queue.decode()


def parse_stream_options(given: Mapping[str, str]) -> StreamOptions:
    """Spark's options, whose names come in any case. Raises `SourceFailed`."""
    values = check_option_names(given, OPTIONS)
    delivery = Delivery(parse_choice(values, "delivery", *(each.value for each in Delivery)))
    for other, names in _OWN.items():
        for name in names:
            if name in values and other is not delivery:
                raise SourceFailed(f'{name} is of no use without option("delivery", "{other.value}")')
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
        raise SourceFailed(f"reader is a name of 1 to {LONGEST_READER_BYTES} bytes, not of {len(reader)}")
    return reader


def _max_bytes_of(values: Mapping[str, str]) -> int:
    size = parse_size_option(values, "maxBytes", OPEN_BYTES)
    if not 0 < size <= MOST_OPEN_BYTES:
        raise SourceFailed(f"maxBytes is from 1 to {MOST_OPEN_BYTES}, not {values['maxBytes']!r}")
    return size


def _hold_ms_of(values: Mapping[str, str]) -> int:
    hold_s = parse_seconds(values, "hold", HOLD_S)
    if hold_s < 1:
        raise SourceFailed(f"hold is at least 1s, not {values['hold']}")
    return int(hold_s * 1000)
