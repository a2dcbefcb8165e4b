"""What the readers of one folder share."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.interfaces import IReactorTime

from kestrel.queues.turns import Turns
from kestrel.storage.barrier import Barrier


class ReaderServices:
    """The barrier, the turns, and both clocks: `clock` is for timers, `now_ms` the wall's, for times that are stored.

    `storage_failed` is to be told when the contents of a reader have died: others may have died with them.
    """

    def __init__(
        self,
        barrier: Barrier,
        turns: Turns,
        clock: IReactorTime,
        now_ms: Callable[[], int],
        storage_failed: Callable[[], None],
    ) -> None:
        self.barrier = barrier
        self.turns = turns
        self.clock = clock
        self.now_ms = now_ms
        self.storage_failed = storage_failed
