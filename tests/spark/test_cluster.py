"""Programs on a cluster: a master and two workers, each with its own processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from tests.child import LONG_S
from tests.journal.handwritten import REMOVE, addx, open_, unremove

ROOT = Path(__file__).parents[2]


@pytest.mark.spark
@pytest.mark.needs("java")
def test_example_runs_on_a_master_and_two_workers(tmp_path: Path) -> None:
    for server in ("a", "b"):
        (tmp_path / server).mkdir()
        (tmp_path / server / "work").write_bytes(addx(b"first") + addx(b"second") + REMOVE + open_(1) + unremove(1))
    home = tmp_path / "home"
    home.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():  # the workers write their logs into this folder
        (home / entry.name).symlink_to(entry)
    environment = os.environ | {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_DIRS": str(tmp_path / "spark"),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    done = subprocess.run(
        [
            Path(sys.executable).with_name("spark-submit"),
            *("--master", "local-cluster[2,1,1024]", "--conf", "spark.ui.enabled=false"),
            *("--conf", f"spark.executor.extraJavaOptions={os.environ['SPARK_SUBMIT_OPTS']}"),
            *("--conf", "spark.sql.shuffle.partitions=4"),
            ROOT / "examples" / "spark_histories.py",
            tmp_path / "[ab]",
        ],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LONG_S,
    )
    assert done.stdout.splitlines() == [
        f"{server}  work  {state}: 1 items, {size} bytes, {aborts} aborts"
        for server in ("a", "b")
        for state, size, aborts in (("queued", 6, 1), ("removed", 5, 0))
    ], done.stderr
    assert done.returncode == 0
