"""Argument types and options that the tools' command lines share."""

from __future__ import annotations

import errno
import os
import re
from argparse import Action, ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NoReturn, TypeAlias, TypeVar

import kestrel
from kestrel.address import DEFAULT_PORTS
from kestrel.client.arguments import LONGEST_TIMEOUT_S
from kestrel.cluster.uri import KazooMissing, is_server_set
from kestrel.config.units import parse_duration_ms
from kestrel.errors import BadQueueName
from kestrel.journal.fileset import JournalFileKind, parse_file_name
from kestrel.names import check_queue_name
from kestrel.tls import TlsOptions
from kestrel.tools.tool_runner import BadUsage, Output, explain_os_error

T = TypeVar("T")

ENVIRONMENT: Final = "KESTREL_SERVERS"
"""Environment variable that names the servers if the command line does not."""

_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_SECONDS: Final = re.compile(r"[0-9]{1,18}(\.[0-9]{1,18})?|\.[0-9]{1,18}")

_LONGEST_MS: Final = 36_500 * 86_400_000
"""A hundred years: neither a system clock nor the sum of two durations overflows."""

SHELLS: Final = ("bash", "zsh", "fish", "tcsh")
"""Shells that shtab supports and that run on the server's systems."""

_FILES: Final = frozenset({"FILE", "PATH", "IN", "PRODUCTION.SCALA"})
_FOLDERS: Final = frozenset({"FOLDER", "DIR"})
"""Metavars of the arguments that name a folder; `_FILES` has those that name a file."""


AddArguments: TypeAlias = Callable[[Any], object]
"""Adds arguments to a parser or to a group of one."""


def make_parser(
    tool: str, description: str, epilog: str, *arguments: AddArguments, kind: type[ArgumentParser] = ArgumentParser
) -> ArgumentParser:
    """Return a parser with these arguments and the options of every tool.

    It shows the epilog, which has the examples, unwrapped.
    """
    parser = kind(
        prog=tool,
        description=description,
        epilog=epilog,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"{tool} {kestrel.__version__}")
    parser.add_argument(
        "--print-completion",
        metavar="SHELL",
        choices=SHELLS,
        action=_PrintCompletion,
        help=f"print the completion script for this shell ({', '.join(SHELLS)}), and exit",
    )
    for add in arguments:
        add(parser)
    return parser


def argument(*names: str, **options: Any) -> AddArguments:
    """Return an argument, with the options of ``ArgumentParser.add_argument``."""
    return lambda parser: parser.add_argument(*names, **options)


def flag(*names_and_help: str) -> AddArguments:
    """Return an option without a value, false by default. The last argument is its help."""
    *names, help = names_and_help
    return argument(*names, action="store_true", help=help)


def option(
    names: str, metavar: str, type: Callable[[str], Any], help: str, default: str | int | None = None, **options: Any
) -> AddArguments:
    """Return an option with a value. `names` are separated by spaces.

    The help shows the default, which is written as on the command line: argparse applies `type` to a string.
    """
    if default is not None:
        help += f" (default: {default})"
    return argument(*names.split(), metavar=metavar, type=type, help=help, default=default, **options)


def one_of(*arguments: AddArguments) -> AddArguments:
    """Return arguments that exclude each other."""

    def add(parser: ArgumentParser) -> None:
        group = parser.add_mutually_exclusive_group()
        for each in arguments:
            each(group)

    return add


def queue_name(text: str) -> bytes:
    """Parse a queue name, which is spelled like the name of the queue's current file."""
    file = parse_file_name(os.fsencode(text))
    if file is None or file.kind is not JournalFileKind.CURRENT:
        raise ArgumentTypeError(f"no queue can have the name {text!r}; write it like the name of its current file")
    return file.queue


add_queue_option: Final = argument(
    "--queue",
    metavar="NAME",
    type=queue_name,
    action="append",
    default=[],
    dest="queues",
    help="this queue of the folder, such as work or work+child; may be given several times (default: all)",
)


def path_name(text: str) -> str:
    """Return the name of a file or folder. Refuse an empty one: the shell makes it of an unset variable."""
    if not text:
        raise ArgumentTypeError("the name of a file or folder cannot be empty")
    return text


def split_servers(text: str) -> list[str]:
    """Split the variable's text into servers, at commas and white space.

    A server set has commas of its own, and is not split.
    """
    words = text.split()
    return words if len(words) == 1 and is_server_set(words[0]) else re.findall(r"[^\s,]+", text)


def wire_queue_name(text: str) -> bytes:
    """Return a queue name as it is sent to a server: the bytes of the argument."""
    name = os.fsencode(text)
    try:
        check_queue_name(name)
    except BadQueueName as error:
        raise ArgumentTypeError(str(error)) from None
    return name


def positive(text: str) -> int:
    """Parse a whole number of at least 1."""
    number = int(text) if _NUMBER.fullmatch(text) else 0
    if not number:
        raise ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return number


def int_in_range(least: int, most: int) -> Callable[[str], int]:
    """Return an argument type for whole numbers from `least` to `most`."""

    def parse(text: str) -> int:
        value = int(text) if _NUMBER.fullmatch(text) else -1
        if not least <= value <= most:
            raise ArgumentTypeError(f"{text!r} is not a number from {least:,} to {most:,}")
        return value

    return parse


def duration_ms(text: str) -> int:
    """Parse a duration, such as ``100ms`` or ``1m30s``, or a number of seconds. Return milliseconds."""
    number: object = float(text) if _SECONDS.fullmatch(text) else text
    try:
        ms = parse_duration_ms(number)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None
    if ms > _LONGEST_MS:
        raise ArgumentTypeError(f"{text!r} is more than 36500 days, the maximum")
    return ms


