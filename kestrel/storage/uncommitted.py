"""maxUncommittedBytes: how much has been put that is not safe yet, and who waits to put more.

A disk that syncs slowly slows those who put down to its pace; one that hangs must not let them fill the memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from kestrel.errors import StorageRefused

PUT_BYTES: Final = 256
"""What an item takes besides its data until it is safe: its records, its command, the reply that is held."""


class PlaceInLine:
    """Somebody wants to put `size` bytes. `go_on` is called when there is room, which is kept until it `begins`."""

    __slots__ = ("go_on", "size")

    def __init__(self, size: int, go_on: Callable[[], None]) -> None:
        self.size = size
        self.go_on = go_on


class Uncommitted:
    """Items of all queues that are in no batch that is safe or lost, each with `PUT_BYTES` besides its data.

    There is no more room at `most_bytes` (None: no limit), but always for one item; as much again may wait in line.
    """

    def __init__(self, most_bytes: int | None = None) -> None:
        self.most_bytes = most_bytes
        self.bytes = 0
        self._line: OrderedDict[PlaceInLine, None] = OrderedDict()
        self._line_bytes = 0
        self._promised: dict[PlaceInLine, None] = {}
        """Who may go on and has not begun."""
        self._promised_bytes = 0

    @property
    def has_room(self) -> bool:
        """Whether who has begun may put more."""
        return self.most_bytes is None or self.bytes + self._promised_bytes < self.most_bytes

    @property
    def is_full(self) -> bool:
        """Whether who comes now has to wait: nobody goes before those who wait."""
        return bool(self._line) or not self.has_room

    def wait(self, size: int, go_on: Callable[[], None]) -> PlaceInLine:
        """Stand in line with so many bytes. Raises `StorageRefused` when there is too much in it already."""
        if self.most_bytes is not None and self._line and self._line_bytes + size > self.most_bytes:
            raise StorageRefused("too much waits for the storage, which is slow or hangs")
        place = PlaceInLine(size, go_on)
        self._line[place] = None
        self._line_bytes += size
        return place

    def begins(self, place: PlaceInLine) -> None:
        """Who may go on does so, with one item in any case. `let_in` follows, whatever came of it."""
        del self._promised[place]
        self._promised_bytes -= place.size

    def leave(self, place: PlaceInLine) -> None:
        """Wait no longer."""
        if place in self._line:
            del self._line[place]
            self._line_bytes -= place.size
        else:
            self.begins(place)
            self.let_in()

    def use(self, most_bytes: int | None) -> None:
        """Another limit holds from now on."""
        self.most_bytes = most_bytes
        self.let_in()

    def is_settled(self, size: int) -> None:
        """So many bytes are safe, or lost."""
        self.bytes -= size
        self.let_in()

    def let_in(self) -> None:
        """As many go on as there is room for now."""
        while self._line and self.has_room:
            place, _ = self._line.popitem(last=False)
            self._line_bytes -= place.size
            self._promised[place] = None
            self._promised_bytes += place.size
            place.go_on()
