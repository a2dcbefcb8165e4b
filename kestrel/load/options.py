"""Options of `kestrel-load`."""

from __future__ import annotations

import os
import resource
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Final

from kestrel.address import Address, parse_address
from kestrel.cluster.uri import is_server_set
from kestrel.errors import BadQueueName
from kestrel.load.load_dialects import PORTS
from kestrel.load.numbered_items import LEAST_BYTES, MAX_ITEMS, MOST_BYTES
from kestrel.names import check_queue_name
from kestrel.server.process import raise_file_limit
from kestrel.tls import TlsOptions
from kestrel.tools.arguments import (
    ENVIRONMENT,
    add_tls_options,
    duration_s,
    int_in_range,
    split_servers,
    tls_options,
    wire_duration_s,
    wire_queue_name,
)

MOST_CLIENTS: Final = 50_000

_OTHER_FILES: Final = 64
"""Maximum number of open files of the process other than its connections."""


@dataclass(frozen=True)
class LoadOptions:
    """Parsed options of a run. Sizes are in bytes, times in seconds."""

    address: Address
    protocol: str
    tls: TlsOptions | None
    timeout_s: float
    queue: bytes
    is_default_queue: bool
    items: int
    sizes: tuple[int, int]
    """Sizes of the smallest and of the largest item."""
    clients: int
    seed: int
    flush: bool
    anyway: bool
    pipeline: int = 1
    prefill: int = 0
    pause_s: float = 0.0
    queues: int = 1
    cycles: int = 1
    leak: float = 0.0
    hold_s: float = 0.0

    @property
    def queue_names(self) -> list[bytes]:
        """Names of the run's queues. Several queues have the suffixes ``_1``, ``_2`` and so on."""
        if self.queues == 1:
            return [self.queue]
        return [b"%b_%d" % (self.queue, place) for place in range(1, self.queues + 1)]


@dataclass(frozen=True)
class LoadDefaults:
    """Default values of a tool's options. None means that the tool does not have the option."""

    queue: str
    items: int
    sizes: str
    clients: int
    pipeline: int | None = None
    pause_s: str | None = None


def sizes(text: str) -> tuple[int, int]:
    """Parse ``N`` or ``LEAST..MOST`` and return the smallest and the largest size. Raise ArgumentTypeError."""
    parse = int_in_range(LEAST_BYTES, MOST_BYTES)
    least, dots, most = text.partition("..")
    size = parse(least)
    largest = parse(most) if dots else size
    if largest < size:
        raise ArgumentTypeError(f"{text!r}: write the smaller size first")
    return size, largest


def parse_share(text: str) -> float:
    """Parse a share from 0 to 0.9. Raise ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 0.9:
        raise ArgumentTypeError(f"{text!r} is not a share from 0 to 0.9")
    return value


def add_number(add: Callable[..., object], option: str, least: int, most: int, default: int, help: str) -> None:
    """Add an option for a whole number. `add` is called like ``ArgumentParser.add_argument``."""
    add(option, metavar="N", type=int_in_range(least, most), default=default, help=f"{help} (default: {default})")


def add_options(parser: ArgumentParser, defaults: LoadDefaults) -> None:
    """Add the options that all tools have. Add ``--pipeline`` and ``--pause`` only if they have a default."""
    server = parser.add_argument_group("the server")
    server.add_argument(
        "--server", metavar="HOST[:PORT]", help=f"the server's address (default: {ENVIRONMENT}, or localhost)"
    )
    server.add_argument(
        "--protocol", default="memcache", choices=tuple(PORTS), help="the protocol to use (default: memcache)"
    )
    add_tls_options(server.add_argument)
    server.add_argument(
        "--timeout",
        dest="timeout_s",
        metavar="DURATION",
        type=wire_duration_s,
        default=10.0,
        help="how long the server may take to answer (default: 10s)",
    )
    load = parser.add_argument_group("the load")
    load.add_argument(
        "--queue",
        metavar="NAME",
        type=wire_queue_name,
        help=f"the queue (default: {defaults.queue}); it must be empty",
    )
    add_number(load.add_argument, "--items", 1, MAX_ITEMS, defaults.items, "number of items")
    load.add_argument(
        "--bytes",
        dest="sizes",
        metavar="N",
        type=sizes,
        default=sizes(defaults.sizes),
        help=f"size of an item, or a range such as 64..4096 (default: {defaults.sizes})",
    )
    add_number(load.add_argument, "--clients", 1, MOST_CLIENTS, defaults.clients, "number of clients")
    if defaults.pipeline is not None:
        help = "number of outstanding requests on a connection"
        add_number(load.add_argument, "--pipeline", 1, 10_000, defaults.pipeline, help)
    if defaults.pause_s is not None:
        load.add_argument(
            "--pause",
            dest="pause_s",
            metavar="DURATION",
            type=duration_s,
            default=duration_s(defaults.pause_s),
            help=f"how long a client rests between its requests, on average (default: {defaults.pause_s})",
        )
    add_number(load.add_argument, "--seed", 0, 2**32 - 1, 1, "seed of the random numbers")
    load.add_argument("--flush", action="store_true", help="drop the items of the queue first")
    load.add_argument("--anyway", action="store_true", help="also use a queue that has items, which may be lost")
    load.add_argument("--json", action="store_true", help="print one JSON object in place of the table")


def options(parser: ArgumentParser, arguments: Namespace, defaults: LoadDefaults) -> LoadOptions:
    """Return the options of the command line. Exit with a usage error if they are invalid.

    Raise `ToolFailed` if a TLS file cannot be used.
    """
    named = {field.name for field in fields(LoadOptions)}
    given = {name: value for name, value in vars(arguments).items() if name in named}
    given["address"] = _address(parser, arguments)
    given["is_default_queue"] = given["queue"] is None
    given["queue"] = given["queue"] or defaults.queue.encode()
    given["tls"] = tls_options(parser, arguments)
    asked = LoadOptions(**given)
    try:
        check_queue_name(asked.queue_names[-1])  # the longest
    except BadQueueName as error:
        parser.error(f"--queue with a number appended: {error}")
    return asked


def check_file_limit(parser: ArgumentParser, number_: int) -> None:
    """Raise the limit of open files. Exit with a usage error if the system forbids as many as connections need."""
    limit = raise_file_limit()
    wanted = number_ + _OTHER_FILES
    if limit != resource.RLIM_INFINITY and wanted > limit:
        way_out = f"fewer --clients, or ulimit -Hn {wanted}"
        parser.error(f"{number_:,} connections are more than the system allows: {way_out}")


def _address(parser: ArgumentParser, arguments: Namespace) -> Address:
    named = arguments.server
    if named is None:
        there = split_servers(os.environ.get(ENVIRONMENT, ""))
        named = ",".join(there) or "localhost"
    if is_server_set(named) or "," in named or len(named.split()) > 1:
        parser.error("a load is put on one server: name it with --server HOST[:PORT]")
    try:
        return parse_address(named, PORTS[arguments.protocol])
    except ValueError as error:
        parser.error(str(error))
