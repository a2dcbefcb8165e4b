"""Commits that wait for the compaction of reader files, and another compaction that begins meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from kestrel.storage.scroll.storage import CHECKPOINTS_EVERY_S
from tests.scroll import storages
from tests.scroll.storages import Opener, Threads


class FastThreads(Threads):
    """Threads that work at once. A test steps the delivery of their results."""

    def __call__(self, function: Callable[..., Any], *args: object) -> Deferred[Any]:
        result = function(*args)
        return super().__call__(lambda: result)


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opener]:
    monkeypatch.setattr(storages, "Threads", FastThreads)
    opener = Opener(tmp_path)
    yield opener
    opener.stop_all()


def test_commit_waits_if_the_commit_before_it_begins_another_compaction(start: Opener) -> None:
    scrolls = start()
    x, y = scrolls.queue(b"work+x"), scrolls.queue(b"work+y")
    scrolls.put_and_commit([x, y], b"1", b"2")
    x.take(False)
    y.take(False)
    scrolls.clock.advance(CHECKPOINTS_EVERY_S)  # begins a compaction
    outcomes = scrolls.begin_commit(x), scrolls.begin_commit(y)
    scrolls.clock.advance(CHECKPOINTS_EVERY_S)  # requests another one
    scrolls.threads.run_all()
    assert outcomes == ([None], [None])
    again = start.crashed(scrolls)
    assert [again.data(again.queue(queue.name)) for queue in (x, y)] == [[b"2"]] * 2
