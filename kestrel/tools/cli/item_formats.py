"""Formats in which items are written to standard output."""

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
"""Function that writes one item. The item has left this process only when `Output.flush` has returned."""


def length_prefixed(output: Output) -> WriteItem:
    """Return a writer of items, each after its length as 4 big-endian bytes."""
    return lambda data: output.exactly(len(data).to_bytes(LENGTH_BYTES, "big") + data)


def as_json(output: Output) -> WriteItem:
    """Return a writer of one JSON object per line: ``data`` as text, or ``base64`` if the item is not UTF-8."""

    def write(data: bytes) -> None:
        try:
            output.object({"data": data.decode("utf-8")})
        except UnicodeDecodeError:
            output.object({"base64": base64.b64encode(data).decode("ascii")})

    return write


def escaped_lines(output: Output) -> WriteItem:
    """Return a writer of one item per line. Control characters are escaped, because a terminal might obey them."""
    return lambda data: output.line(show_data(data))


class RawLines:
    """A writer of one unchanged item per line. It warns at the first item that contains a line feed."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._has_warned = False

    def __call__(self, data: bytes) -> None:
        self._output.raw(data)
        if b"\n" in data and not self._has_warned:
            self._has_warned = True
            print_error(TOOL, "an item has a line feed in it: use --length-prefixed or --json to tell where items end")
