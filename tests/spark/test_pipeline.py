"""The command of examples/pipeline: all items are read, stored and counted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset
import pytest

from tests.child import LONG_S

ROOT = Path(__file__).parents[2]


@pytest.mark.spark
@pytest.mark.needs("java")
def test_every_view_is_stored_and_counted_once(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "pipeline" / "run.py", "--folder", tmp_path, "--views", "300"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LONG_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    counts = re.findall(r"^\S+Z  /\w* +(\d+) views$", done.stdout, re.MULTILINE)
    assert done.stdout.splitlines()[-2] == f"{len(counts)} counts of 300 views"
    assert sum(map(int, counts)) == 300
    (folder,) = tmp_path.iterdir()
    kept = pyarrow.dataset.dataset(folder / "views", partitioning="hive").to_table()
    users = kept.column("raw").to_pylist()
    assert len(users) == len(set(users)) == 301  # and the one that arrived much later
