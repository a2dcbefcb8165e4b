"""An item of a queue."""

from __future__ import annotations

from mypy_extensions import mypyc_attr


@mypyc_attr(acyclic=True, free_list_len=1)
class Item:
    """One item of a queue, as a get or peek returns it.

    It is a plain slotted class, because one is made for every get.
    """

    __slots__ = ("add_ms", "data", "errors", "expiry_ms", "id", "xid")

    def __init__(self, data: bytes, add_ms: int, expiry_ms: int, errors: int = 0, xid: int = 0) -> None:
        self.data = data
        """The client's bytes."""
        self.add_ms = add_ms
        """Time of the put, in milliseconds since the epoch."""
        self.expiry_ms = expiry_ms
        """Expiry time, in milliseconds since the epoch, or 0 for never. A queue's maxAge is applied when the item is
        read.
        """
        self.errors = errors
        """Number of times that it was taken and aborted."""
        self.xid = xid
        """Id of its open read, or 0 if it is not open."""
        self.id = 0
        """Id of the item in its queue, for use by the storage only."""

    @property
    def is_placeholder(self) -> bool:
        """Whether the item replaces one that a repair of a journal could not recover.

        It counts as expired since 1 ms after the epoch. Clients cannot make one, since the server sets the add time.
        """
        return self.expiry_ms == 1 and self.add_ms == 0 and not self.data

    def __repr__(self) -> str:
        # The data is never shown: it belongs to the users and must not reach a log.
        return f"<Item {len(self.data)} bytes add_ms={self.add_ms} expiry_ms={self.expiry_ms} xid={self.xid}>"
