"""Command line of kestrel-cli."""

from __future__ import annotations

import sys
from argparse import SUPPRESS, Action, ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any, Final, NoReturn

from kestrel.tls import TlsOptions
from kestrel.tools.arguments import (
    SERVER_OPTIONS,
    AddArguments,
    argument,
    duration_s,
    flag,
    make_parser,
    one_of,
    option,
    positive,
    positive_duration_s,
    tls_options,
    wire_duration_s,
    wire_queue_name,
    with_servers,
)
from kestrel.tools.cli import drain, item_commands, server_commands
from kestrel.tools.cli.admin_client import DEFAULT_ADMIN, AdminClient
from kestrel.tools.cli.servers import TOOL, CommandServers
from kestrel.tools.cli.top import top
from kestrel.tools.cli.top_screen import SORTS
from kestrel.tools.tool_runner import EX_USAGE, Clock, run

_DESCRIPTION: Final = "Put, take and show items of a Kestrel server, and show the server's state."

_EPILOG: Final = """\
examples:
  kestrel-cli put work hello
  kestrel-cli get work
  kestrel-cli --server mq1 --server mq2:22134 stats
  KESTREL_SERVERS=mq1,mq2 kestrel-cli monitor work
  kestrel-cli --server zk://zk1,zk2/services/kestrel get --wait 1m work
  kestrel-cli put --help

A DURATION has a unit, as 100ms, 1m30s or 2h, or is a number of seconds.

exit status: 0; 1 if there was no item or no such queue, or an item was refused; 2 if the command line is invalid;
3 if a server cannot be reached or fails, or the members of a server set are not known; 130 after Ctrl-C."""

_SERVER_OPTIONS: Final = (
    "\n\n--server and the other options of kestrel-cli (kestrel-cli --help) can also be given here."
)

_MAKES_A_QUEUE: Final = "\nThe server creates the queue if it does not exist."

_STATUSES: Final = {name.lower(): name for name in ("Up", "WriteAvoid", "ReadOnly", "Quiescent")}


def main(argv: Sequence[str] | None = None, clock: Clock | None = None) -> int:
    """Run the command and return its exit status."""
    return run(TOOL, lambda: _do(argv, clock or Clock()))


def _do(argv: Sequence[str] | None, clock: Clock) -> int:
    parser = _parser()
    arguments, unknown = parser.parse_known_args(argv)
    do: _Function = arguments.do
    if unknown:
        hint = "; write items that begin with - after --: put QUEUE -- -x" if do is item_commands.put else ""
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    if do is _help:
        return _help(parser, arguments)
    if do is top:
        return do(_admin(parser, arguments, clock), arguments, clock)
    servers = with_servers(
        parser,
        arguments,
        lambda servers, tls: CommandServers(servers, arguments.protocol, tls, arguments.timeout, clock.seconds),
    )
    try:
        return do(servers, arguments, clock)
    finally:
        servers.close()


def _help(parser: ArgumentParser, arguments: Namespace) -> NoReturn:
    """Print the help of the tool, or that of one of its commands, and exit."""
    parser.parse_args([*arguments.command, "--help"])
    parser.exit()


def _admin(parser: ArgumentParser, arguments: Namespace, clock: Clock) -> AdminClient:
    if arguments.servers or arguments.tls:
        parser.error("top asks the admin port: use --admin http://HOST:PORT, or https, and not --server or --tls")
    arguments.tls = arguments.admin.lower().startswith("https:")
    tls = tls_options(parser, arguments, "--admin https://HOST:PORT")
    try:
        return AdminClient(arguments.admin, tls or TlsOptions(), arguments.timeout, clock.seconds)
    except ValueError as error:
        parser.error(f"--admin: {error}")


def _parser() -> ArgumentParser:
    parser = make_parser(TOOL, _DESCRIPTION, _EPILOG, *SERVER_OPTIONS, kind=_MainParser)
    commands = parser.add_subparsers(metavar="COMMAND", required=True, title="commands", parser_class=_CommandParser)
    _add_commands(partial(_add_command, commands))
    return parser


def _add_command(
    commands: Any, name: str, do: _Function, short: str, more: str, examples: Sequence[str], *arguments: AddArguments
) -> None:
    """Add a command. Its description is `short` as a sentence, then `more`."""
    command = commands.add_parser(
        name,
        help=short,
        description=f"{short[0].upper()}{short[1:]}.{more}",
        epilog="examples:\n" + "\n".join(f"  {example}" for example in examples) + _SERVER_OPTIONS,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.set_defaults(do=do)
    for add in SERVER_OPTIONS:
        add(_Overriding(command))
    for add in arguments:
        add(command)


class _Overriding:
    """A command's parser, to which options are added that override those before the command. Its help has none."""

    def __init__(self, command: ArgumentParser) -> None:
        self._command = command

    def add_argument(self, name: str, **options: Any) -> None:
        self._command.add_argument(name, **options | {"help": SUPPRESS, "default": SUPPRESS})


class _MainParser(ArgumentParser):
    """The parser of the options before the command, and of the command."""

    def _check_value(self, action: Action, value: Any) -> None:
        """Report an unknown command with a similar one. argparse would list all commands and options."""
        if isinstance(action.choices, dict) and value not in action.choices:
            similar = "".join(f"did you mean {each}? " for each in get_close_matches(value, action.choices, 1))
            self.exit(EX_USAGE, f"{TOOL}: there is no command {value!r}; {similar}{TOOL} help lists all commands\n")
        super()._check_value(action, value)


class _CommandParser(ArgumentParser):
    """A parser that accepts options anywhere, also between a queue and its items."""

    _is_within = False

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Namespace | None = None
    ) -> tuple[Namespace, list[str]]:
        """Parse intermixed options and arguments. argparse calls this method again to do so."""
        if self._is_within:
            return super().parse_known_args(args, namespace)
        self._is_within = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_within = False


