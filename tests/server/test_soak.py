"""The soak run detects growth, and a short run works."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.server.running import Processes
from tests.torture.soak import KINDS, Sample, growths, plot, soak


def samples(last_memory: float) -> list[Sample]:
    return [Sample(at, 50e6 if at < 80 else last_memory, 30, 20, 5e6) for at in range(100)]


def test_small_growth_is_flat() -> None:
    assert all(growth.is_flat(kind) for kind, growth in growths(samples(52e6)).items())


def test_large_growth_is_found() -> None:
    found = growths(samples(55e6))
    assert [kind for kind in KINDS if not found[kind].is_flat(kind)] == ["memory"]
    assert found["memory"].share == pytest.approx(0.08, abs=0.001)  # in four fifths of the last quarter


def test_short_soak_does_all_kinds_of_work(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        result = soak(processes, seed=1, seconds=1.5, warm_up_s=0)
    assert not result.errors
    assert all(result.steps.values())
    assert set(growths(result.samples)) == set(KINDS)
    plot(result.samples, tmp_path / "soak.svg")
    assert (tmp_path / "soak.svg").read_text().startswith("<?xml")
