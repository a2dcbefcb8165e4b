"""Parts of `make replicated` and `make failover` that need no Patroni, which the CI does not install."""

from __future__ import annotations

import pytest

from examples.replicated import run
from tests.torture import failover
from tests.torture.database import TrackedQueue
from tests.torture.kill_restart import Items


def test_example_refuses_a_database_without_standby(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run.main(["--nodes", "1"])
    assert "--nodes must be at least 2" in capsys.readouterr().err


def test_undelivered_item_counts_as_lost() -> None:
    queue = TrackedQueue(b"work", Items(1, failover.ITEMS))
    for number in range(3):
        queue.add_stored(number)
    queue.add_delivered(queue.items[0])
    queue.confirmed.add(0)
    queue.add_delivered(queue.items[2])
    assert (queue.lost(), queue.errors) == ({1}, [])


def test_only_a_returned_item_may_be_delivered_again() -> None:
    queue = TrackedQueue(b"work", Items(1, failover.ITEMS))
    for number in range(2):
        queue.add_delivered(queue.items[number])
    queue.returned.add(1)
    queue.add_delivered(queue.items[1])
    assert (queue.redelivered, queue.errors) == (1, [])
    queue.add_delivered(queue.items[0])
    assert queue.errors == ["item 0 was delivered twice without being returned"]
