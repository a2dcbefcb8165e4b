"""Tests that only some backends have to pass: those without are left out by name, as pytest's skips.

A skip, rather than a test that is not there: an author's own `pytest -rs` then lists what a backend does not
promise, without a plugin of ours, and nobody takes a missing test for one that passed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import pytest

from kestrel.storage.capabilities import CAPABILITIES

BASE_CLASSES: Final = {"disk": "OnFaultyDisk", "has_faulty_database": "OnFaultyDatabase"}
"""The hooks that a base class gives, which is easier to name than what it does."""

Tests = TypeVar("Tests", bound=Callable[..., Any])


def requires(*what: str) -> Callable[[Tests], Tests]:
    """Mark a test, or each test of a class, as one for backends with these capabilities and hooks."""

    def mark(tests: Tests) -> Tests:
        marked = [tests]
        if isinstance(tests, type):
            marked = [test for name, test in vars(tests).items() if name.startswith("test_")]
        for test in marked:
            test.needs = (*requirements_of(test), *what)  # type: ignore[attr-defined]
        return tests

    return mark


def requirements_of(test: object) -> tuple[str, ...]:
    """The capabilities and hooks that a test needs."""
    found: tuple[str, ...] = getattr(test, "needs", ())
    return found


def skip_reason(missing: str) -> str:
    """Why a test is left out that needs this."""
    if missing in BASE_CLASSES:
        return f"needs the base class {BASE_CLASSES[missing]}"
    return f"needs {'capability' if missing in CAPABILITIES else 'hook'} {missing!r}"


def skip_unsupported(tests: type, contract: type, has: Callable[[str], bool]) -> dict[str, str]:
    """Have that class of tests skip those of the contract that need something it has not; gives their reasons."""
    reasons = {}
    for name in [name for name in dir(contract) if name.startswith("test_")]:
        missing = [each for each in requirements_of(getattr(contract, name)) if not has(each)]
        if missing:
            reasons[name] = skip_reason(missing[0])
            setattr(tests, name, _skipped_test(name, reasons[name]))
    return reasons


def overrides_hook(tests: type, method: str) -> bool:
    """Whether that class says how something is made, where its base only says that it is."""
    return not getattr(getattr(tests, method, None), "__isabstractmethod__", False)


def _skipped_test(name: str, reason: str) -> Callable[..., None]:
    """What stands in a test's place, to be skipped by its name for that reason."""

    def test(self: object) -> None:
        """Never run."""

    test.__name__ = name
    return pytest.mark.skip(reason=reason)(test)
