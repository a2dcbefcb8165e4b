"""The server that is drained: a Kestrel, a darner, a siberite, or one of ours, over the memcache protocol.

Said is no more than all of them understand: `stats`, and `get` with ``/open``, ``/close``, ``/close/open`` and
``/abort``. A connection has one open read at a time, and all of them put it back when the connection ends.
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
    """How many items of a queue are there to be taken, and how many clients hold."""

    items: int
    open: int


class SourceQueues(NamedTuple):
    """What a server says that it has."""

    figures: Mapping[bytes, QueueCounts]
    cursors: frozenset[bytes]
    """Those of them that are second readers of a queue, which only siberite has: without items of their own."""
    has_cursors: bool

    def has(self, name: bytes) -> bool:
        """Whether it can be asked for items of that name without making a queue. It may have cursors that it does
        not tell of."""
        return name in self.figures or (self.has_cursors and name.partition(b".")[0] in self.figures)


class DrainSource:
    """One connection to it. Raises `ClientFailure`, and `CannotConnect` when it is made."""

    def __init__(self, address: Address, timeout_s: float) -> None:
        self.address = address
        self._connection = BlockingConnection.to(address, timeout_s)

    def open(self, queue: bytes) -> bytes | None:
        """The head, which stays in the queue until it is closed; None if there is none.

        siberite says so of an empty item as well, which is gone then.
        """
        return self._get(queue, b"/open")

    def close_and_open(self, queue: bytes) -> bytes | None:
        """Give up the item that is open, for good, and open the next one."""
        return self._get(queue, b"/close/open")

    def close_item(self, queue: bytes) -> None:
        """Give up the item that is open, for good."""
        self._get(queue, b"/close")

    def abort(self, queue: bytes) -> None:
        """Put it back."""
        self._get(queue, b"/abort")

    def queues(self) -> SourceQueues:
        """All queues."""
        stats = self._connection.ask(MemcacheCalls().stats())
        found: dict[str, dict[str, int]] = {}
        for name, value in stats.items():
            figure = _FIGURE.fullmatch(name)
            if figure is not None and _NUMBER.fullmatch(value):
                found.setdefault(figure[1], {})[figure[2]] = int(value)
        # Of the figure `queue_mail_total_items` it is not the queue `mail_total`.
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
        """Hang up. What is open goes back."""
        self._connection.close()

    def _get(self, queue: bytes, options: bytes) -> bytes | None:
        return self._connection.ask(Call(b"get %b%b\r\n" % (queue, options), _item()))


def _item() -> Reply[bytes | None]:
    line = yield LINE
    word, _, reason = line.partition(b" ")
    text = reason.decode("utf-8", "replace").strip()
    if word == b"SERVER_ERROR":
        raise ServerError(text or "it gives no reason")
    if word in (b"CLIENT_ERROR", b"ERROR"):
        raise RequestError(text or "it does not take the request, and gives no reason")
    if line == b"END":
        return None
    value = _VALUE.fullmatch(line)
    if value is None:
        # Nothing of it is shown: it may be of an item.
        raise BadReply(f"a line of {len(line)} bytes is no reply to the request")
    size = int(value[2])
    if size > MAX_ITEM_BYTES:
        raise BadReply(f"the item at the head has {size} bytes, and can have {MAX_ITEM_BYTES} here; it stays there")
    data = yield size
    if (yield len(_END_OF_ITEM)) != _END_OF_ITEM:
        raise BadReply("the item does not end where it should")
    return data
