"""Short forms of the torture programs for server sets. `make help` lists the long forms."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.zookeeper import ZooKeeper, running_zookeeper
from tests.server.running import Processes
from tests.torture import membership, zookeeper_kills


def test_server_sets_follow_every_status_change(tmp_path: Path, zookeeper: ZooKeeper) -> None:
    with Processes(tmp_path) as processes:
        kinds = {"status": 6, "session lost": 2, "killed": 2}
        delays = membership.torture(zookeeper, processes, seed=1, changes=24, servers=3, kinds=kinds)
    assert sum(len(each.seconds) for each in delays.values()) == 24
    assert set(delays) == set(kinds)


def test_kills_of_zookeeper_fail_no_request(tmp_path: Path) -> None:
    with running_zookeeper(tmp_path / "zookeeper") as zookeeper, Processes(tmp_path) as processes:
        outcome = zookeeper_kills.torture(zookeeper, processes, seed=1, kills=2)
    assert outcome.failed == []
    assert len(outcome.rejoined_s) == 2
    assert all(outcome.latencies_ms[zookeeper_kills.JOINED][phase] for phase in zookeeper_kills.PHASES)
