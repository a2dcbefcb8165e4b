"""Requests about thousands of queues delay no other work."""

from __future__ import annotations

from collections.abc import Mapping

from kestrel.admin.time_slices import SLICE_S
from kestrel.config.load import loads
from kestrel.config.model import QueueSettings
from kestrel.testing.server import MemoryServer
from kestrel.testing.storage import SteppedQueue, SteppedStorage
from tests.admin.browsing import Admin, WorkingClock

QUEUES = 5000
LOOK_S = 0.0001
"""The time to look at a queue."""

PATHS = ("/metrics", "/api/overview", "/stats.json")


class LookedAt(SteppedQueue):
    """A queue whose inspection takes time."""

    clock: WorkingClock | None = None

    @property
    def stats(self) -> Mapping[str, int]:  # type: ignore[override]
        if self.clock is not None:
            self.clock.work(LOOK_S)
        return {"logsize": 0, "journal_rewrites": 0, "journal_rotations": 0}


class Storage(SteppedStorage):
    """A manager with such queues."""

    def queue(self, name: bytes, settings: QueueSettings) -> SteppedQueue:
        queue = LookedAt(name)
        self._queues[name] = queue
        return queue


def test_responses_about_many_queues_take_many_short_ticks() -> None:
    config = loads(f"maxQueues = {QUEUES}\n[admin]\nmaxQueueSeries = {QUEUES}")
    server = MemoryServer(Storage(), config=config)
    admin = Admin(server=server, clock=(clock := WorkingClock(server)))
    for number in range(QUEUES):
        server.manager.queue(b"%d" % number)
    server.settle()
    LookedAt.clock = clock
    for path in PATHS:
        clock.turns, clock.longest_s = 0, 0.0
        assert admin.get(path).status == 200
        assert clock.turns >= 70, path
        assert clock.longest_s <= SLICE_S + 64 * LOOK_S, path
    LookedAt.clock = None
