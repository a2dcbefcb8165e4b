"""The program of `make spark-environments` in a process of its own, outside the test's own session."""

from __future__ import annotations

from pathlib import Path

from tests.spark.environments.environments import EXPECTED, run


def test_program_has_the_expected_results_in_an_embedded_session(tmp_path: Path) -> None:
    results = run("embedded", tmp_path)
    assert results.pop("spark")
    assert results == EXPECTED
