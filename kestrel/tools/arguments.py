"""What the tools' command lines have in common."""

from __future__ import annotations

import errno
import os
import re
from argparse import ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable
from typing import Final

import kestrel
from kestrel.client.arguments import LONGEST_TIMEOUT_S
from kestrel.cluster.uri import is_server_set
from kestrel.config.units import parse_duration_ms
from kestrel.errors import BadQueueName
from kestrel.journal.fileset import JournalFileKind, parse_file_name
from kestrel.names import check_queue_name
from kestrel.tls import TlsOptions
from kestrel.tools.completion import add_completion_option
from kestrel.tools.tool_runner import EX_USAGE, ToolFailed

ENVIRONMENT: Final = "KESTREL_SERVERS"
"""The variable that names the servers where the command line does not."""

_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_SECONDS: Final = re.compile(r"[0-9]{1,18}(\.[0-9]{1,18})?|\.[0-9]{1,18}")

_LONGEST_MS: Final = 36_500 * 86_400_000
"""A hundred years: no clock of the system, and no sum of two of them, overflows at that."""


def make_parser(tool: str, description: str, epilog: str) -> ArgumentParser:
    """A parser that shows its epilog, which has the examples, as it is written, and knows what every tool does."""
    parser = ArgumentParser(
        prog=tool,
        description=description,
        epilog=epilog,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"{tool} {kestrel.__version__}")
    add_completion_option(parser)
    return parser


def queue_name(text: str) -> bytes:
    """A queue's name from its spelling, which is that of its current file's name."""
    file = parse_file_name(os.fsencode(text))
    if file is None or file.kind is not JournalFileKind.CURRENT:
        raise ArgumentTypeError(f"no queue can have the name {text!r}; write it as its current file is called")
    return file.queue


def add_queue_option(parser: ArgumentParser) -> None:
    """``--queue NAME``, which may be given several times."""
    parser.add_argument(
        "--queue",
        metavar="NAME",
        type=queue_name,
        action="append",
        default=[],
        dest="queues",
        help="this queue of the folder, such as work or work+child; may be given several times (default: all)",
    )


def path_name(text: str) -> str:
    """The name of a file or folder. No name is none: it is what the shell makes of a variable that nobody has set."""
    if not text:
        raise ArgumentTypeError("no file and no folder has an empty name")
    return text


def split_servers(text: str) -> list[str]:
    """The servers in the variable's text: commas or white space, or both, stand between, and about. A server set has
    commas of its own."""
    words = text.split()
    return words if len(words) == 1 and is_server_set(words[0]) else re.findall(r"[^\s,]+", text)


def wire_queue_name(text: str) -> bytes:
    """A queue's name as it is sent to a server: the bytes that the shell gave."""
    name = os.fsencode(text)
    try:
        check_queue_name(name)
    except BadQueueName as error:
        raise ArgumentTypeError(str(error)) from None
    return name


def positive(text: str) -> int:
    """A whole number from 1 on."""
    number = int(text) if _NUMBER.fullmatch(text) else 0
    if not number:
        raise ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return number


def duration_ms(text: str) -> int:
    """A duration, such as ``100ms`` or ``1m30s``, or a number of seconds; in milliseconds."""
    number: object = float(text) if _SECONDS.fullmatch(text) else text
    try:
        ms = parse_duration_ms(number)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None
    if ms > _LONGEST_MS:
        raise ArgumentTypeError(f"{text!r} is more than 36500 days, the longest that there is")
    return ms


def duration_s(text: str) -> float:
    """The same in seconds."""
    return duration_ms(text) / 1000


def positive_duration_s(text: str) -> float:
    """The same, and it is not 0."""
    seconds = duration_s(text)
    if not seconds:
        raise ArgumentTypeError("it must be some time")
    return seconds


def wire_duration_s(text: str) -> float:
    """The same, and a request can say it, as the system can be asked to wait so long for an answer."""
    seconds = positive_duration_s(text)
    if seconds > LONGEST_TIMEOUT_S:
        raise ArgumentTypeError(f"{text!r} is more than {LONGEST_TIMEOUT_S} seconds (24 days), the longest here")
    return seconds


def add_tls_options(add: Callable[..., object]) -> None:
    """``--tls``, and what goes with it. `add` is called as ``ArgumentParser.add_argument`` is."""
    add("--tls", help="over TLS; the server's certificate is verified", default=False, action="store_true")
    signer = "who signs the server's certificate (default: whom the system trusts)"
    add("--ca", help=signer, metavar="FILE", type=path_name)
    add("--cert", help="the certificate to show to the server", metavar="FILE", type=path_name)
    add("--key", help="its key, where that is in another file", metavar="FILE", type=path_name)
    add("--server-name", help="whom the certificate is for (default: the host)", metavar="NAME")


def tls_options(parser: ArgumentParser, arguments: Namespace) -> TlsOptions | None:
    """What the options of TLS say, None without ``--tls``. Raises as `tls_files` does."""
    if arguments.tls:
        return tls_files(parser, arguments)
    if any(each is not None for each in (arguments.ca, arguments.cert, arguments.key, arguments.server_name)):
        parser.error("--ca, --cert, --key and --server-name want --tls")
    return None


def tls_files(parser: ArgumentParser, arguments: Namespace) -> TlsOptions:
    """What the options of TLS say. Raises `ToolFailed` where a file cannot be used, with its name and option."""
    if arguments.key is not None and arguments.cert is None:
        parser.error("--key wants the --cert that it belongs to")
    options = TlsOptions(arguments.ca, arguments.cert, arguments.key, arguments.server_name)
    try:
        options.context()
    except OSError as error:
        given = {arguments.ca: "--ca", arguments.cert: "--cert", arguments.key: "--key"}
        is_read = error.errno == errno.EINVAL  # what is in it is of no use
        problem = f"used: {error.strerror}; is it PEM?" if is_read else f"read: {error.strerror}"
        raise ToolFailed(f"{given[error.filename]}: {error.filename} cannot be {problem}", EX_USAGE) from None
    return options
