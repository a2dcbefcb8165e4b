"""docs/differences.md: its table lists every difference by its number."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

PAGE: Final = (Path(__file__).parents[2] / "docs" / "differences.md").read_text()


def test_table_lists_every_difference_in_order() -> None:
    numbers = re.findall(r"^## (\d+)\. ", PAGE, re.MULTILINE)
    assert re.findall(r"^\| \[(\d+)\]", PAGE, re.MULTILINE) == numbers
    assert numbers == [str(number) for number in range(1, len(numbers) + 1)]
