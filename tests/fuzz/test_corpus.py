"""Every input of the corpus passes, so that earlier findings stay fixed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.fuzz import target

INPUTS = [(name, path) for name in target.names() for path in target.corpus(name)]


@pytest.mark.parametrize("name", target.names())
def test_targets_have_inputs_within_their_size_limit(name: str) -> None:
    sizes = [path.stat().st_size for path in target.corpus(name)]
    assert sizes and max(sizes) <= target.load(name).max_bytes


def test_corpus_is_small() -> None:
    assert sum(path.stat().st_size for _, path in INPUTS) < 300_000


@pytest.mark.parametrize(("name", "path"), INPUTS, ids=[f"{name}-{path.name}" for name, path in INPUTS])
def test_corpus_input_passes(name: str, path: Path) -> None:
    target.load(name).check(path.read_bytes())


def test_targets_need_no_atheris() -> None:
    for name in target.names():
        target.load(name)
    assert "atheris" not in sys.modules
