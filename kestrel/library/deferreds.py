"""Helpers that return Deferreds."""

from __future__ import annotations

from collections.abc import Coroutine
from functools import partial
from typing import Any, TypeVar

from twisted.internet.defer import Deferred

from kestrel.storage.barrier import Batch

T = TypeVar("T")


def when_batch_settled(batch: Batch) -> Deferred[None]:
    """Return a Deferred that fires when the batch is safe or lost."""
    done: Deferred[None] = Deferred()
    batch.when_settled(partial(done.callback, None))
    return done


def run_to_completion(coroutine: Coroutine[Deferred[Any], Any, T]) -> Deferred[T]:
    """Run a coroutine to its end, even if the returned Deferred is cancelled.

    An interrupted coroutine could leave a folder half open.
    """
    result: Deferred[T] = Deferred()
    Deferred.fromCoroutine(coroutine).addCallbacks(result.callback, result.errback)
    return result
