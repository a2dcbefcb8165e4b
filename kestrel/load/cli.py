"""Command line of kestrel-load: load tests for a server, modelled on `load/` of Scala Kestrel."""

from __future__ import annotations

import resource
import signal
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import fields
from typing import Any, Final, NamedTuple

from twisted.internet.defer import Deferred
from twisted.internet.task import LoopingCall
from twisted.python.failure import Failure

from kestrel.address import Address, parse_address
from kestrel.client.errors import ClientFailure, ConnectionFailed
from kestrel.cluster.uri import is_server_set
from kestrel.errors import BadQueueName
from kestrel.load.load_dialects import PORTS
from kestrel.load.load_run import LoadOptions, LoadRun
from kestrel.load.load_tools import flood, leaky_reader, many_clients, packing, prepare, put_many, restore
from kestrel.load.numbered_items import LEAST_BYTES, MAX_ITEMS, MOST_BYTES
from kestrel.load.report import REDRAW_INTERVAL_S, RunProgress, format_table, format_verdict, report_json
from kestrel.names import check_queue_name
from kestrel.server.process import raise_file_limit
from kestrel.tls import TlsOptions
from kestrel.tools.arguments import (
    ENVIRONMENT,
    AddArguments,
    argument,
    connection_options,
    duration_s,
    flag,
    int_in_range,
    make_parser,
    option,
    wire_duration_s,
    wire_queue_name,
    with_servers,
)
from kestrel.tools.tool_runner import (
    EX_FOUND,
    EX_INTERRUPTED,
    EX_OK,
    EX_SERVER,
    EX_USAGE,
    BadUsage,
    ConnectionContext,
    Output,
    print_error,
    run,
)

TOOL: Final = "kestrel-load"

MOST_CLIENTS: Final = 50_000

_OTHER_FILES: Final = 64
"""Maximum number of open files of the process other than its connections."""


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


def _number(name: str, least: int, most: int, default: int, help: str) -> AddArguments:
    return option(name, "N", int_in_range(least, most), help, default)


def _pipeline(default: int) -> AddArguments:
    return _number("--pipeline", 1, 10_000, default, "number of outstanding requests on a connection")


class _LoadTool(NamedTuple):
    """A load tool: its function, the defaults of its options, and the number of connections that it needs."""

    do: Callable[[LoadRun], Awaitable[None]]
    short: str
    items: int
    sizes: str
    clients: int
    own: tuple[AddArguments, ...]
    """Options that not all tools have."""
    connections: Callable[[LoadOptions], int] = lambda options: options.clients


_TOOLS: Final = {
    "flood": _LoadTool(
        flood,
        "push items through a queue at full speed, and check that each comes once",
        100_000,
        "1024",
        1,
        (_pipeline(100), _number("--prefill", 0, MAX_ITEMS, 0, "put N more items before the first get, as a backlog")),
        lambda options: 2 * options.clients,
    ),
    "many-clients": _LoadTool(
        many_clients,
        "use many mostly idle connections, which put and take an item from time to time",
        1000,
        "64",
        100,
        (
            option(
                "--pause",
                "DURATION",
                duration_s,
                "how long a client rests between its requests, on average",
                "1s",
                dest="pause_s",
            ),
        ),
    ),
    "put-many": _LoadTool(
        put_many,
        "put items from many clients, without taking them",
        10_000,
        "1024",
        100,
        (
            _pipeline(1),
            _number("--queues", 1, 10_000, 1, "put to N queues in turn, whose names end in _1, _2 and so on"),
        ),
    ),
    "packing": _LoadTool(
        packing,
        "fill and empty a queue repeatedly, and check whether its journal shrinks",
        20_000,
        "1024",
        1,
        (_pipeline(100), _number("--cycles", 1, 1000, 5, "number of cycles, each with --items items")),
    ),
    "leaky-reader": _LoadTool(
        leaky_reader,
        "read items and put a share of them back, until each was confirmed once",
        10_000,
        "64",
        10,
        (
            _pipeline(10),
            option("--leak", "SHARE", parse_share, "share of unconfirmed items", "0.1"),
            option(
                "--hold",
                "DURATION",
                wire_duration_s,
                "timeout of open reads that are left to time out; only thrift",
                "500ms",
                dest="hold_s",
            ),
        ),
        lambda options: options.clients + 1,
    ),
}

