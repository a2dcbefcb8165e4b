"""Samples of item counts, bytes and put and get rates of queues: every ten seconds, for one hour, in memory."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Final

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import Cooperator

from kestrel.admin.request_response import AdminRequest, AdminResponse, HttpError, json_bytes, json_object
from kestrel.admin.server_view import ServerView
from kestrel.admin.time_slices import SlicedLoop
from kestrel.escaping import show_name
from kestrel.queues.manager import QueueManager
from kestrel.queues.queue import Queue
from kestrel.queues.queue_histograms import QueueHistograms

STEP_S: Final = 10
SAMPLES: Final = 360
"""Samples in one hour."""
_KEPT: Final = SAMPLES + 1
"""Samples kept of a queue: one more than `SAMPLES`, for the sample that is being taken."""
_COLUMNS: Final = 4
MAX_NAMES_PER_REQUEST: Final = 100
QUEUES_PER_STEP: Final = 64
SERVER: Final = b""
"""The name under which the totals of the server are returned. No queue has an empty name."""

_UNKNOWN: Final = -1


class _QueueSamples:
    """The last samples of one queue: items, bytes, and the totals of items put and taken so far."""

    def __init__(self, born: int) -> None:
        self._born = born
        """Number of the first sample."""
        self._newest = born - 1
        self._values = array("q")
        """Four values of each sample, the oldest first."""

    def add(self, sample: int, values: tuple[int, int, int, int]) -> None:
        """Add sample number `sample`. Skipped samples are unknown."""
        if sample == self._newest:  # it was begun before, and not finished
            del self._values[-_COLUMNS:]
        self._values.extend([_UNKNOWN] * _COLUMNS * min(sample - self._newest - 1, _KEPT))
        self._values.extend(values)
        del self._values[: -_COLUMNS * _KEPT]
        self._newest = sample

    def series(self, newest: int) -> dict[str, list[float | None]]:
        """Return the last hour of samples up to number `newest`; None for each unknown value. Rates are per second."""
        samples = range(max(self._born, newest - SAMPLES + 1), newest + 1)
        items, size, puts, gets = ([self._at(sample, column) for sample in samples] for column in range(_COLUMNS))
        return {"items": items, "bytes": size, "puts": _rates(puts), "gets": _rates(gets)}

    def _at(self, sample: int, column: int) -> float | None:
        place = len(self._values) + _COLUMNS * (sample - self._newest - 1) + column
        value = self._values[place] if 0 <= place < len(self._values) else _UNKNOWN
        return None if value == _UNKNOWN else value


def _rates(totals: list[float | None]) -> list[float | None]:
    rates: list[float | None] = [None] * len(totals)
    for place, (before, now) in enumerate(pairwise(totals), 1):
        # A smaller total means that the queue was deleted and created again.
        if before is not None and now is not None and now >= before:
            rates[place] = (now - before) / STEP_S
    return rates


class StatsHistory:
    """A sampler of the server's totals and of the first `max_queues()` queues.

    The samples of a queue take 12 KB. A sample is taken in steps of a fraction of a millisecond.
    """

    def __init__(
        self, manager: QueueManager, clock: IReactorTime, cooperator: Cooperator, max_queues: Callable[[], int]
    ) -> None:
        self._max_queues = max_queues
        self._manager = manager
        self.sample = -1
        """Number of the newest sample, -1 if there is none."""
        self.sampled_ms = 0
        """Time of the newest sample, in milliseconds since the epoch."""
        self._server = _QueueSamples(0)
        self._queues: dict[bytes, _QueueSamples] = {}
        self._loop = SlicedLoop(
            clock, cooperator, self.sampling, "Sampling for the history of the admin port failed; it has stopped"
        )
        self.stop = self._loop.stop

    def start(self) -> None:
        """Start sampling; the first sample is taken at once."""
        self._loop.start(STEP_S)

    def sampling(self, steps: int = 1) -> Iterator[None]:
        """Take one sample, and yield after every `QUEUES_PER_STEP` queues so that other work can run.

        `steps` is the number of sampling intervals since the previous sample.
        """
        sample, sampled_ms = self.sample + steps, self._manager.now_ms()
        queues = [(queue, queue.histograms) for queue in self._manager.queues_including_masked()]
        # Read at the same moment as `queues`, so that a queue that is deleted later is counted once.
        deleted = self._manager.deleted_queue_histograms
        totals = [0, 0, deleted.puts, deleted.hits]
        seen: set[bytes] = set()
        for place, (queue, histograms) in enumerate(queues):
            values = _values_of(queue, histograms)
            totals = [total + value for total, value in zip(totals, values, strict=True)]
            if not queue.is_deleted and (queue.name in self._queues or len(self._queues) < self._max_queues()):
                self._queues.setdefault(queue.name, _QueueSamples(sample)).add(sample, values)
                seen.add(queue.name)
            if place % QUEUES_PER_STEP == QUEUES_PER_STEP - 1:
                yield None
        self._server.add(sample, (totals[0], totals[1], totals[2], totals[3]))
        self.sample, self.sampled_ms = sample, sampled_ms
        for name in self._queues.keys() - seen:
            del self._queues[name]

    def series(self, names: Sequence[bytes], newest: int | None = None) -> dict[bytes, dict[str, list[float | None]]]:
        """Return the last hour of samples of the named queues, up to sample number `newest`, by default the newest one.

        The name `SERVER` means the totals of the server. Queues without samples are omitted.
        """
        if newest is None:
            newest = self.sample
        wanted = [(name, self._server if name == SERVER else self._queues.get(name)) for name in names]
        return {name: samples.series(newest) for name, samples in wanted if samples is not None}


def _values_of(queue: Queue, histograms: QueueHistograms) -> tuple[int, int, int, int]:
    items, size = (0, 0) if queue.is_deleted else (queue.store.items, queue.store.bytes)
    return items, size, histograms.puts, histograms.hits


def history(history: StatsHistory, server_view: ServerView, request: AdminRequest) -> AdminResponse:
    """Return the last hour of the queues in the `queue` parameters, or of the server if there are none."""
    names = list(dict.fromkeys(request.query.get("queue", (SERVER,))))
    if len(names) > MAX_NAMES_PER_REQUEST:
        raise HttpError(400, f"{len(names)} queues are too many for one request; limit={MAX_NAMES_PER_REQUEST}")
    return AdminResponse(_pieces(history, names))


def _pieces(history: StatsHistory, names: Sequence[bytes]) -> Iterator[bytes]:
    newest = history.sample
    yield json_bytes({"step_ms": STEP_S * 1000, "end_ms": history.sampled_ms})[:-1] + b',"series":'
    one_each = (history.series([name], newest) for name in names)
    yield from json_object({show_name(name): lists for name, lists in each.items()} for each in one_each)
    yield b"}"
