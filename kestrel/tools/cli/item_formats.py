"""How items are written to standard output."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import TypeAlias

from kestrel.tools.cli.servers import TOOL
from kestrel.tools.cli.splitting import LENGTH_BYTES
from kestrel.tools.formatting import show_data
from kestrel.tools.output import Output
from kestrel.tools.tool_runner import print_error

WriteItem: TypeAlias = Callable[[bytes], None]
"""Writes one item. When `Output.flush` has returned as well, it has left this program."""


def length_prefixed(output: Output) -> WriteItem:
    """Its length in 4 bytes, the highest first, and the item."""
    return lambda data: output.exactly(len(data).to_bytes(LENGTH_BYTES, "big") + data)


def as_json(output: Output) -> WriteItem:
    """A JSON object on a line: ``data`` as text, or ``base64`` where it is no UTF-8."""

    def write(data: bytes) -> None:
        try:
            output.object({"data": data.decode("utf-8")})
        except UnicodeDecodeError:
            output.object({"base64": base64.b64encode(data).decode("ascii")})

    return write


def escaped_lines(output: Output) -> WriteItem:
    """One a line, without control characters, which a terminal might obey."""
    return lambda data: output.line(show_data(data))


class RawLines:
    """One a line, as they are. The first that has a line feed in it brings a warning."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._has_warned = False

    def __call__(self, data: bytes) -> None:
        self._output.raw(data)
        if b"\n" in data and not self._has_warned:
            self._has_warned = True
            print_error(TOOL, "an item has a line feed in it: use --length-prefixed or --json to tell where items end")
