"""Tracking of safe and lost changes to a queue."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from functools import partial

from twisted.internet.defer import Deferred

from kestrel.errors import QueueFailed, StorageError
from kestrel.storage.barrier import Batch


def when_batch_settled(batch: Batch) -> Deferred[None]:
    """Return a Deferred that fires when the batch is safe or lost."""
    done: Deferred[None] = Deferred()
    batch.when_settled(partial(done.callback, None))
    return done


def when_batch_safe(batch: Batch) -> Deferred[None]:
    """Return a Deferred that fires when the batch is safe, and fails with the batch's error if it was lost."""
    done: Deferred[None] = Deferred()
    batch.when_settled(lambda: done.callback(None) if batch.failure is None else done.errback(batch.failure))
    return done


async def wait_for_all(changes: Iterable[Awaitable[None]]) -> None:
    """Wait until all changes are safe or lost, one after the other. Then raise the error of the first loss."""
    loss: StorageError | None = None
    for change in changes:
        try:
            await change
        except StorageError as error:
            loss = loss or error
    if loss is not None:
        raise loss


class DurabilityTracker:
    """The batches of one queue that are not yet safe, and a loss that was not yet reported."""

    def __init__(self) -> None:
        self._unsettled: dict[Batch, None] = {}
        self._loss: Exception | None = None

    def add_batch(self, batch: Batch) -> None:
        """Track a batch that contains a change to the queue."""
        if not batch.is_settled and batch not in self._unsettled:
            self._unsettled[batch] = None
            batch.when_settled(partial(self._batch_settled, batch))

    def _batch_settled(self, batch: Batch) -> None:
        del self._unsettled[batch]
        self._loss = batch.failure or self._loss

    def safe(self) -> Deferred[None]:
        """Return a Deferred that fires when all changes so far are safe.

        Fails with `QueueFailed` if one of them was lost, or a change since the last call.
        """
        return Deferred.fromCoroutine(self._safe())

    async def _safe(self) -> None:
        batches = list(self._unsettled)
        for batch in batches:
            await when_batch_settled(batch)
        losses = [batch.failure for batch in batches if batch.failure is not None]
        loss, self._loss = losses[0] if losses else self._loss, None
        if loss is not None:
            raise QueueFailed(str(loss)) from loss
