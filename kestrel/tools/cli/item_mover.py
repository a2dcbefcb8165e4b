"""Moving the items of a queue from one server to others, without losing one if that is cut off."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from math import inf

from kestrel.client.errors import ClientFailure
from kestrel.tools.cli.batch_load import BatchLoad
from kestrel.tools.cli.drain_source import DrainSource
from kestrel.tools.cli.servers import CommandServers
from kestrel.tools.tool_runner import ToolFailed


class UncertainItem(Enum):
    """Where the item being moved may be after an error."""

    NONE = auto()
    MAY_COME_AGAIN = auto()
    """The item is at the target. It may also be at the source."""
    MAY_BE_PUT = auto()
    """The item is at the source. It may also be at the target."""


class ItemMover:
    """A mover of the items of one queue: it opens each item, puts it to the target, and only then confirms it."""

    def __init__(
        self,
        source: DrainSource,
        queue: bytes,
        servers: CommandServers,
        target: bytes,
        *,
        is_over: Callable[[], bool],
        moved: Callable[[int], None],
    ) -> None:
        """Prepare to move items. Nothing is requested yet.

        `is_over` is called before each item, and ends the move if it returns True. `moved` is called with the size of
        each item that was put to the target.
        """
        self._source = source
        self._queue = queue
        self._load = BatchLoad(servers, target, None)
        self._is_over = is_over
        self._tell_moved = moved
        self.uncertain_item = UncertainItem.NONE

    @property
    def moved(self) -> int:
        """Number of items put to the target."""
        return self._load.stored

    def drain(self) -> int:
        """Move all items. Return how many are left: open reads of other clients, or items that have just arrived.

        Raise `ClientFailure` if the source fails and `ToolFailed` if the target fails. `uncertain_item` then says
        where the last item may be.
        """
        left: float = inf
        while True:
            before = self.moved
            self._move_all()
            if self._is_over():
                return 0
            items, held = self._source.queues().figures.get(self._queue, (0, 0))
            # siberite answers an empty item like an empty queue, and drops the item.
            if not items or (items >= left and self.moved == before):
                return items + held
            left = items

    def _move_all(self) -> None:
        if self._is_over():
            return
        data = self._source.open(self._queue)
        while data is not None:
            self._put(data)
            self.uncertain_item = UncertainItem.MAY_COME_AGAIN
            if self._is_over():
                self._source.close_item(self._queue)
                data = None
            else:
                data = self._source.close_and_open(self._queue)
            self.uncertain_item = UncertainItem.NONE

    def _put(self, data: bytes) -> None:
        self.uncertain_item = UncertainItem.MAY_BE_PUT
        try:
            self._load.put([data])
        except ToolFailed:
            if not self._load.is_uncertain:
                self.uncertain_item = UncertainItem.NONE
            with suppress(ClientFailure):  # if the connection is lost, the server puts the item back
                self._source.abort(self._queue)
            raise
        self._tell_moved(len(data))
