"""The options of streams of live queues, and of writes to them: the servers, the connections, and the batches."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, Self

from kestrel.address import DEFAULT_PORTS, parse_address
from kestrel.client.arguments import name_bytes
from kestrel.client.retrying_server import PATIENCE_S, RetryingServer
from kestrel.cluster.member import READ, WRITE
from kestrel.cluster.uri import ServerSetUri, is_server_set, parse_server_set
from kestrel.errors import BadQueueName
from kestrel.names import check_queue_name
from kestrel.spark.options import STARTING_OFFSETS, OptionValues, SourceFailed
from kestrel.spark.stream.server_directory import ServerDirectory, check_can_follow
from kestrel.tls import TlsOptions
from kestrel.tools.tool_runner import explain_os_error

logger = logging.getLogger("kestrel.spark")

TIMEOUT_S: Final = 10.0

SERVERS: Final = "servers"

NAMES: Final = (SERVERS, "timeout", "patience", "tls", "caFile", "certFile", "keyFile", "serverName")


@dataclass(frozen=True, slots=True)
class StreamServers:
    """The servers that share the items of queues, and the connection settings. Tasks get a copy."""

    addresses: tuple[str, ...]
    """``host:port`` of each server, without duplicates. With a server set: the members when a write was planned, or
    empty.
    """
    timeout_s: float = TIMEOUT_S
    patience_s: float = PATIENCE_S
    tls: TlsOptions | None = None
    server_set: ServerSetUri | None = None
    """Server set that provides the servers instead of `addresses`."""

    def to_read(self) -> ServerDirectory:
        """Return the servers to read from, for use in the driver. The caller closes it."""
        return self._directory(READ)

    def planned(self) -> Self:
        """Return a copy with the servers to put to that are known now. Waits at most `timeout_s` for the server set."""
        if self.server_set is None:
            return self
        with closing(self._directory(WRITE)) as present:
            present.is_known(self.timeout_s)
            return replace(self, addresses=tuple(present.known()))

    def to_write(self) -> Sequence[str]:
        """Return the addresses of the servers to put to, for a task. Raises `SourceFailed`."""
        if self.server_set is None:
            return self.addresses
        with closing(self._directory(WRITE)) as present:
            if self.addresses and not present.is_known(self.timeout_s):
                logger.warning("%s does not answer; items are put to the members of the plan", self.server_set)
                return self.addresses
            return present.addresses()

    def _directory(self, name: str) -> ServerDirectory:
        fixed = self.addresses if self.server_set is None else ()
        return ServerDirectory(self.server_set, name, self.patience_s, fixed=fixed)

    def open(self, address: str) -> RetryingServer:
        """Return a client of one server, which connects at the first request. The caller closes it.

        Raises `SourceFailed` if a TLS file is missing on this machine.
        """
        try:
            return RetryingServer(address, tls=self.tls, timeout_s=self.timeout_s, patience_s=self.patience_s)
        except OSError as error:
            raise SourceFailed(f"{explain_os_error(error)}; every worker needs this TLS file") from None


def has_server_options(given: Mapping[str, str]) -> bool:
    """Return True if the options name servers, and so concern live queues instead of files."""
    return any(name.lower() == SERVERS for name in given)


def parse_servers(values: OptionValues) -> StreamServers:
    """Parse the options that name the servers and describe the connections. Raises `SourceFailed`."""
    text = values.get(SERVERS, "").strip()
    try:
        server_set = _server_set_of(text)
        addresses = _addresses_of(text) if server_set is None else ()
    except ValueError as error:
        raise SourceFailed(f"servers: {error}") from None
    if server_set is not None:
        check_can_follow(server_set)  # fail here, not in a task
    elif not addresses:
        raise SourceFailed('no server is given: option("servers", "mq1,mq2:2229"), with thrift ports')
    return StreamServers(
        addresses=addresses,
        timeout_s=_timeout_of(values),
        patience_s=values.seconds("patience", PATIENCE_S),
        tls=_tls_of(values),
        server_set=server_set,
    )


def _server_set_of(text: str) -> ServerSetUri | None:
    """Return the server set, or None for a list of servers. Raises ValueError, without a password in its text."""
    if is_server_set(text):
        uri = parse_server_set(text)
        if "," not in uri.path:
            return uri
    elif not any(is_server_set(each.strip()) for each in text.split(",")):
        if "@" in text:  # the text before it may contain a password
            raise ValueError("a server's address has no @; a server set begins with zk:// or zks://")
        return None
    raise ValueError("a server set cannot be combined with servers: name only zk://zk1,zk2/services/kestrel")


def _addresses_of(text: str) -> tuple[str, ...]:
    texts = [each.strip() for each in text.split(",")]
    return tuple(dict.fromkeys(str(parse_address(each, DEFAULT_PORTS["thrift"])) for each in texts if each))


def _checked_name(option: str, name: str) -> str:
    """Return the name of a queue. Raises `SourceFailed` with the option's name if it is invalid."""
    try:
        check_queue_name(name_bytes(name))
    except BadQueueName as error:
        raise SourceFailed(f"{option}: {error}") from None
    return name


