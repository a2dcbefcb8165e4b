"""An input taken apart: bytes to be fed, and behind them what the fuzzer chooses.

The choices stand at the end and are read backwards, so that an input begins as the thing that it stands for does, and
an input without choices is one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


class Fed:
    """Gives choices from the end of an input; where it has no more bytes a choice is 0. `rest` is what is fed."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._left = len(data)

    def number(self, below: int) -> int:
        """A number from 0 on, of a byte."""
        if not self._left:
            return 0
        self._left -= 1
        return self._data[self._left] % below

    def numbers(self, most: int) -> list[int]:
        """Up to so many bytes as numbers."""
        return [self.number(256) for _ in range(self.number(most + 1))]

    def rest(self) -> bytes:
        """What is not chosen by."""
        return self._data[: self._left]


def fed(data: bytes, *choices: int) -> bytes:
    """The input that gives these choices in this order, and that rest."""
    return data + bytes(reversed(choices))


def cut(stream: bytes, sizes: Sequence[int]) -> list[bytes]:
    """A stream in pieces of these sizes, the last of all that is left; a size of 0 is a piece of one byte as well."""
    pieces = []
    for size in sizes:
        piece, stream = stream[: size or 1], stream[size or 1 :]
        pieces.append(piece)
    return [piece for piece in (*pieces, stream) if piece]


def mending(choose: Callable[[Fed], object], mend: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """Mends what is fed, and leaves the choices that `choose` makes as they are."""

    def mended(data: bytes) -> bytes:
        choices = Fed(data)
        choose(choices)
        stream = choices.rest()
        return mend(stream) + data[len(stream) :]

    return mended
