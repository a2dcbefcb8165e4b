"""kestrel-load: a load on a server, as `load/` of the original had them."""

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
from kestrel.load.flood import flood
from kestrel.load.items import MOST_ITEMS
from kestrel.load.leaky_reader import leaky_reader
from kestrel.load.ledger import Ledger
from kestrel.load.many_clients import many_clients
from kestrel.load.options import Defaults, Options, add_options, allow_connections, number, options, share
from kestrel.load.packing import packing
from kestrel.load.progress import EVERY_S, RunProgress
from kestrel.load.put_many import put_many
from kestrel.load.queues import LoadQueues
from kestrel.load.report import as_object, table, verdict
from kestrel.load.work import Work
from kestrel.tools.arguments import make_parser, sent_duration_s
from kestrel.tools.output import Output
from kestrel.tools.reaching import Way
from kestrel.tools.running import EX_FOUND, EX_INTERRUPTED, EX_OK, EX_SERVER, EX_USAGE, ToolFailed, run, say

TOOL: Final = "kestrel-load"

Work_on = Callable[[Work, LoadQueues, Ledger], Awaitable[None]]


class _Tool(NamedTuple):
    """One of them."""

    do: Work_on
    short: str
    defaults: Defaults
    connections: Callable[[Options], int]
    total: Callable[[Options], int]
    """How many items it puts in all."""


_TOOLS: Final = {
    "flood": _Tool(
        flood,
        "push items through a queue as fast as it goes, and see that each comes once",
        Defaults("load_flood", 100_000, "1024", 1, pipeline=100),
        lambda options: 2 * options.clients,
        lambda options: options.items + options.prefill,
    ),
    "many-clients": _Tool(
        many_clients,
        "many connections, most of them idle, that put and take an item now and then",
        Defaults("load_many_clients", 1000, "64", 100, pause_s="1s"),
        lambda options: options.clients,
        lambda options: options.items,
    ),
    "put-many": _Tool(
        put_many,
        "many clients put items, and nobody takes them",
        Defaults("load_put_many", 10_000, "1024", 100, pipeline=1),
        lambda options: options.clients,
        lambda options: options.items,
    ),
    "packing": _Tool(
        packing,
        "fill a queue and empty it, again and again, and see whether its journal becomes small",
        Defaults("load_packing", 20_000, "1024", 1, pipeline=100),
        lambda options: options.clients,
        lambda options: options.items * options.cycles,
    ),
    "leaky-reader": _Tool(
        leaky_reader,
        "readers that give a share of their items back, until each was confirmed once",
        Defaults("load_leaky_reader", 10_000, "64", 10, pipeline=10),
        lambda options: options.clients + 1,
        lambda options: options.items,
    ),
}

_DESCRIPTION: Final = """\
Puts a load on a Kestrel server, and says how it bears it. It puts real items to real queues, called load_... unless
--queue says otherwise, refuses queues that have items, and leaves none behind."""

