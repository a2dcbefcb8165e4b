"""Tests for only some backends. Other backends skip them, with the reason.

They are skipped, not removed, so that `pytest -rs` lists what a backend does not support.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import pytest

from kestrel.storage.interfaces import CAPABILITIES

BASE_CLASSES: Final = {"disk": "OnFaultyDisk", "has_faulty_database": "OnFaultyDatabase"}
"""The hooks that a base class sets. Skip reasons name the base class."""

Tests = TypeVar("Tests", bound=Callable[..., Any])


def requires(*what: str) -> Callable[[Tests], Tests]:
    """Mark a test, or each test of a class, as requiring these capabilities and hooks."""

    def mark(tests: Tests) -> Tests:
        marked = [tests]
        if isinstance(tests, type):
            marked = [test for name, test in vars(tests).items() if name.startswith("test_")]
        for test in marked:
            test.needs = (*requirements_of(test), *what)  # type: ignore[attr-defined]
        return tests

    return mark


def requirements_of(test: object) -> tuple[str, ...]:
    """Return the capabilities and hooks that a test requires."""
    found: tuple[str, ...] = getattr(test, "needs", ())
    return found


def skip_reason(missing: str) -> str:
    """Return why a test is skipped that requires this capability or hook."""
    if missing in BASE_CLASSES:
        return f"needs the base class {BASE_CLASSES[missing]}"
    return f"needs {'capability' if missing in CAPABILITIES else 'hook'} {missing!r}"


def skip_unsupported(tests: type, contract: type, has: Callable[[str], bool]) -> dict[str, str]:
    """Replace the contract's tests that have unmet requirements by skipped tests. Return the skip reasons by name."""
    reasons = {}
    for name in [name for name in dir(contract) if name.startswith("test_")]:
        missing = [each for each in requirements_of(getattr(contract, name)) if not has(each)]
        if missing:
            reasons[name] = skip_reason(missing[0])
            setattr(tests, name, _skipped_test(name, reasons[name]))
    return reasons


def overrides_hook(tests: type, method: str) -> bool:
    """Return True if the class implements a method that is abstract in its base class."""
    return not getattr(getattr(tests, method, None), "__isabstractmethod__", False)


def _skipped_test(name: str, reason: str) -> Callable[..., None]:
    """Return a skipped test of that name."""

    def test(self: object) -> None:
        """Do nothing; the test is never run."""

    test.__name__ = name
    return pytest.mark.skip(reason=reason)(test)
