"""Short forms of `make failover` and `make replicated`."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from examples.replicated import run
from tests.server.running import Processes
from tests.torture import failover


@pytest.mark.needs("patroni", "etcd", "postgresql")
@pytest.mark.database
def test_server_continues_after_its_primary_is_killed(processes: Processes) -> None:
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # PostgreSQL runs as another user
        failed = failover.torture(processes, Path(folder, "database"), seed=2, kills=1, ttl_s=8)
    assert failed == 0


def test_example_refuses_a_database_without_standby(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run.main(["--nodes", "1"])
    assert "--nodes must be at least 2" in capsys.readouterr().err
