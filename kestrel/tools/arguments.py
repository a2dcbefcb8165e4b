"""What the tools' command lines have in common."""

from __future__ import annotations

import os
from argparse import ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter

import kestrel
from kestrel.journal.fileset import Kind, parse_file_name


def make_parser(tool: str, description: str, epilog: str) -> ArgumentParser:
    """A parser that shows its epilog, which has the examples, as it is written."""
    parser = ArgumentParser(
        prog=tool,
        description=description,
        epilog=epilog,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"{tool} {kestrel.__version__}")
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
        help="this queue of the folder, spelled as its file is called; may be given several times (default: all)",
    )
