"""Batches of items to put, and the items of a batch that no server has accepted yet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from kestrel.client.arguments import check_item, check_items
from kestrel.client.errors import CannotConnect, ConnectionFailed, Refused, ServerError

BATCH_ITEMS: Final = 500
BATCH_BYTES: Final = 512 * 1024
"""Maximum size of a batch: small enough that the server can read all of it before the client reads its replies."""


def batches(items: Iterable[bytes]) -> Iterator[Sequence[bytes]]:
    """Yield the items in lists of at most `BATCH_ITEMS` and `BATCH_BYTES`. A larger item gets a list of its own.

    Raises TypeError at the first item that is not bytes.
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
    """Items that are being put."""

    def __init__(self, items: Sequence[bytes]) -> None:
        self.left = items
        """Items that no server has stored or refused."""
        self.untried: list[bytes] = []
        """Items to put one by one, because their call stored only the items before them. A limit refused the first of
        them, or the server failed on it; the reply does not say which. The rest were not tried.
        """
        self.stored = 0

    def answered(self, sizes: Sequence[int], answers: Iterable[int | Refused | ConnectionFailed]) -> None:
        """Process the answers to the calls that put `left`. `sizes` are the numbers of items of the calls.

        Items that were certainly not stored stay in `left`, and the reason is raised: the last `ServerError`, or the
        `CannotConnect` that `answers` raises or contains because the server closed the connection. Any other
        `ConnectionFailed` is raised as it is; then it is unknown whether the items in `left` are stored. Any other
        `Refused` is raised at once, and `left` then lacks the items that follow.
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
