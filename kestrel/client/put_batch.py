"""Many items that are put at once, and which of them a server has still to be found for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from kestrel.client.arguments import check_item, check_items
from kestrel.client.errors import CannotConnect, ConnectionFailed, Refused, ServerError

BATCH_ITEMS: Final = 500
BATCH_BYTES: Final = 512 * 1024
"""So much is sent at once: little enough for the server to read all of it while nobody reads its replies."""


def batches(items: Iterable[bytes]) -> Iterator[Sequence[bytes]]:
    """The items, in lists of no more than `BATCH_ITEMS` and `BATCH_BYTES`; an item that is larger goes alone.

    Raises TypeError where they are none, when it comes to the first that is none.
    """
    check_items(items)
    batch: list[bytes] = []
    size = 0
    for item in items:
        check_item(item)
        if batch and (len(batch) == BATCH_ITEMS or size + len(item) > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += len(item)
    if batch:
        yield batch


class PutBatch:
    """Items on their way to the servers."""

    def __init__(self, items: Sequence[bytes]) -> None:
        self.left = items
        """No server has taken or refused these."""
        self.untried: list[bytes] = []
        """These stood in one call with others and did not go in. They are to be put one by one: a limit refused the
        first of them or the server failed at it, and the reply does not say which; the rest were not tried."""
        self.stored = 0
        """How many are in a queue."""

    def answered(self, sizes: Sequence[int], answers: Iterable[int | Refused | ConnectionFailed]) -> None:
        """What is left was put by calls of so many items each, and these are the answers, in the same order.

        What was certainly not stored is left, and raised is why: the last `ServerError`, or a `CannotConnect` that
        `answers` raises or has (the server hung up before it had come so far). Of any other `ConnectionFailed` it is
        raised that one: then nobody knows of those that are left whether they are stored.
        """
        items = self.left
        again: list[bytes] = []
        refusal: ServerError | CannotConnect | None = None
        position = 0
        try:
            for size, answer in zip(sizes, answers, strict=True):
                if isinstance(answer, ConnectionFailed):
                    raise answer
                part = items[position : position + size]
                position += size
                if isinstance(answer, ServerError):
                    refusal = answer
                    again += part
                elif isinstance(answer, Refused):
                    raise answer
                else:
                    self.stored += answer
                    if size > 1:
                        self.untried += part[answer:]
        except ConnectionFailed as failure:
            again += items[position:]
            if not isinstance(failure, CannotConnect):
                raise
            refusal = refusal or failure
        finally:
            self.left = again
        if refusal is not None:
            raise refusal