def _timeout_of(values: OptionValues) -> float:
    timeout_s = values.seconds("timeout", TIMEOUT_S)
    if not timeout_s:
        raise SourceFailed("timeout must be more than 0")
    return timeout_s


def _tls_of(values: OptionValues) -> TlsOptions | None:
    files = {"ca_file": "caFile", "cert_file": "certFile", "key_file": "keyFile", "server_name": "serverName"}
    given = {field: values[name] for field, name in files.items() if name in values}
    if not values.boolean("tls", bool(given)):
        if given:
            raise SourceFailed(f"{files[next(iter(given))]} requires tls")
        return None
    if "key_file" in given and "cert_file" not in given:
        raise SourceFailed("keyFile requires certFile")
    options = TlsOptions(**given)
    try:
        options.context()  # fail here, not in a task
    except OSError as error:
        raise SourceFailed(f"TLS: {explain_os_error(error)}") from None
    except ValueError as error:
        raise SourceFailed(f"TLS: {error}") from None
    return options


READER: Final = "spark"

LONGEST_READER_BYTES: Final = 255

RANGE_ROWS: Final = 100_000
"""Default number of rows in a batch read by ids, of which the driver holds only numbers."""

OPEN_ROWS: Final = 50_000
"""Default number of rows in a batch of open reads, which the driver holds in memory."""

OPEN_BYTES: Final = 32 * 1024 * 1024

MOST_OPEN_BYTES: Final = 64 * 1024 * 1024
"""Upper bound of ``maxBytesPerTrigger`` for open reads: Spark sends the items to tasks in messages of limited size."""

UNLIMITED_BYTES: Final = (1 << 63) - 1

HOLD_S: Final = 300.0

SLICES: Final = 4


class Delivery(Enum):
    """The delivery guarantee of a stream."""

    EXACTLY_ONCE = "exactly_once"
    AT_LEAST_ONCE = "at_least_once"


SUBSCRIBE: Final = "subscribe"
SUBSCRIBE_PATTERN: Final = "subscribePattern"
MAX_ITEMS: Final = "maxOffsetsPerTrigger"
MAX_BYTES: Final = "maxBytesPerTrigger"

ALIASES: Final = {"queue": SUBSCRIBE, "maxRows": MAX_ITEMS, "maxBytes": MAX_BYTES}
"""Names that release 1.0 had for options of a stream."""

_OWN: Final = {Delivery.EXACTLY_ONCE: ("reader", "failOnDataLoss"), Delivery.AT_LEAST_ONCE: ("hold",)}

