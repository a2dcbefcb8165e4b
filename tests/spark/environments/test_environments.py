"""A program with kestrel runs on a cluster; `make spark-environments` runs it in more environments."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.environments.environments import EXPECTED, run


@pytest.mark.spark
@pytest.mark.needs("java")
@pytest.mark.parametrize("name", ["py-files", "wheel"])
def test_every_part_works_on_a_cluster(tmp_path: Path, name: str) -> None:
    results = run(name, tmp_path)
    assert {step: results[step] for step in EXPECTED} == EXPECTED
