"""Moving the items of a queue from one server to others, so that none is lost wherever that ends."""

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
    """What is not known of the last item."""

    NONE = auto()
    MAY_COME_AGAIN = auto()
    """It is at the target. Whether it is at the source as well is not known."""
    MAY_BE_PUT = auto()
    """It is at the source. Whether it is at the target as well is not known."""


class ItemMover:
    """Takes the items of a queue one by one as open reads, puts each to the target, and gives it up only then."""

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
        """`is_over` is asked before each item, `moved` told the size of each one that is at the target."""
        self._source = source
        self._queue = queue
        self._load = BatchLoad(servers, target, None)
        self._is_over = is_over
        self._tell_moved = moved
        self.uncertain_item = UncertainItem.NONE

    @property
    def moved(self) -> int:
        """How many items are at the target."""
        return self._load.stored

    def drain(self) -> int:
        """Move all that there is. Returns how many are there all the same, held by other clients or just come.

        Raises `ClientFailure` for the source and `ToolFailed` for the target. Then `uncertain_item` is the item whose
        state is not known.
        """
        left: float = inf
        while True:
            before = self.moved
            self._move_all()
            if self._is_over():
                return 0
            items, held = self._source.queues().figures.get(self._queue, (0, 0))
            # siberite says of an empty item that there is none, and has one less after that.
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
            with suppress(ClientFailure):  # without a connection it goes back by itself
                self._source.abort(self._queue)
            raise
        self._tell_moved(len(data))
