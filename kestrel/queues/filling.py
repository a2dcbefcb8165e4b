"""Bringing the head of a queue into memory, where the queue may be given other contents meanwhile."""

from __future__ import annotations

from collections.abc import Callable

from twisted.python.failure import Failure

from kestrel.storage.interfaces import IQueueStorage


class Filling:
    """The head that is on its way. What comes for contents that nobody waits for any more is passed over.

    `filled` is called when it is in memory, `failed` when it cannot be read.
    """

    def __init__(self, filled: Callable[[], object], failed: Callable[[Failure], object]) -> None:
        self._tell_filled = filled
        self._tell_failed = failed
        self.contents: IQueueStorage | None = None
        """Whose head is on its way; None: nobody's."""

    def begin(self, contents: IQueueStorage) -> bool:
        """Bring their head into memory. False when what is in memory tells the truth."""
        if self.contents is contents:
            return True
        loading = contents.fill()
        if loading is None:
            return False
        self.contents = contents
        loading.addCallbacks(self._filled, self._failed, callbackArgs=(contents,), errbackArgs=(contents,))
        return self.contents is contents

    def forget(self) -> None:
        """The queue has other contents, or none."""
        self.contents = None

    def _filled(self, _: object, contents: IQueueStorage) -> None:
        if self.contents is contents:
            self.contents = None
            self._tell_filled()

    def _failed(self, failure: Failure, contents: IQueueStorage) -> None:
        if self.contents is contents:  # else they have been opened anew since
            self.contents = None
            self._tell_failed(failure)
