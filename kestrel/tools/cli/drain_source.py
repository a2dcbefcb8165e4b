"""Client of the server to drain: Scala Kestrel, darner, siberite or this server, over the memcache protocol.

It uses only requests that all of them support: `stats`, and `get` with ``/open``, ``/close``, ``/close/open`` and
``/abort``. A connection has one open read at a time. Each server puts it back when the connection ends.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from kestrel.address import Address
from kestrel.client.call import LINE, Call, Reply
from kestrel.client.connection import BlockingConnection
from kestrel.client.errors import BadReply, RequestError, ServerError
from kestrel.client.memcache import MemcacheCalls
from kestrel.escaping import unescape_name
from kestrel.protocols.memcache import MAX_ITEM_BYTES

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