_EPILOG: Final = """\
examples:
  kestrel-load flood
  kestrel-load flood --server mq1 --clients 4 --bytes 64..4096 --prefill 50000
  kestrel-load many-clients --clients 1000 --pause 5s
  kestrel-load leaky-reader --protocol thrift --leak 0.2
  kestrel-load flood --help

exit status: 0; 1 when items are missing, doubled, spoiled or refused, or the queue is not empty; 2 when the command
line makes no sense; 3 when the server cannot be reached, or fails; 130 after Ctrl-C."""


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns its exit status."""
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
    parsers["flood"].add_argument(
        "--prefill",
        metavar="N",
        type=number(0, MOST_ITEMS),
        default=0,
        help="put so many items more before anybody takes, which stay ahead of the others (default: 0)",
    )
    parsers["put-many"].add_argument(
        "--queues",
        metavar="N",
        type=number(1, 10_000),
        default=1,
        help="to so many queues in turn, whose names end in _1, _2 and so on (default: 1)",
    )
    parsers["packing"].add_argument(
        "--cycles",
        metavar="N",
        type=number(1, 1000),
        default=5,
        help="how often; --items are those of one (default: 5)",
    )
    leaky = parsers["leaky-reader"]
    leaky.add_argument(
        "--leak", metavar="SHARE", type=share, default=0.1, help="so many of all are not confirmed (default: 0.1)"
    )
    leaky.add_argument(
        "--hold",
        metavar="DURATION",
        type=sent_duration_s,
        default=0.5,
        help="after that time those go back that are let time out; thrift alone (default: 500ms)",
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
    if tool.total(asked) > MOST_ITEMS:
        parser.error(f"{tool.total(asked):,} items are too many; limit={MOST_ITEMS:,}")
    allow_connections(parser, tool.connections(asked) + 1)
    output = Output()
    work = _run(arguments.tool, asked)
    figures = work.figures
    if arguments.json:
        about = {"server": str(asked.address), "protocol": asked.protocol, "seed": asked.seed}
        output.object(as_object(arguments.tool, figures, **about))
    else:
        if any(lane.items for lane in figures.lanes):
            for line in table(figures):
                output.line(line)
        if figures.failure is None:
            output.line(verdict(figures))
    output.flush()
    if figures.failure is not None:
        say(TOOL, figures.failure)
        return EX_SERVER
    if figures.wrong:
        return EX_FOUND
    return EX_INTERRUPTED if figures.is_interrupted else EX_OK


def _run(name: str, asked: Options) -> Work:
    """Have the reactor run until the tool has ended. Raises `ToolFailed` where it has not begun."""
    from twisted.internet import reactor  # importing it installs it, which no --help needs

    any_reactor: Any = reactor
    try:
        work = Work(any_reactor, asked)
    except OSError as error:
        raise ToolFailed(f"--ca, --cert or --key: {error}", EX_USAGE) from None
    progress = RunProgress(name, work.figures)
    problems: list[Failure] = []

    def ended(result: object) -> None:
        if isinstance(result, Failure):
            problems.append(result)
        work.close()
        any_reactor.callLater(0, any_reactor.stop)

    def interrupt() -> None:
        if work.figures.is_interrupted:
            work.hang_up()
        work.figures.is_interrupted = True
        work.stop()

    def begin() -> None:
        # Behind the reactor's own handlers, which would end it at once.
        for number_ in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number_, lambda *_: any_reactor.callFromThread(interrupt))
        LoopingCall(progress.draw).start(EVERY_S)
        Deferred.fromCoroutine(_work(_TOOLS[name], work)).addBoth(ended)

    any_reactor.callWhenRunning(begin)
    any_reactor.run()
    progress.clear()
    for problem in problems:
        problem.raiseException()
    return work


async def _work(tool: _Tool, work: Work) -> None:
    """The run, and what comes before and after it."""
    asked = work.options
    queues = LoadQueues(asked.queue_names, is_default=asked.is_default_queue)
    ledger = Ledger(work.items(), tool.total(asked))
    counts = work.figures.counts
    try:
        control = await work.link()
        await queues.prepare(work, control)
        control.pipeline.drop()
        try:
            await tool.do(work, queues, ledger)
        except ConnectionFailed:
            if not work.figures.is_interrupted:
                raise
        finally:
            counts |= {"stored": ledger.stored, "refused": ledger.refused, "foreign": ledger.foreign}
            counts |= {"doubled": ledger.doubled, "spoiled": ledger.spoiled}
            if tool.do is not put_many:
                counts |= {"seen": ledger.seen, "missing": ledger.missing}
            work.end()
        await _restore(work, queues)
    except ClientFailure as failure:
        # What was hung up on to end an interrupted run is no failure.
        if not (work.figures.is_interrupted and isinstance(failure, ConnectionFailed)):
            work.figures.failure = _explained(failure, asked)


async def _restore(work: Work, queues: LoadQueues) -> None:
    """Leave the queues as they were. What interrupts that is told."""
    try:
        await queues.restore(work, await work.link())
    except ClientFailure:
        work.figures.is_left = True
        raise


def _explained(failure: ClientFailure, asked: Options) -> str:
    """What is said of a failure, and the way out."""
    return str(Way("--server", asked.protocol, asked.tls is not None).failed(failure, str(asked.address)))


if __name__ == "__main__":
    sys.exit(main())
