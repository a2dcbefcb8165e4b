"""Checks of a torture run, printed as they are made."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Generic, TypeVar

MAX_DETAILS: Final = 5
AnyCase = TypeVar("AnyCase")


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


class PromiseReport(Generic[AnyCase]):
    """Checks cases against promises. A promise yields the faults of a case."""

    def __init__(self, promises: Sequence[Callable[[AnyCase], Iterator[str]]]) -> None:
        self.cases = 0
        self.faults: dict[Callable[[AnyCase], Iterator[str]], list[str]] = {promise: [] for promise in promises}

    def add(self, case: AnyCase) -> bool:
        """Check a case against every promise. Return whether it breaks one."""
        self.cases += 1
        is_broken = False
        for promise, faults in self.faults.items():
            found = [f"{case}: {fault}" for fault in promise(case)]
            faults += found
            is_broken = is_broken or bool(found)
        return is_broken

    def shown(self, promise: Callable[[AnyCase], Iterator[str]]) -> list[str]:
        """Return the first faults against a promise, and how many more there are."""
        faults = self.faults[promise]
        more = len(faults) - MAX_DETAILS
        return [*faults[:MAX_DETAILS], *([f"and {more:,} more"] if more > 0 else [])]
