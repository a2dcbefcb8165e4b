"""Short forms of the tortures of server sets; `make help` lists the long ones."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.zookeeper import ZooKeeper, running_zookeeper
from tests.server.running import Processes
from tests.torture import membership, zookeeper_kills


def test_after_every_change_the_sets_hold_whom_the_statuses_say(tmp_path: Path, zookeeper: ZooKeeper) -> None:
    with Processes(tmp_path) as processes:
        kinds = {"status": 6, "session lost": 2, "killed": 2}
        told = membership.torture(zookeeper, processes, seed=1, changes=24, servers=3, kinds=kinds)
    assert sum(len(each.seconds) for each in told.values()) == 24
    assert set(told) == set(kinds)


def test_no_request_fails_or_waits_for_a_zookeeper_that_is_killed(tmp_path: Path) -> None:
    with running_zookeeper(tmp_path / "zookeeper") as zookeeper, Processes(tmp_path) as processes:
        outcome = zookeeper_kills.torture(zookeeper, processes, seed=1, kills=2)
    assert outcome.failed == []
    assert len(outcome.rejoined_s) == 2
    assert all(outcome.latencies_ms[zookeeper_kills.JOINED][phase] for phase in zookeeper_kills.PHASES)