_Function = Callable[..., int]
"""Function of a command. It takes the servers (`CommandServers` or `AdminClient`), the arguments and a clock."""


def _queues(what: str) -> AddArguments:
    return argument("queues", metavar="QUEUE", nargs="*", default=[], type=wire_queue_name, help=what)


def _status(text: str) -> str:
    if text.lower() not in _STATUSES:
        raise ArgumentTypeError(f"there is no status {text!r}; there are {', '.join(_STATUSES.values())}")
    return _STATUSES[text.lower()]


_QUEUE: Final = argument("queue", metavar="QUEUE", type=wire_queue_name, help="the queue's name")
_FORM: Final = one_of(
    flag("--length-prefixed", "write each item after its length, 4 bytes big-endian"),
    flag("--json", 'print JSON lines: {"data": TEXT}, or {"base64": BYTES}'),
    flag("--raw", "write control characters unescaped, also on a terminal"),
)
_QUIET: Final = flag("-q", "--quiet", "print nothing on success")
_YES: Final = flag("-y", "--yes", "do not ask for confirmation (it is asked only on a terminal)")
_JSON_SERVERS: Final = flag("--json", "print JSON, one object per server")


def _add_commands(add: Callable[..., None]) -> None:
    """Add all commands, in the order of the help. `add` is `_add_command` without its first argument."""
    add(
        "help",
        _help,
        "show this help, or that of a command",
        "",
        ["kestrel-cli help put"],
        argument("command", metavar="OTHER", nargs="*", help="the command to explain"),
    )
    add(
        "put",
        item_commands.put,
        "put items to the end of a queue",
        "\nWithout ITEM, items are read from standard input. Write items that begin with - after --.",
        [
            "kestrel-cli put work hello 'two words'",
            "kestrel-cli put work -- -1 --not-an-option",
            "kestrel-cli put work <lines.txt",
            "kestrel-cli put --whole --expires-in 1h pictures <cat.jpg",
            "kestrel-cli put --delay 10m reminders 'call back'",
            "kestrel-cli get --all --length-prefixed old | kestrel-cli put --length-prefixed new",
        ],
        _QUEUE,
        argument("items", metavar="ITEM", nargs="*", default=[], help="an item to put"),
        one_of(
            flag(
                "--length-prefixed",
                "each item of standard input follows its length, 4 bytes big-endian (default: one item a line)",
            ),
            flag("--whole", "standard input is one item"),
        ),
        option("--expires-in", "DURATION", wire_duration_s, "the items expire after this time"),
        option("--delay", "DURATION", wire_duration_s, "the items become visible after this time"),
        _QUIET,
    )
    add(
        "get",
        item_commands.get,
        "take items from a queue, and write them one a line",
        "\nEach item is confirmed after it is written; an item that cannot be written stays in the queue.\n"
        "The exit status is 1 if there was no item." + _MAKES_A_QUEUE,
        [
            "kestrel-cli get work",
            "kestrel-cli get --all work >lines.txt",
            "kestrel-cli get --wait 1m work || echo nothing came",
        ],
        _QUEUE,
        one_of(
            option("-n --number", "N", positive, "take up to N items", 1),
            flag("--all", "take items until the queue is empty"),
        ),
        option("--wait", "DURATION", duration_s, "wait up to this long for each item"),
        _FORM,
    )
    add(
        "peek",
        item_commands.peek,
        "show the item at the head of a queue, and leave it there",
        "\nThe exit status is 1 if there is no item." + _MAKES_A_QUEUE,
        ["kestrel-cli peek work"],
        _QUEUE,
        _FORM,
    )
    add(
        "monitor",
        item_commands.monitor,
        "take items as they come, and write them one a line",
        "\nEach item is confirmed after it is written. Ctrl-C ends the command. If the server disconnects, the\n"
        "command ends with status 3." + _MAKES_A_QUEUE,
        ["kestrel-cli monitor work", "kestrel-cli monitor --for 1h --json events | jq .data"],
        _QUEUE,
        option("-n --number", "N", positive, "end after N items"),
        option("--for", "DURATION", positive_duration_s, "end after this time", dest="duration"),
        _FORM,
    )
    add(
        "drain",
        drain.drain,
        "move all items of queues of another server to this one",
        "\nThe other server may be a Kestrel, darner or siberite, and keeps serving clients. Each item is put\n"
        "here before it is removed there. If the command is cut off, no item is lost, and one may be on both.\n"
        "The exit status is 1 if items are left on the other server.",
        [
            "kestrel-cli drain --from old:22133 work mail",
            "kestrel-cli --server new drain --from old --all",
            "kestrel-cli drain --from old --as mail_high mail.high",
        ],
        argument("queues", metavar="QUEUE", nargs="*", default=[], type=drain.source_queue, help="a queue to drain"),
        option(
            "--from",
            "HOST[:PORT]",
            drain.source_address,
            "the server to drain, with its memcache port",
            required=True,
            dest="source",
        ),
        flag("--all", "drain all queues of that server"),
        option("--as", "NAME", wire_queue_name, "the queue's name here, for one QUEUE", dest="new_name"),
        one_of(flag("--json", "print JSON, one object per queue"), _QUIET),
    )
    add(
        "list",
        server_commands.list_queues,
        "list the names of all queues, one a line",
        "",
        ["kestrel-cli list", "kestrel-cli list | grep mail"],
    )
    add(
        "stats",
        server_commands.stats,
        "show statistics of servers and queues",
        "\nThe last wait is the time that the item taken last had spent in the queue.\n"
        "Oldest is the age of the first item.",
        [
            "kestrel-cli stats",
            "kestrel-cli stats work mail --watch 5s",
            "kestrel-cli stats --json | jq '.queues.work.items'",
        ],
        _queues("only these queues (default: all)"),
        one_of(_JSON_SERVERS, flag("--raw", "print the STAT lines of the server")),
        option(
            "--watch",
            "DURATION",
            positive_duration_s,
            "repeat at this interval (default: 2s) until Ctrl-C, also while a server is unreachable",
            nargs="?",
            const=2.0,
        ),
    )
    add(
        "top",
        top,
        "show a server and its queues continuously",
        " It asks the server's admin port.\nWithout a terminal it prints one plain table. Press h to see the keys.",
        [
            "kestrel-cli top",
            "kestrel-cli top --sort puts --filter mail",
            "kestrel-cli top --admin https://mq1:2223 --ca ca.pem",
            "kestrel-cli top --once | head",
        ],
        argument("--admin", metavar="URL", default=DEFAULT_ADMIN, help=f"the admin port (default: {DEFAULT_ADMIN})"),
        option(
            "--interval",
            "DURATION",
            positive_duration_s,
            "refresh interval, over which rates are measured",
            "2s",
        ),
        argument("--sort", choices=SORTS, default="items", help="column to sort by (default: items)"),
        argument("--filter", metavar="TEXT", default="", help="show only queues with TEXT in their names"),
        flag("--once", "print one plain table of all queues, and exit"),
        flag("--no-colour", "no colours, as with NO_COLOR in the environment"),
    )
    add(
        "servers",
        server_commands.servers,
        "show the members of a server set, and their addresses",
        "\nGets go to the members of the read set, puts to those of the write set.\n"
        "The exit status is 1 if the server set is empty.",
        [
            "kestrel-cli --server zk://zk1,zk2/services/kestrel servers",
            "kestrel-cli --server zk://zk1,zk2/services/kestrel servers --json | jq -r .service",
        ],
        _JSON_SERVERS,
    )
    add(
        "status",
        server_commands.status,
        "show the status of a server, or change it",
        "",
        ["kestrel-cli status", "kestrel-cli status ReadOnly"],
        argument("status", metavar="NEW", nargs="?", type=_status, help=", ".join(_STATUSES.values())),
    )
    add("reload", server_commands.reload, "make the server read its configuration again", "", ["kestrel-cli reload"])
    add(
        "dump-config",
        server_commands.dump_config,
        "show the settings in effect for queues and aliases",
        "",
        ["kestrel-cli dump-config work"],
        _queues("only these queues, whether they exist or not (default: all)"),
        _JSON_SERVERS,
    )
    add("version", server_commands.version, "show the release of a server", "", ["kestrel-cli version"])
    add(
        "flush",
        server_commands.flush,
        "drop all items of a queue",
        " Open reads are kept.",
        ["kestrel-cli flush --yes work"],
        _QUEUE,
        _YES,
    )
    add(
        "delete",
        server_commands.delete,
        "delete a queue and all its items",
        "",
        ["kestrel-cli delete --yes work"],
        _QUEUE,
        _YES,
    )
    add(
        "close-range",
        server_commands.close_range,
        "release the items kept for a reader by ids that will not reconnect",
        " Items that are still in the queue stay there. This needs the thrift protocol.",
        ["kestrel-cli --protocol thrift close-range --yes work spark"],
        _QUEUE,
        argument("reader", metavar="READER", help="the reader's name; a Spark stream uses spark"),
        _YES,
    )
    add(
        "flush-expired",
        server_commands.flush_expired,
        "drop expired items, and show how many were dropped",
        "",
        ["kestrel-cli flush-expired work"],
        _queues("only these queues (default: all)"),
    )


if __name__ == "__main__":
    sys.exit(main())
