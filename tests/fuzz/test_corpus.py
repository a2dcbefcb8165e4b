"""Every input that is kept passes through its target: what was found once stays found. This needs no atheris."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.fuzz import target

INPUTS = [(name, path) for name in target.names() for path in target.corpus(name)]


@pytest.mark.parametrize("name", target.names())
def test_every_target_has_inputs_and_they_are_small(name: str) -> None:
    sizes = [path.stat().st_size for path in target.corpus(name)]
    assert sizes and max(sizes) <= target.load(name).most_bytes


def test_the_corpus_is_small() -> None:
    assert sum(path.stat().st_size for _, path in INPUTS) < 300_000


@pytest.mark.parametrize(("name", "path"), INPUTS, ids=[f"{name}-{path.name}" for name, path in INPUTS])
def test_an_input_that_is_kept_passes(name: str, path: Path) -> None:
    target.load(name).check(path.read_bytes())


def test_targets_need_no_atheris() -> None:
    for name in target.names():
        target.load(name)
    assert "atheris" not in sys.modules
