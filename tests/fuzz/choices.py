"""Inputs with choices of the fuzzer at their end, such as limits and the sizes of pieces.

Choices are read backwards from the end. An input therefore begins like real data, and real data without choices are a
valid input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


class Choices:
    """Reads choices from the end of an input. A missing choice is 0."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._left = len(data)

    def number(self, below: int) -> int:
        """Return a number from 0 to `below` - 1, from one byte."""
        if not self._left:
            return 0
        self._left -= 1
        return self._data[self._left] % below

    def numbers(self, max_count: int) -> list[int]:
        """Return up to that many bytes as numbers."""
        return [self.number(256) for _ in range(self.number(max_count + 1))]

    def rest(self) -> bytes:
        """Return the input without the choices that were read."""
        return self._data[: self._left]


def with_choices(data: bytes, *choices: int) -> bytes:
    """Return an input that consists of these data and choices."""
    return data + bytes(reversed(choices))


def split_at(stream: bytes, sizes: Sequence[int]) -> list[bytes]:
    """Return a stream in pieces of these sizes and a last piece. A size of 0 means 1."""
    pieces = []
    for size in sizes:
        piece, stream = stream[: size or 1], stream[size or 1 :]
        pieces.append(piece)
    return [piece for piece in (*pieces, stream) if piece]


def repairing(choose: Callable[[Choices], object], repair: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """Return a function that repairs the data of an input, and keeps the choices that `choose` reads."""

    def repaired(data: bytes) -> bytes:
        choices = Choices(data)
        choose(choices)
        stream = choices.rest()
        return repair(stream) + data[len(stream) :]

    return repaired