OPTIONS: Final = (
    *NAMES,
    SUBSCRIBE,
    SUBSCRIBE_PATTERN,
    "delivery",
    STARTING_OFFSETS,
    MAX_ITEMS,
    MAX_BYTES,
    "slices",
    *(name for own in _OWN.values() for name in own),
)


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The parsed options of a stream of live queues."""

    servers: StreamServers
    queues: tuple[str, ...] | re.Pattern[str]
    """Names of the queues to read, or a pattern that must match the whole name of a queue."""
    delivery: Delivery
    max_items: int
    """Maximum of items in a batch, of all queues together."""
    max_bytes: int = UNLIMITED_BYTES
    """Approximate maximum of item bytes in a batch."""
    slices: int = SLICES
    """Maximum of tasks for the items of one queue of one server in a batch."""
    start_ms: float = 0
    """Exactly once only: time of the first items of a new stream (`kestrel.spark.options.OptionValues.start_ms`)."""
    reader: bytes = READER.encode()
    """Exactly once only: the reader name under which the servers keep the items."""
    fails_on_data_loss: bool = True
    """Exactly once only: True if items that are gone fail the query, False if the stream continues after them."""
    hold_ms: int = int(HOLD_S * 1000)
    """At least once only: open transaction timeout, after which a server delivers an item again, in ms."""

    def subscribes(self, queue: str) -> bool:
        """Return True if the stream reads the queues of that name."""
        return queue in self.queues if isinstance(self.queues, tuple) else self.queues.fullmatch(queue) is not None


def parse_stream_options(given: Mapping[str, str]) -> StreamOptions:
    """Parse Spark's options, whose names are case-insensitive. Raises `SourceFailed`."""
    values = OptionValues.checked(given, OPTIONS, ALIASES)
    delivery = Delivery(values.choice("delivery", *(each.value for each in Delivery)))
    for other, names in _OWN.items():
        for name in names:
            if name in values and other is not delivery:
                raise SourceFailed(f'{name} requires option("delivery", "{other.value}")')
    is_exact = delivery is Delivery.EXACTLY_ONCE
    return StreamOptions(
        servers=parse_servers(values),
        queues=_queues_of(values),
        delivery=delivery,
        max_items=values.positive(MAX_ITEMS, RANGE_ROWS if is_exact else OPEN_ROWS),
        max_bytes=_max_bytes_of(values, is_exact=is_exact),
        slices=values.positive("slices", SLICES),
        start_ms=_start_ms_of(values, is_exact=is_exact),
        reader=_reader_of(values),
        fails_on_data_loss=values.boolean("failOnDataLoss", True),
        hold_ms=_hold_ms_of(values),
    )


def _queues_of(values: OptionValues) -> tuple[str, ...] | re.Pattern[str]:
    if SUBSCRIBE in values and SUBSCRIBE_PATTERN in values:
        raise SourceFailed(f"{SUBSCRIBE} cannot be combined with {SUBSCRIBE_PATTERN}")
    if SUBSCRIBE_PATTERN in values:
        try:
            return re.compile(values[SUBSCRIBE_PATTERN])
        except re.error as error:
            raise SourceFailed(f"{SUBSCRIBE_PATTERN} is not a regular expression of Python: {error}") from None
    texts = [each.strip() for each in values.get(SUBSCRIBE, "").split(",")]
    names = tuple(dict.fromkeys(_checked_name(SUBSCRIBE, each) for each in texts if each))
    if not names:
        raise SourceFailed(f'no queue is given: option("{SUBSCRIBE}", "work,mail")')
    return names


def _start_ms_of(values: OptionValues, *, is_exact: bool) -> float:
    start_ms = values.start_ms()
    if start_ms and not is_exact:
        raise SourceFailed(
            f'{STARTING_OFFSETS} must be earliest with option("delivery", "at_least_once"), because the items have no '
            "ids: flush the queue before the start (kestrel-cli flush work), or read a new child such as work+spark, "
            "which is empty"
        )
    return start_ms


def _reader_of(values: OptionValues) -> bytes:
    reader = values.get("reader", READER).encode()
    if not 0 < len(reader) <= LONGEST_READER_BYTES:
        raise SourceFailed(f"reader must be a name of 1 to {LONGEST_READER_BYTES} bytes, not {len(reader)}")
    return reader


def _max_bytes_of(values: OptionValues, *, is_exact: bool) -> int:
    size = values.size(MAX_BYTES, UNLIMITED_BYTES if is_exact else OPEN_BYTES)
    most = UNLIMITED_BYTES if is_exact else MOST_OPEN_BYTES
    if not 0 < size <= most:
        raise SourceFailed(f"{MAX_BYTES} must be from 1 to {most}, not {values[MAX_BYTES]!r}")
    return size


def _hold_ms_of(values: OptionValues) -> int:
    hold_s = values.seconds("hold", HOLD_S)
    if hold_s < 1:
        raise SourceFailed(f"hold must be at least 1s, not {values['hold']}")
    return int(hold_s * 1000)


QUEUE: Final = "queue"
KEYS: Final = "keys"

_OF_SPARK: Final = {"checkpointlocation", "queryname"}
"""Options of Spark itself that Spark passes on."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The parsed options of a write. Tasks get a copy."""

    servers: StreamServers
    queue: str
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
    values = OptionValues.checked(ours, (*NAMES, QUEUE, KEYS))
    servers = parse_servers(values)
    if QUEUE not in values:
        raise SourceFailed(f'no queue is given: option("{QUEUE}", "work")')
    return SinkOptions(servers, _checked_name(QUEUE, values[QUEUE]), has_keys=values.boolean(KEYS, False))
