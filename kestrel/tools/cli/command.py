"""Command line of kestrel-cli."""

from __future__ import annotations

import sys
from argparse import SUPPRESS, Action, ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any, Final, NoReturn

from kestrel.tools.arguments import (
    add_server_options,
    duration_s,
    make_parser,
    positive,
    positive_duration_s,
    tls_files,
    wire_duration_s,
    wire_queue_name,
    with_servers,
)
from kestrel.tools.cli import drain_command, item_commands, server_commands
from kestrel.tools.cli.servers import TOOL, CommandServers
from kestrel.tools.tool_runner import EX_USAGE, Clock, run
from kestrel.tools.top.admin_client import DEFAULT_ADMIN, AdminClient
from kestrel.tools.top.command import top
from kestrel.tools.top.screen import SORTS

_SERVER_OPTIONS: Final = (
    "\n\n--server and the other options of kestrel-cli (kestrel-cli --help) can also be given here."
)

_MAKES_A_QUEUE: Final = "\nThe server creates the queue if it does not exist."

Command = Callable[..., int]
"""Function of a command. It takes the servers (`CommandServers` or `AdminClient`), the arguments and a clock."""

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


def main(argv: Sequence[str] | None = None, clock: Clock | None = None) -> int:
    """Run the command and return its exit status."""
    return run(TOOL, lambda: _do(argv, clock or Clock()))


def _do(argv: Sequence[str] | None, clock: Clock) -> int:
    parser = _parser()
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        hint = "; write items that begin with - after --: put QUEUE -- -x" if arguments.do is item_commands.put else ""
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    do: Command = arguments.do
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
    tls = tls_files(parser, arguments)
    try:
        client = AdminClient(arguments.admin, tls, arguments.timeout, clock.seconds)
    except ValueError as error:
        parser.error(f"--admin: {error}")
    is_given = any(each is not None for each in (arguments.ca, arguments.cert, arguments.key, arguments.server_name))
    if is_given and not client.is_https:
        parser.error("--ca, --cert, --key and --server-name need --admin https://HOST:PORT")
    return client


def _parser() -> ArgumentParser:
    parser = make_parser(TOOL, _DESCRIPTION, _EPILOG, _MainParser)
    _server_options(parser)
    _Commands(parser).add_all()
    return parser


def _server_options(parser: ArgumentParser, *, is_of_command: bool = False) -> None:
    """Add the options that may be given before or after the command.

    Those of the command override the ones before it, and its help does not repeat them.
    """

    def add(option: str, **more: Any) -> None:
        if is_of_command:
            more |= {"help": SUPPRESS, "default": SUPPRESS}
        parser.add_argument(option, **more)

    add_server_options(add)


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