_DESCRIPTION: Final = """\
Put a load on a Kestrel server, and report throughput, latency and lost items. The tools put items to queues named
load_..., or to the one of --queue. They refuse a queue that has items, and leave no queue behind."""

_EPILOG: Final = """\
examples:
  kestrel-load flood
  kestrel-load flood --server mq1 --clients 4 --bytes 64..4096 --prefill 50000
  kestrel-load many-clients --clients 1000 --pause 5s
  kestrel-load leaky-reader --protocol thrift --leak 0.2
  kestrel-load flood --help

exit status: 0; 1 if items are missing, doubled, spoiled or refused, or the queue is not empty; 2 if the command line is
invalid; 3 if the server cannot be reached, or fails; 130 after Ctrl-C."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return run(TOOL, lambda: _do(sys.argv[1:] if argv is None else argv))


def make_load_parser() -> ArgumentParser:
    """Return the parser of the command line. The subparser of the chosen tool becomes the argument ``parser``."""
    parser = make_parser(TOOL, _DESCRIPTION, _EPILOG)
    commands = parser.add_subparsers(metavar="TOOL", required=True, title="tools", dest="tool")
    for name, tool in _TOOLS.items():
        each = commands.add_parser(
            name,
            help=tool.short,
            description=f"{tool.short[0].upper()}{tool.short[1:]}.",
            allow_abbrev=False,
        )
        add_options(each, name)
        each.set_defaults(parser=each)
    return parser


def _do(words: Sequence[str]) -> int:
    parser = make_load_parser()
    if not words:
        parser.print_help(sys.stderr)
        return EX_USAGE
    arguments = parser.parse_args(words)
    asked = options(arguments)
    if asked.total > MAX_ITEMS:
        arguments.parser.error(f"{asked.total:,} items are too many; limit={MAX_ITEMS:,}")
    check_file_limit(arguments.parser, _TOOLS[arguments.tool].connections(asked) + 1)
    output = Output()
    load_run = _run(arguments.tool, asked)
    run_stats = load_run.stats
    if arguments.json:
        about = {"server": str(asked.address), "protocol": asked.protocol, "seed": asked.seed}
        output.object(report_json(arguments.tool, run_stats, **about))
    else:
        if any(request_stats.items for request_stats in run_stats.request_stats_list):
            output.lines(format_table(run_stats))
        if run_stats.failure is None:
            output.line(format_verdict(run_stats))
    output.flush()
    if run_stats.failure is not None:
        print_error(TOOL, run_stats.failure)
        return EX_SERVER
    if run_stats.wrong:
        return EX_FOUND
    return EX_INTERRUPTED if run_stats.is_interrupted else EX_OK


def _run(name: str, asked: LoadOptions) -> LoadRun:
    """Run the tool in the reactor to its end and return the run. Raise `ToolFailed` if a TLS file cannot be used."""
    from twisted.internet import reactor  # imported here because the import installs the reactor

    any_reactor: Any = reactor
    try:
        load_run = LoadRun(any_reactor, asked)
    except OSError as error:
        raise BadUsage(f"--ca, --cert or --key: {error}") from None
    progress = RunProgress(name, load_run.stats)
    problems: list[Failure] = []

    def ended(result: object) -> None:
        if isinstance(result, Failure):
            problems.append(result)
        load_run.close()
        any_reactor.callLater(0, any_reactor.stop)

    def interrupt() -> None:
        if load_run.stats.is_interrupted:
            load_run.hang_up()
        load_run.stats.is_interrupted = True
        load_run.stop()

    def begin() -> None:
        # Set after the reactor's own handlers, which would stop it at once.
        for number_ in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number_, lambda *_: any_reactor.callFromThread(interrupt))
        LoopingCall(progress.draw).start(REDRAW_INTERVAL_S)
        Deferred.fromCoroutine(_work(_TOOLS[name], load_run)).addBoth(ended)

    any_reactor.callWhenRunning(begin)
    any_reactor.run()
    progress.clear()
    for problem in problems:
        problem.raiseException()
    return load_run


async def _work(tool: _LoadTool, load_run: LoadRun) -> None:
    """Prepare the queues, run the tool, collect its counts, and restore the queues.

    A `ClientFailure` is recorded in the statistics of the run. If the tool failed, the queues are not restored.
    """
    stats, ledger = load_run.stats, load_run.ledger
    try:
        control = await load_run.connection()
        made = await prepare(load_run, control)
        control.pipeline.drop()
        try:
            await tool.do(load_run)
        except ConnectionFailed:
            if not stats.is_interrupted:
                raise
        finally:
            stats.counts |= {"stored": ledger.stored, "refused": ledger.refused, "foreign": ledger.foreign}
            stats.counts |= {"doubled": ledger.doubled, "spoiled": ledger.spoiled}
            if tool.do is not put_many:
                stats.counts |= {"seen": ledger.seen, "missing": ledger.missing}
            load_run.end()
        try:
            await restore(load_run, await load_run.connection(), made)
        except ClientFailure:
            stats.is_left = True
            raise
    except ClientFailure as failure:
        # A connection closed to end an interrupted run is not a failure.
        if not (stats.is_interrupted and isinstance(failure, ConnectionFailed)):
            asked = load_run.options
            context = ConnectionContext("--server", asked.protocol, asked.tls is not None)
            stats.failure = str(context.failed(failure, str(asked.address)))


def add_options(parser: ArgumentParser, name: str) -> None:
    """Add the options of a tool."""
    tool = _TOOLS[name]
    server = parser.add_argument_group("the server")
    where = f"the server's address (default: {ENVIRONMENT}, or localhost)"
    for add in (
        argument("--server", metavar="HOST[:PORT]", nargs=1, default=[], dest="servers", help=where),
        *connection_options(PORTS),
    ):
        add(server)
    queue = f"the queue (default: {_default_queue(name)}); it must be empty"
    load = parser.add_argument_group("the load")
    for add in (
        option("--queue", "NAME", wire_queue_name, queue),
        _number("--items", 1, MAX_ITEMS, tool.items, "number of items"),
        option("--bytes", "N", sizes, "size of an item, or a range such as 64..4096", tool.sizes, dest="sizes"),
        _number("--clients", 1, MOST_CLIENTS, tool.clients, "number of clients"),
        *tool.own,
        _number("--seed", 0, 2**32 - 1, 1, "seed of the random numbers"),
        flag("--flush", "drop the items of the queue first"),
        flag("--anyway", "also use a queue that has items, which may be lost"),
        flag("--json", "print one JSON object in place of the table"),
    ):
        add(load)


def _default_queue(tool: str) -> str:
    return f"load_{tool.replace('-', '_')}"


def options(arguments: Namespace) -> LoadOptions:
    """Return the options of the command line. Exit with a usage error if they are invalid.

    Raise `ToolFailed` if a TLS file cannot be used.
    """

    def only(servers: list[str], tls: TlsOptions | None) -> tuple[Address, TlsOptions | None]:
        if len(servers) > 1 or is_server_set(servers[0]):
            raise ValueError("a load is put on one server: name it with --server HOST[:PORT]")
        return parse_address(servers[0], PORTS[arguments.protocol]), tls

    parser: ArgumentParser = arguments.parser
    address, tls = with_servers(parser, arguments, only)
    named = {field.name for field in fields(LoadOptions)}
    given = {name: value for name, value in vars(arguments).items() if name in named} | {
        "address": address,
        "tls": tls,
        "timeout_s": arguments.timeout,
        "queue": arguments.queue or _default_queue(arguments.tool).encode(),
        "is_default_queue": arguments.queue is None,
    }
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


if __name__ == "__main__":
    sys.exit(main())
