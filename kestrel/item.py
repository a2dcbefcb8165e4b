"""An item: what a queue holds."""

from __future__ import annotations


class Item:
    """One item of a queue, as it is handed to whoever takes or peeks it.

    A plain slotted class, because one is made for every get.
    """

    __slots__ = ("add_ms", "data", "errors", "expiry_ms", "id", "xid")

    def __init__(self, data: bytes, add_ms: int, expiry_ms: int, errors: int = 0, xid: int = 0) -> None:
        self.data = data
        """The client's bytes."""
        self.add_ms = add_ms
        """When it was put, in milliseconds since the epoch."""
        self.expiry_ms = expiry_ms
        """When it expires, in milliseconds since the epoch; 0 is never. The client's wish: a queue's maxAge
        is applied when reading."""
        self.errors = errors
        """How often it was taken and came back failed."""
        self.xid = xid
        """The number of its open read while it is one, else 0."""
        self.id = 0
        """Which of the queue's items it is. For the storage's own use: it may set it, and nobody else looks at it."""

    @property
    def is_placeholder(self) -> bool:
        """Whether a repair of a journal put it in the place of an item that is gone.

        It counts as expired since 1 ms after the epoch. No client can make one: the server sets the add time.
        """
        return self.expiry_ms == 1 and self.add_ms == 0 and not self.data

    def __repr__(self) -> str:
        # Never the data: items are the users' and must not reach a log.
        return f"<Item {len(self.data)} bytes add_ms={self.add_ms} expiry_ms={self.expiry_ms} xid={self.xid}>"