class _Commands:
    """The parsers of the commands."""

    def __init__(self, parser: ArgumentParser) -> None:
        self._commands = parser.add_subparsers(
            metavar="COMMAND", required=True, title="commands", parser_class=_CommandParser
        )

    def add_all(self) -> None:
        """Add all commands, in the order of the help."""
        self._help()
        self._put()
        self._get()
        self._peek()
        self._monitor()
        self._drain()
        self._list()
        self._stats()
        self._top()
        self._servers()
        self._status()
        self._reload()
        self._dump_config()
        self._version()
        self._flush()
        self._delete()
        self._close_range()
        self._flush_expired()

    def _add(self, name: str, do: Command, short: str, more: str, *examples: str) -> ArgumentParser:
        parser = self._commands.add_parser(
            name,
            help=short,
            description=f"{short[0].upper()}{short[1:]}.{more}",
            epilog="examples:\n" + "\n".join(f"  {example}" for example in examples) + _SERVER_OPTIONS,
            formatter_class=RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        parser.set_defaults(do=do)
        _server_options(parser, is_of_command=True)
        return parser

    def _help(self) -> None:
        parser = self._add("help", _help, "show this help, or that of a command", "", "kestrel-cli help put")
        parser.add_argument("command", metavar="OTHER", nargs="*", help="the command to explain")

    def _put(self) -> None:
        parser = self._add(
            "put",
            item_commands.put,
            "put items to the end of a queue",
            "\nWithout ITEM, items are read from standard input. Write items that begin with - after --.",
            "kestrel-cli put work hello 'two words'",
            "kestrel-cli put work -- -1 --not-an-option",
            "kestrel-cli put work <lines.txt",
            "kestrel-cli put --whole --expires-in 1h pictures <cat.jpg",
            "kestrel-cli get --all --length-prefixed old | kestrel-cli put --length-prefixed new",
        )
        _queue(parser)
        parser.add_argument("items", metavar="ITEM", nargs="*", default=[], help="an item to put")
        form = parser.add_mutually_exclusive_group()
        form.add_argument(
            "--length-prefixed",
            action="store_true",
            help="each item of standard input follows its length, 4 bytes big-endian (default: one item a line)",
        )
        form.add_argument("--whole", action="store_true", help="standard input is one item")
        parser.add_argument(
            "--expires-in", metavar="DURATION", type=wire_duration_s, help="the items expire after this time"
        )
        parser.add_argument("-q", "--quiet", action="store_true", help="print nothing on success")

    def _get(self) -> None:
        parser = self._add(
            "get",
            item_commands.get,
            "take items from a queue, and write them one a line",
            "\nEach item is confirmed after it is written; an item that cannot be written stays in the queue.\n"
            "The exit status is 1 if there was no item." + _MAKES_A_QUEUE,
            "kestrel-cli get work",
            "kestrel-cli get --all work >lines.txt",
            "kestrel-cli get --wait 1m work || echo nothing came",
        )
        _queue(parser)
        how_many = parser.add_mutually_exclusive_group()
        how_many.add_argument(
            "-n", "--number", metavar="N", type=positive, default=1, help="take up to N items (default: 1)"
        )
        how_many.add_argument("--all", action="store_true", help="take items until the queue is empty")
        parser.add_argument(
            "--wait", metavar="DURATION", type=duration_s, default=0.0, help="wait up to this long for each item"
        )
        _form(parser)

    def _peek(self) -> None:
        parser = self._add(
            "peek",
            item_commands.peek,
            "show the item at the head of a queue, and leave it there",
            "\nThe exit status is 1 if there is no item." + _MAKES_A_QUEUE,
            "kestrel-cli peek work",
        )
        _queue(parser)
        _form(parser)

    def _monitor(self) -> None:
        parser = self._add(
            "monitor",
            item_commands.monitor,
            "take items as they come, and write them one a line",
            "\nEach item is confirmed after it is written. Ctrl-C ends the command. If the server disconnects, the\n"
            "command ends with status 3." + _MAKES_A_QUEUE,
            "kestrel-cli monitor work",
            "kestrel-cli monitor --for 1h --json events | jq .data",
        )
        _queue(parser)
        parser.add_argument("-n", "--number", metavar="N", type=positive, help="end after N items")
        parser.add_argument(
            "--for", metavar="DURATION", type=positive_duration_s, dest="duration", help="end after this time"
        )
        _form(parser)

    def _drain(self) -> None:
        parser = self._add(
            "drain",
            drain_command.drain,
            "move all items of queues of another server to this one",
            "\nThe other server may be a Kestrel, darner or siberite, and keeps serving clients. Each item is put\n"
            "here before it is removed there. If the command is cut off, no item is lost, and one may be on both.\n"
            "The exit status is 1 if items are left on the other server.",
            "kestrel-cli drain --from old:22133 work mail",
            "kestrel-cli --server new drain --from old --all",
            "kestrel-cli drain --from old --as mail_high mail.high",
        )
        parser.add_argument(
            "queues", metavar="QUEUE", nargs="*", default=[], type=drain_command.source_queue, help="a queue to drain"
        )
        parser.add_argument(
            "--from",
            metavar="HOST[:PORT]",
            required=True,
            dest="source",
            type=drain_command.source_address,
            help="the server to drain, with its memcache port",
        )
        parser.add_argument("--all", action="store_true", help="drain all queues of that server")
        parser.add_argument(
            "--as", metavar="NAME", dest="new_name", type=wire_queue_name, help="the queue's name here, for one QUEUE"
        )
        form = parser.add_mutually_exclusive_group()
        form.add_argument("--json", action="store_true", help="print JSON, one object per queue")
        form.add_argument("-q", "--quiet", action="store_true", help="print nothing on success")

    def _list(self) -> None:
        self._add(
            "list",
            server_commands.list_queues,
            "list the names of all queues, one a line",
            "",
            "kestrel-cli list",
            "kestrel-cli list | grep mail",
        )

    def _stats(self) -> None:
        parser = self._add(
            "stats",
            server_commands.stats,
            "show statistics of servers and queues",
            "\nThe last wait is the time that the item taken last had spent in the queue.\n"
            "Oldest is the age of the first item.",
            "kestrel-cli stats",
            "kestrel-cli stats work mail --watch 5s",
            "kestrel-cli stats --json | jq '.queues.work.items'",
        )
        _queues(parser, "only these queues (default: all)")
        form = parser.add_mutually_exclusive_group()
        form.add_argument("--json", action="store_true", help="print JSON, one object per server")
        form.add_argument("--raw", action="store_true", help="print the STAT lines of the server")
        parser.add_argument(
            "--watch",
            metavar="DURATION",
            nargs="?",
            type=positive_duration_s,
            const=2.0,
            help="repeat at this interval (default: 2s) until Ctrl-C, also while a server is unreachable",
        )

    def _top(self) -> None:
        parser = self._add(
            "top",
            top,
            "show a server and its queues continuously",
            " It asks the server's admin port.\nWithout a terminal it prints one plain table. Press h to see the keys.",
            "kestrel-cli top",
            "kestrel-cli top --sort puts --filter mail",
            "kestrel-cli top --admin https://mq1:2223 --ca ca.pem",
            "kestrel-cli top --once | head",
        )
        parser.add_argument(
            "--admin", metavar="URL", default=DEFAULT_ADMIN, help=f"the admin port (default: {DEFAULT_ADMIN})"
        )
        parser.add_argument(
            "--interval",
            metavar="DURATION",
            type=positive_duration_s,
            default=2.0,
            help="refresh interval, over which rates are measured (default: 2s)",
        )
        parser.add_argument("--sort", choices=SORTS, default="items", help="column to sort by (default: items)")
        parser.add_argument("--filter", metavar="TEXT", default="", help="show only queues with TEXT in their names")
        parser.add_argument("--once", action="store_true", help="print one plain table of all queues, and exit")
        parser.add_argument("--no-colour", action="store_true", help="no colours, as with NO_COLOR in the environment")

    def _servers(self) -> None:
        parser = self._add(
            "servers",
            server_commands.servers,
            "show the members of a server set, and their addresses",
            "\nGets go to the members of the read set, puts to those of the write set.\n"
            "The exit status is 1 if the server set is empty.",
            "kestrel-cli --server zk://zk1,zk2/services/kestrel servers",
            "kestrel-cli --server zk://zk1,zk2/services/kestrel servers --json | jq -r .service",
        )
        parser.add_argument("--json", action="store_true", help="print JSON, one object per server")

    def _status(self) -> None:
        parser = self._add(
            "status",
            server_commands.status,
            "show the status of a server, or change it",
            "",
            "kestrel-cli status",
            "kestrel-cli status ReadOnly",
        )
        parser.add_argument("status", metavar="NEW", nargs="?", type=_status, help=", ".join(_STATUSES.values()))

    def _reload(self) -> None:
        self._add(
            "reload",
            server_commands.reload,
            "make the server read its configuration again",
            "",
            "kestrel-cli reload",
        )

    def _dump_config(self) -> None:
        parser = self._add(
            "dump-config",
            server_commands.dump_config,
            "show the settings in effect for queues and aliases",
            "",
            "kestrel-cli dump-config work",
        )
        _queues(parser, "only these queues, whether they exist or not (default: all)")
        parser.add_argument("--json", action="store_true", help="print JSON, one object per server")

    def _version(self) -> None:
        self._add("version", server_commands.version, "show the release of a server", "", "kestrel-cli version")

    def _flush(self) -> None:
        parser = self._add(
            "flush",
            server_commands.flush,
            "drop all items of a queue",
            " Open reads are kept.",
            "kestrel-cli flush --yes work",
        )
        _queue(parser)
        _yes(parser)

    def _delete(self) -> None:
        parser = self._add(
            "delete", server_commands.delete, "delete a queue and all its items", "", "kestrel-cli delete --yes work"
        )
        _queue(parser)
        _yes(parser)

    def _close_range(self) -> None:
        parser = self._add(
            "close-range",
            server_commands.close_range,
            "release the items kept for a reader by ids that will not reconnect",
            " Items that are still in the queue stay there. This needs the thrift protocol.",
            "kestrel-cli --protocol thrift close-range --yes work spark",
        )
        _queue(parser)
        parser.add_argument("reader", metavar="READER", help="the reader's name; a Spark stream uses spark")
        _yes(parser)

    def _flush_expired(self) -> None:
        parser = self._add(
            "flush-expired",
            server_commands.flush_expired,
            "drop expired items, and show how many were dropped",
            "",
            "kestrel-cli flush-expired work",
        )
        _queues(parser, "only these queues (default: all)")


def _queue(parser: ArgumentParser) -> None:
    parser.add_argument("queue", metavar="QUEUE", type=wire_queue_name, help="the queue's name")


def _queues(parser: ArgumentParser, what: str) -> None:
    parser.add_argument("queues", metavar="QUEUE", nargs="*", default=[], type=wire_queue_name, help=what)


def _form(parser: ArgumentParser) -> None:
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--length-prefixed", action="store_true", help="write each item after its length, 4 bytes big-endian"
    )
    form.add_argument("--json", action="store_true", help='print JSON lines: {"data": TEXT}, or {"base64": BYTES}')
    form.add_argument("--raw", action="store_true", help="write control characters unescaped, also on a terminal")


def _yes(parser: ArgumentParser) -> None:
    parser.add_argument(
        "-y", "--yes", action="store_true", help="do not ask for confirmation (it is asked only on a terminal)"
    )


_STATUSES: Final = {name.lower(): name for name in ("Up", "WriteAvoid", "ReadOnly", "Quiescent")}


def _status(text: str) -> str:
    if text.lower() not in _STATUSES:
        raise ArgumentTypeError(f"there is no status {text!r}; there are {', '.join(_STATUSES.values())}")
    return _STATUSES[text.lower()]


if __name__ == "__main__":
    sys.exit(main())