def duration_s(text: str) -> float:
    """Parse a duration, such as ``100ms`` or ``1m30s``, or a number of seconds. Return seconds."""
    return duration_ms(text) / 1000


def positive_duration_s(text: str) -> float:
    """Parse a duration that is not 0. Return seconds."""
    seconds = duration_s(text)
    if not seconds:
        raise ArgumentTypeError("it must be longer than 0")
    return seconds


def wire_duration_s(text: str) -> float:
    """Parse a duration that a request can carry and a socket can wait for: at most `LONGEST_TIMEOUT_S`, not 0."""
    seconds = positive_duration_s(text)
    if seconds > LONGEST_TIMEOUT_S:
        raise ArgumentTypeError(f"{text!r} is more than {LONGEST_TIMEOUT_S} seconds (24 days), the maximum")
    return seconds


def connection_options(protocols: Iterable[str]) -> tuple[AddArguments, ...]:
    """Return ``--protocol``, ``--timeout`` and the options of TLS."""
    signer = "CA certificates that verify the server's certificate (default: the system's)"
    return (
        argument(
            "--protocol",
            help="the protocol to use (default: memcache)",
            default="memcache",
            choices=tuple(protocols),
        ),
        flag("--tls", "use TLS, and verify the server's certificate"),
        option("--ca", "FILE", path_name, signer),
        option("--cert", "FILE", path_name, "client certificate to send to the server"),
        option("--key", "FILE", path_name, "private key of the certificate, if it is in another file"),
        option("--server-name", "NAME", str, "name that the server's certificate must have (default: the host)"),
        option("--timeout", "DURATION", wire_duration_s, "how long a server may take to answer", "10s"),
    )


SERVER_OPTIONS: Final = (
    argument(
        "--server",
        help="the server; several share the work, separated by commas or given one per option; or a server set,"
        f" zk://ZK1[:PORT],.../PATH, whose members share the work (default: {ENVIRONMENT}, or localhost)",
        default=[],
        metavar="HOST[:PORT]",
        action="append",
        dest="servers",
    ),
    *connection_options(DEFAULT_PORTS),
)
"""The options that name servers and say how to connect to them."""


def with_servers(parser: ArgumentParser, arguments: Namespace, make: Callable[[list[str], TlsOptions | None], T]) -> T:
    """Return ``make(servers, tls)`` for the servers of the command line, or of the environment, or localhost.

    Errors of `make` end the tool as usage errors: ValueError, `KazooMissing`, and OSError for files of a server set.
    """
    named: list[str] = []
    for servers in arguments.servers:
        named += [servers] if is_server_set(servers) else servers.split(",")  # a server set has commas of its own
    tls = tls_options(parser, arguments)
    try:
        return make(named or split_servers(os.environ.get(ENVIRONMENT, "")) or ["localhost"], tls)
    except ValueError as error:
        parser.error(str(error))
    except KazooMissing as error:
        raise BadUsage(str(error)) from None
    except OSError as error:  # a TLS file of the server set
        raise BadUsage(f"{explain_os_error(error)}; is it PEM? name another one in the zks://...") from None


def tls_options(parser: ArgumentParser, arguments: Namespace, needed: str = "--tls") -> TlsOptions | None:
    """Return the TLS options, or None without ``--tls``, which is called `needed` in a message.

    Raise `ToolFailed`, with the file's name and option, if a file cannot be used.
    """
    if not arguments.tls:
        if any(each is not None for each in (arguments.ca, arguments.cert, arguments.key, arguments.server_name)):
            parser.error(f"--ca, --cert, --key and --server-name need {needed}")
        return None
    if arguments.key is not None and arguments.cert is None:
        parser.error("--key needs the --cert that it belongs to")
    options = TlsOptions(arguments.ca, arguments.cert, arguments.key, arguments.server_name)
    try:
        options.context()
    except OSError as error:
        given = {arguments.ca: "--ca", arguments.cert: "--cert", arguments.key: "--key"}
        is_read = error.errno == errno.EINVAL  # the file was read, but its content is not valid
        problem = f"used: {error.strerror}; is it PEM?" if is_read else f"read: {error.strerror}"
        raise BadUsage(f"{given[error.filename]}: {error.filename} cannot be {problem}") from None
    return options


def completion(parser: ArgumentParser, shell: str) -> str:
    """Return the script for a shell of `SHELLS`. It completes commands, options, choices, and file names."""
    import shtab  # twenty times as slow to import as argparse, and seldom used

    for action in _actions(parser):
        name = action.metavar if isinstance(action.metavar, str) else ""
        if name in _FILES | _FOLDERS:
            action.complete = shtab.FILE if name in _FILES else shtab.DIRECTORY  # type: ignore[attr-defined]
    return shtab.complete(parser, shell)


class _PrintCompletion(Action):
    """An action that prints and exits at once, like --version, so that required arguments may be missing."""

    def __call__(
        self,
        parser: ArgumentParser,
        namespace: Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> NoReturn:
        output = Output()
        output.line(completion(parser, str(values)))
        output.flush()
        parser.exit()


def _actions(parser: ArgumentParser) -> Iterator[Action]:
    """Yield the actions of a parser and of its subcommands. argparse has no public API for them."""
    for action in parser._actions:
        yield action
        if isinstance(action.choices, dict):
            for command in action.choices.values():
                yield from _actions(command)
