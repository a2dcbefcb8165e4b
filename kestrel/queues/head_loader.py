"""Bringing the head of a queue into memory, where the queue may be given other contents meanwhile."""

from __future__ import annotations

from collections.abc import Callable

from twisted.python.failure import Failure

from kestrel.storage.interfaces import IQueueStorage


class HeadLoader:
    """The head that is on its way. What comes for contents that nobody waits for any more is passed over.

    `filled` is called when it is in memory, `failed` when it cannot be read.
    """

    def __init__(self, filled: Callable[[], object], failed: Callable[[Failure], object]) -> None:
        self._tell_filled = filled
        self._tell_failed = failed
        self.store: IQueueStorage | None = None
        """Whose head is on its way; None: nobody's."""

    def begin(self, store: IQueueStorage) -> bool:
        """Bring their head into memory. False when what is in memory tells the truth."""
        if self.store is store:
            return True
        loading = store.fill()
        if loading is None:
            return False
        self.store = store
        loading.addCallbacks(self._filled, self._failed, callbackArgs=(store,), errbackArgs=(store,))
        return self.store is store

    def forget(self) -> None:
        """The queue has other contents, or none."""
        self.store = None

    def _filled(self, _: object, store: IQueueStorage) -> None:
        if self.store is store:
            self.store = None
            self._tell_filled()

    def _failed(self, failure: Failure, store: IQueueStorage) -> None:
        if self.store is store:  # else they have been opened anew since
            self.store = None
            self._tell_failed(failure)
