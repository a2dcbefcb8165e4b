"""Command line of kestrel-load: load tests for a server, modelled on `load/` of Scala Kestrel."""

from __future__ import annotations

import signal
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple

from twisted.internet.defer import Deferred
from twisted.internet.task import LoopingCall
from twisted.python.failure import Failure

from kestrel.client.errors import ClientFailure, ConnectionFailed
from kestrel.load.flows import LoadQueues
from kestrel.load.load_run import LoadRun
from kestrel.load.load_tools import flood, leaky_reader, many_clients, packing, put_many
from kestrel.load.numbered_items import MAX_ITEMS, Ledger
from kestrel.load.options import (
    LoadDefaults,
    LoadOptions,
    add_number,
    add_options,
    check_file_limit,
    options,
    parse_share,
)
from kestrel.load.report import REDRAW_INTERVAL_S, RunProgress, format_table, format_verdict, report_json
from kestrel.tools.arguments import make_parser, wire_duration_s
from kestrel.tools.connection_errors import ConnectionContext
from kestrel.tools.output import Output
from kestrel.tools.tool_runner import EX_FOUND, EX_INTERRUPTED, EX_OK, EX_SERVER, EX_USAGE, ToolFailed, print_error, run

TOOL: Final = "kestrel-load"

ToolFunction = Callable[[LoadRun, LoadQueues, Ledger], Awaitable[None]]


class _LoadTool(NamedTuple):
    """A load tool: its function, defaults, and the number of connections and items it needs."""

    do: ToolFunction
    short: str
    defaults: LoadDefaults
    connections: Callable[[LoadOptions], int]
    total: Callable[[LoadOptions], int]
    """Number of items that the tool puts in total."""


_TOOLS: Final = {
    "flood": _LoadTool(
        flood,
        "push items through a queue at full speed, and check that each comes once",
        LoadDefaults("load_flood", 100_000, "1024", 1, pipeline=100),
        lambda options: 2 * options.clients,
        lambda options: options.items + options.prefill,
    ),
    "many-clients": _LoadTool(
        many_clients,
        "use many mostly idle connections, which put and take an item from time to time",
        LoadDefaults("load_many_clients", 1000, "64", 100, pause_s="1s"),
        lambda options: options.clients,
        lambda options: options.items,
    ),
    "put-many": _LoadTool(
        put_many,
        "put items from many clients, without taking them",
        LoadDefaults("load_put_many", 10_000, "1024", 100, pipeline=1),
        lambda options: options.clients,
        lambda options: options.items,
    ),
    "packing": _LoadTool(
        packing,
        "fill and empty a queue repeatedly, and check whether its journal shrinks",
        LoadDefaults("load_packing", 20_000, "1024", 1, pipeline=100),
        lambda options: options.clients,
        lambda options: options.items * options.cycles,
    ),
    "leaky-reader": _LoadTool(
        leaky_reader,
        "read items and put a share of them back, until each was confirmed once",
        LoadDefaults("load_leaky_reader", 10_000, "64", 10, pipeline=10),
        lambda options: options.clients + 1,
        lambda options: options.items,
    ),
}

_OWN_NUMBERS: Final = (
    ("flood", "--prefill", 0, MAX_ITEMS, 0, "put N more items before the first get, as a backlog"),
    ("put-many", "--queues", 1, 10_000, 1, "put to N queues in turn, whose names end in _1, _2 and so on"),
    ("packing", "--cycles", 1, 1000, 5, "number of cycles, each with --items items"),
)
"""Tool, name, least and largest value, default and help of the options of single tools."""

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


def _parsers() -> tuple[ArgumentParser, dict[str, ArgumentParser]]:
    parser = make_parser(TOOL, _DESCRIPTION, _EPILOG)
    commands = parser.add_subparsers(metavar="TOOL", required=True, title="tools", dest="tool")
    parsers = {}
    for name, tool in _TOOLS.items():
        each = commands.add_parser(
            name,
            help=tool.short,
            description=f"{tool.short[0].upper()}{tool.short[1:]}.",
            allow_abbrev=False,
        )
        add_options(each, tool.defaults)
        parsers[name] = each
    for name, option, least, most, default, help in _OWN_NUMBERS:
        add_number(parsers[name].add_argument, option, least, most, default, help)
    leaky = parsers["leaky-reader"]
    leaky.add_argument(
        "--leak", metavar="SHARE", type=parse_share, default=0.1, help="share of unconfirmed items (default: 0.1)"
    )
    leaky.add_argument(
        "--hold",
        dest="hold_s",
        metavar="DURATION",
        type=wire_duration_s,
        default=0.5,
        help="timeout of open reads that are left to time out; only thrift (default: 500ms)",
    )
    return parser, parsers


def _do(words: Sequence[str]) -> int:
    parser, tools = _parsers()
    if not words:
        parser.print_help(sys.stderr)
        return EX_USAGE
    arguments = parser.parse_args(words)
    return _load(tools[arguments.tool], arguments)


def _load(parser: ArgumentParser, arguments: Namespace) -> int:
    tool = _TOOLS[arguments.tool]
    asked = options(parser, arguments, tool.defaults)
    if tool.total(asked) > MAX_ITEMS:
        parser.error(f"{tool.total(asked):,} items are too many; limit={MAX_ITEMS:,}")
    check_file_limit(parser, tool.connections(asked) + 1)
    output = Output()
    load_run = _run(arguments.tool, asked)
    run_stats = load_run.run_stats
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
        raise ToolFailed(f"--ca, --cert or --key: {error}", EX_USAGE) from None
    progress = RunProgress(name, load_run.run_stats)
    problems: list[Failure] = []

    def ended(result: object) -> None:
        if isinstance(result, Failure):
            problems.append(result)
        load_run.close()
        any_reactor.callLater(0, any_reactor.stop)

    def interrupt() -> None:
        if load_run.run_stats.is_interrupted:
            load_run.hang_up()
        load_run.run_stats.is_interrupted = True
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
    asked = load_run.options
    queues = LoadQueues(asked.queue_names, is_default=asked.is_default_queue)
    ledger = Ledger(load_run.items(), tool.total(asked))
    counts = load_run.run_stats.counts
    try:
        control = await load_run.connection()
        await queues.prepare(load_run, control)
        control.pipeline.drop()
        try:
            await tool.do(load_run, queues, ledger)
        except ConnectionFailed:
            if not load_run.run_stats.is_interrupted:
                raise
        finally:
            counts |= {"stored": ledger.stored, "refused": ledger.refused, "foreign": ledger.foreign}
            counts |= {"doubled": ledger.doubled, "spoiled": ledger.spoiled}
            if tool.do is not put_many:
                counts |= {"seen": ledger.seen, "missing": ledger.missing}
            load_run.end()
        await _restore(load_run, queues)
    except ClientFailure as failure:
        # A connection closed to end an interrupted run is not a failure.
        if not (load_run.run_stats.is_interrupted and isinstance(failure, ConnectionFailed)):
            load_run.run_stats.failure = _explain_failure(failure, asked)


async def _restore(load_run: LoadRun, queues: LoadQueues) -> None:
    """Delete or flush the queues of the run. If that fails, record that queues are left, and raise the error."""
    try:
        await queues.restore(load_run, await load_run.connection())
    except ClientFailure:
        load_run.run_stats.is_left = True
        raise


def _explain_failure(failure: ClientFailure, asked: LoadOptions) -> str:
    """Return the message for a failure, with advice."""
    return str(ConnectionContext("--server", asked.protocol, asked.tls is not None).failed(failure, str(asked.address)))


if __name__ == "__main__":
    sys.exit(main())
