"""The items of one task on their way into the servers of a queue, until they are in or the patience is over."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import Final, TypeAlias

from kestrel.client.backoff import Backoff
from kestrel.client.errors import CannotConnect, ClientFailure, RequestError, ServerError
from kestrel.client.put_batch import batches
from kestrel.client.retrying_server import LONGEST_PAUSE_S
from kestrel.config.units import format_duration_ms
from kestrel.spark.failures import SourceFailed

Put: TypeAlias = Callable[[Sequence[bytes], int], int]
"""Puts items that expire in so many ms, 0 for never, to one server, and returns how many went in before the first that
a limit refused. Raises `ClientFailure`."""

_FULL: Final = "the queue is full"


class BatchPutter:
    """Puts items in batches, each to one server, in turn; the first is any of them.

    What a server does not take, because it fails or its queue is full, the others are asked to take: those that took
    what they were given last first. When none of them will there is a pause, and all are asked again. Every item that
    goes in renews the patience: a queue whose consumers are slow makes this slow, and one that nobody reads makes it
    fail.

    A batch whose fate is unknown is put again: items may be there twice, and none is lost.
    """

    def __init__(
        self,
        servers: Mapping[str, Put],
        queue: str,
        patience_s: float,
        *,
        random: Random | None = None,
        seconds: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._servers = servers
        self._queue = queue
        self._patience_s = patience_s
        self._random = random or Random()
        self._seconds = seconds
        self._sleep = sleep
        self._turn = deque(servers)
        self._turn.rotate(self._random.randrange(len(servers)))
        self._backoffs = {server: Backoff(self._random) for server in servers}
        self._reasons: dict[str, str] = {}
        """Why each that has left something did so the last time."""
        self.counts = dict.fromkeys(servers, 0)
        """How many items each has taken."""
        self.unsure = 0
        """How many may be there once more than they are counted."""

    def put(self, items: Iterable[bytes], expiry_ms: int = 0) -> None:
        """Returns when all are in. Raises `SourceFailed`: these may be in in part, and all that came before are."""
        for batch in batches(items):
            self._put_batch(batch, expiry_ms)

    def _put_batch(self, left: Sequence[bytes], expiry_ms: int) -> None:
        backoff = Backoff(self._random, longest_s=LONGEST_PAUSE_S)
        ends_s = self._seconds() + self._patience_s
        while True:
            before = len(left)
            for server in self._round():
                left = self._put_at(server, left, expiry_ms)
                if not left:
                    return
            now_s = self._seconds()
            if len(left) < before:
                backoff.answered()
                ends_s = now_s + self._patience_s
            if now_s >= ends_s:
                raise SourceFailed(self._failure(left))
            self._sleep(min(backoff.failed(now_s), ends_s - now_s))

    def _round(self) -> Iterator[str]:
        """All servers, the next one first, but behind the others those that are better left alone for a while."""
        now_s = self._seconds()
        servers = sorted(self._turn, key=lambda server: self._backoffs[server].ends_s > now_s)
        self._turn.rotate(-1)
        return iter(servers)

    def _put_at(self, server: str, items: Sequence[bytes], expiry_ms: int) -> Sequence[bytes]:
        """What is left of the items. Raises `SourceFailed` for one that will never be taken."""
        try:
            count = self._servers[server](items, expiry_ms)
        except RequestError as error:
            if len(items) == 1:
                raise SourceFailed(
                    f"an item of {len(items[0])} bytes cannot be put to the queue {self._queue}: {error}. "
                    f"Leave out what no server takes, as by a filter of length(data){self._what_is_in()}"
                ) from None
            half = len(items) // 2  # of a batch there may be too much for one request, or one item too large
            rest = self._put_at(server, items[:half], expiry_ms)
            return [*rest, *items[half:]] if rest else self._put_at(server, items[half:], expiry_ms)
        except ClientFailure as error:
            if not isinstance(error, CannotConnect | ServerError):
                self.unsure += len(items)
            self._failed(server, str(error))
            return items
        self.counts[server] += count
        if count == len(items):
            self._backoffs[server].answered()
        else:
            self._failed(server, _FULL)
        return items[count:]

    def _failed(self, server: str, reason: str) -> None:
        self._backoffs[server].failed(self._seconds())
        self._reasons[server] = reason

    def _failure(self, left: Sequence[bytes]) -> str:
        """Why these were not put, in sentences without their data."""
        full = [server for server, reason in self._reasons.items() if reason is _FULL]
        others = [reason for reason in self._reasons.values() if reason is not _FULL]  # which name their servers
        reasons = [f"is full on {', '.join(full)}"] if full else []
        if others:
            reasons.append(f"could not be put to: {'; '.join(others)}")
        text = (
            f"the queue {self._queue} {', and '.join(reasons)}: {len(left)} of the {self._count + len(left)} items "
            f"that this task came to were not put, since nothing went in for "
            f"{format_duration_ms(round(self._patience_s * 1000))} (patience)"
        )
        if full:
            text += f". The first of them has {len(left[0])} bytes: if maxItemSize is less, it never will be put"
        return text + self._what_is_in()

    @property
    def _count(self) -> int:
        return sum(self.counts.values())

    def _what_is_in(self) -> str:
        if not (self._count or self.unsure):
            return ""
        more = f", and perhaps {self.unsure} more" if self.unsure else ""
        return f". {self._count} items of this task are in{more}: they come twice if Spark runs it again"
