"""What the tools' command lines have in common."""

from __future__ import annotations

import os
import re
from argparse import ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter
from typing import Final

import kestrel
from kestrel.config.units import parse_duration_ms
from kestrel.errors import BadQueueName
from kestrel.journal.fileset import Kind, parse_file_name
from kestrel.names import check_queue_name
from kestrel.tools.completion import add_completion_option

_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_SECONDS: Final = re.compile(r"[0-9]{1,18}(\.[0-9]{1,18})?")


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
    if file is None or file.kind is not Kind.CURRENT:
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


def sent_queue_name(text: str) -> bytes:
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


def duration_s(text: str) -> float:
    """A duration, such as ``100ms`` or ``1m30s``, or a number of seconds; in seconds."""
    number: object = float(text) if _SECONDS.fullmatch(text) else text
    try:
        return parse_duration_ms(number) / 1000
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def positive_duration_s(text: str) -> float:
    """The same, and it is not 0."""
    seconds = duration_s(text)
    if not seconds:
        raise ArgumentTypeError("it must be some time")
    return seconds
