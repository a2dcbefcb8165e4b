"""Moves: items on their way from one queue to another, because they expired or failed too often.

An item that moves is an open read of its queue until it is safe where it goes, and is confirmed then. So it is never
lost; a crash in between leaves it in both queues.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger

from kestrel.errors import ClientError, KestrelError
from kestrel.item import Item
from kestrel.queues.services import QueueServices
from kestrel.storage.barrier import Batch
from kestrel.storage.interfaces import IQueueStorage

log = Logger()

MOST_MOVES: Final = 1000
"""So many of one queue's items may be on their way at a time."""

RETRY_S: Final = 1.0
"""After so long an item that could not be put is put again."""


class Source(Protocol):
    """What moves need of the queue that the items leave."""

    name: bytes
    contents: IQueueStorage

    def confirm(self, xids: list[int]) -> Batch:
        """Finish open reads."""

    def put_back(self, xids: list[int], *, failed: bool) -> Batch:
        """Return open reads to the head."""

    def serve(self) -> None:
        """Serve those in line."""


class _Move:
    __slots__ = ("contents", "drops", "item", "target")

    def __init__(self, contents: IQueueStorage, item: Item, target: bytes, drops: bool) -> None:
        self.contents = contents
        self.item = item
        self.target = target
        self.drops = drops


class Moves:
    """The items of one queue that are on their way."""

    def __init__(self, source: Source, services: QueueServices) -> None:
        self._source = source
        self._services = services
        self._under_way: set[_Move] = set()
        self._held: list[_Move] = []
        self._retry: IDelayedCall | None = None
        self.failure: KestrelError | None = None
        """None, or why the items that wait to be put again could not be put."""
        self.refused = 0
        """Items that their new queue refused."""
        self._untold_refusals = 0

    @property
    def is_full(self) -> bool:
        """Whether no more items may leave before some have arrived."""
        return len(self._under_way) >= MOST_MOVES

    def begin(self, item: Item, target: bytes, *, drops: bool) -> None:
        """Move an item that is an open read. Where a limit refuses it, it is dropped, or it goes back to the head."""
        move = _Move(self._source.contents, item, target, drops)
        self._under_way.add(move)
        if self._held:  # the way is blocked: one that tries it in a while is enough
            self._held.append(move)
        else:
            self._put(move)

    def forget(self) -> None:
        """The queue has other contents now, or is gone: its open reads went back by themselves, or with it."""
        self._under_way.clear()
        self._held.clear()
        self.failure = None
        if self._retry is not None and self._retry.active():
            self._retry.cancel()
        self._retry = None

    def _put(self, move: _Move) -> None:
        try:
            batch = self._services.put(move.target, move.item.data, 0)
        except ClientError:
            self._refused(move)
        except KestrelError as error:
            self._hold(move, error)
        else:
            if batch is None:
                self._refused(move)
            else:
                batch.when_settled(partial(self._settled, move, batch))

    def _settled(self, move: _Move, batch: Batch) -> None:
        if move not in self._under_way:
            return
        if batch.failure is None:
            self._end(move, lambda xids: self._source.confirm(xids))
        else:
            error = batch.failure
            self._hold(move, error if isinstance(error, KestrelError) else KestrelError(str(error)))

    def _end(self, move: _Move, end: Callable[[list[int]], object]) -> None:
        was_full = self.is_full
        self._under_way.discard(move)
        contents = self._source.contents
        if contents is move.contents and contents.failure is None:
            end([move.item.xid])
        if was_full:
            self._services.turns.go_on_later(self._source.serve)

    def _refused(self, move: _Move) -> None:
        self.refused += 1
        if not self._untold_refusals:
            self._services.barrier.at_end_of_tick(self._tell_refusals)
        self._untold_refusals += 1
        if move.drops:
            self._end(move, lambda xids: self._source.confirm(xids))
        else:
            self._end(move, lambda xids: self._source.put_back(xids, failed=True))

    def _tell_refusals(self) -> None:
        count, self._untold_refusals = self._untold_refusals, 0
        log.warn(
            "{count} items of queue {queue!r} were refused by the queue they were to move to", count=count,
            queue=self._source.name,
        )

    def _hold(self, move: _Move, error: KestrelError) -> None:
        if self.failure is None:
            log.error(
                "An item of queue {queue!r} cannot move to {target!r} and waits: {reason}",
                queue=self._source.name,
                target=move.target,
                reason=str(error),
            )
        self.failure = error
        self._held.append(move)
        if self._retry is None:
            self._retry = self._services.clock.callLater(RETRY_S, self._put_again)

    def _put_again(self) -> None:
        self._retry = None
        held, self._held = self._held, []
        self.failure = None
        for number, move in enumerate(held):
            self._put(move)
            if self._held:  # still blocked
                self._held += held[number + 1 :]
                return
