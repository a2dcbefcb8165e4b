"""Checks of a torture run, printed as they are made."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Final

MAX_DETAILS: Final = 5


class CheckReport:
    """Counts checks and prints a line for each."""

    def __init__(self) -> None:
        self.passed = 0
        self.failed = 0

    def check(self, passes: bool, what: str, details: Sequence[object] = ()) -> None:
        """Print the result of a check. The first `details` are printed below a check that failed."""
        self.passed += passes
        self.failed += not passes
        print(("  ok      " if passes else "  FAILED  ") + what)
        if not passes:
            for each in details[:MAX_DETAILS]:
                print(textwrap.indent(str(each), " " * 10))

    def finish(self) -> int:
        """Print the totals. Return the number of checks that failed."""
        print(f"{self.passed} passed, {self.failed} failed", flush=True)
        return self.failed
