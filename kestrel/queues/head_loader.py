"""The loading of a queue's head into memory, during which the queue's store may be replaced."""

from __future__ import annotations

from collections.abc import Callable

from twisted.python.failure import Failure

from kestrel.storage.interfaces import IQueueStorage


class HeadLoader:
    """The loading of a queue's head. A result for a store that was replaced meanwhile is ignored.

    `filled` is called when the head is in memory, `failed` when it cannot be read.
    """

    def __init__(self, filled: Callable[[], object], failed: Callable[[Failure], object]) -> None:
        self._tell_filled = filled
        self._tell_failed = failed
        self.store: IQueueStorage | None = None
        """The store whose head is being loaded, or None."""

    def begin(self, store: IQueueStorage) -> bool:
        """Begin to load the head of `store`. Return False if the head in memory is already right."""
        if self.store is store:
            return True
        loading = store.fill()
        if loading is None:
            return False
        self.store = store
        loading.addCallbacks(self._filled, self._failed, callbackArgs=(store,), errbackArgs=(store,))
        return self.store is store

    def forget(self) -> None:
        """Ignore the result: the queue has another store, or none."""
        self.store = None

    def _filled(self, _: object, store: IQueueStorage) -> None:
        if self.store is store:
            self.store = None
            self._tell_filled()

    def _failed(self, failure: Failure, store: IQueueStorage) -> None:
        if self.store is store:  # otherwise the queue was reopened meanwhile
            self.store = None
            self._tell_failed(failure)
