"""The server to drain, and moves of its items: Kestrel, darner, siberite or this server, over the memcache protocol.

The client uses only requests that all of them support: `stats`, and `get` with ``/open``, ``/close``, ``/close/open``
and ``/abort``. A connection has one open read at a time. Each server puts it back when the connection ends.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import Enum, auto
from math import inf
from typing import Final, NamedTuple

from kestrel.address import Address
from kestrel.client.call import LINE, Call, Reply
from kestrel.client.connection import BlockingConnection
from kestrel.client.errors import BadReply, ClientFailure, RequestError, ServerError
from kestrel.client.memcache import MemcacheCalls
from kestrel.escaping import unescape_name
from kestrel.protocols.memcache import MAX_ITEM_BYTES
from kestrel.tools.cli.batch_load import BatchLoad
from kestrel.tools.cli.servers import CommandServers
from kestrel.tools.tool_runner import ToolFailed

_VALUE: Final = re.compile(rb"VALUE ([^ ]+) \d{1,10} (\d{1,10})")
_FIGURE: Final = re.compile(r"queue_(.+)_(items|open_transactions)", re.DOTALL)
_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_END_OF_ITEM: Final = b"\r\nEND\r\n"

_SIBERITE: Final = "siberite"


class QueueCounts(NamedTuple):
    """The number of available items of a queue, and the number of its open reads."""

    items: int
    open: int


class SourceQueues(NamedTuple):
    """Queues that the source server reports."""

    figures: Mapping[bytes, QueueCounts]
    cursors: frozenset[bytes]
    """Names in `figures` that are cursors: second readers of a queue, without items of their own. Only siberite has
    them."""
    has_cursors: bool

    def has(self, name: bytes) -> bool:
        """Return whether the server can be asked for items of that name without creating a queue.

        A server with cursors may have some that it does not report.
        """
        return name in self.figures or (self.has_cursors and name.partition(b".")[0] in self.figures)


class DrainSource:
    """A connection to the server to drain. Methods raise `ClientFailure`, the constructor `CannotConnect`."""

    def __init__(self, address: Address, timeout_s: float) -> None:
        self.address = address
        self._connection = BlockingConnection.to(address, timeout_s)

    def open(self, queue: bytes) -> bytes | None:
        """Open a read of the head and return its data, or None if there is no item.

        siberite also returns None for an empty item, and drops that item.
        """
        return self._get(queue, b"/open")

    def close_and_open(self, queue: bytes) -> bytes | None:
        """Confirm the open read, and open the next item as `open` does."""
        return self._get(queue, b"/close/open")

    def close_item(self, queue: bytes) -> None:
        """Confirm the open read."""
        self._get(queue, b"/close")

    def abort(self, queue: bytes) -> None:
        """Put the open read back at the head of the queue."""
        self._get(queue, b"/abort")

    def queues(self) -> SourceQueues:
        """Return all queues of the server."""
        stats = self._connection.ask(MemcacheCalls().stats())
        found: dict[str, dict[str, int]] = {}
        for name, value in stats.items():
            figure = _FIGURE.fullmatch(name)
            if figure is not None and _NUMBER.fullmatch(value):
                found.setdefault(figure[1], {})[figure[2]] = int(value)
        # `queue_mail_total_items` is a statistic of `mail`, not of a queue `mail_total`, which would have both.
        figures = {
            unescape_name(name.encode("utf-8", "surrogateescape")): QueueCounts(
                each["items"], each["open_transactions"]
            )
            for name, each in found.items()
            if len(each) == 2
        }
        has_cursors = stats.get("version", "").startswith(_SIBERITE)
        return SourceQueues(figures, frozenset(name for name in figures if has_cursors and b"." in name), has_cursors)

    def close(self) -> None:
        """Close the connection. The server puts an open read back."""
        self._connection.close()

    def _get(self, queue: bytes, options: bytes) -> bytes | None:
        return self._connection.ask(Call(b"get %b%b\r\n" % (queue, options), _item()))


def _item() -> Reply[bytes | None]:
    line = yield LINE
    word, _, reason = line.partition(b" ")
    text = reason.decode("utf-8", "replace").strip()
    if word == b"SERVER_ERROR":
        raise ServerError(text or "the server gave no reason")
    if word in (b"CLIENT_ERROR", b"ERROR"):
        raise RequestError(text or "the server rejected the request and gave no reason")
    if line == b"END":
        return None
    value = _VALUE.fullmatch(line)
    if value is None:
        # The line is not shown, because it may be part of an item.
        raise BadReply(f"a line of {len(line)} bytes is not a reply to the request")
    size = int(value[2])
    if size > MAX_ITEM_BYTES:
        raise BadReply(f"the item at the head has {size} bytes; limit={MAX_ITEM_BYTES}; it stays there")
    data = yield size
    if (yield len(_END_OF_ITEM)) != _END_OF_ITEM:
        raise BadReply("the item is longer than its announced size, or its end is damaged")
    return data


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
