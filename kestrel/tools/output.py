"""Standard output of the tools, written as bytes, independent of the locale."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any

from kestrel.tools.tool_runner import OutputFailed, output_failure


class Output:
    """Standard output. Raises BrokenPipeError if the reader has closed the pipe, `OutputFailed` on other errors."""

    def __init__(self) -> None:
        if sys.stdout is None:
            raise OutputFailed("standard output is closed: send it somewhere")
        self._stream = sys.stdout.buffer
        self.is_terminal = sys.stdout.isatty()

    def line(self, text: str) -> None:
        """Write a line of text."""
        self._write(text.encode("utf-8", "surrogateescape") + b"\n")

    def lines(self, texts: Iterable[str]) -> None:
        """Write lines of text."""
        for text in texts:
            self.line(text)

    def object(self, value: dict[str, Any]) -> None:
        """Write a JSON object on one line."""
        self._write(json.dumps(value).encode("ascii") + b"\n")

    def raw(self, data: bytes) -> None:
        """Write bytes unchanged, followed by a newline."""
        self._write(data)
        self._write(b"\n")

    def exactly(self, data: bytes) -> None:
        """Write bytes unchanged, without a newline."""
        self._write(data)

    def flush(self) -> None:
        """Flush the buffer to the reader."""
        try:
            self._stream.flush()
        except OSError as error:
            raise output_failure(error) from None

    def _write(self, data: bytes) -> None:
        try:
            self._stream.write(data)
        except OSError as error:
            raise output_failure(error) from None
