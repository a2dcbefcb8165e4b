"""docs/guide.md: its configurations load, its conversations are correct, and it stays short."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from kestrel.config.load import loads
from tests.docs.markdown import code_blocks
from tests.docs.test_protocols import Block, blocks_in, play

PAGE: Final = (Path(__file__).parents[2] / "docs" / "guide.md").read_text()

CONFIGURATIONS: Final = code_blocks(PAGE, "toml")

MAX_WORDS: Final = 6000


def test_guide_has_at_most_6000_words() -> None:
    assert len(PAGE.split()) <= MAX_WORDS


def test_all_examples_are_found() -> None:
    assert len(CONFIGURATIONS) == PAGE.count("\n```toml") >= 5
    assert len(list(blocks_in(PAGE))) == PAGE.count("\n```conversation") >= 2


@pytest.mark.parametrize("text", CONFIGURATIONS, ids=range(1, len(CONFIGURATIONS) + 1))
def test_configuration_loads(text: str) -> None:
    loads(text)


@pytest.mark.parametrize("block", list(blocks_in(PAGE)), ids=lambda block: f"line {block.number}")
def test_conversation_gets_its_replies(block: Block) -> None:
    play(block)
