"""Tests for only some backends, and data and names that are likely to break a storage.

Other backends skip such tests, with the reason, so that `pytest -rs` lists what a backend does not support.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import pytest

from kestrel.storage.interfaces import CAPABILITIES

BASE_CLASSES: Final = {
    "disk": "OnFaultyDisk",
    "has_faulty_database": "OnFaultyDatabase",
    "commit_faults": "OnFaultyDisk or OnFaultyDatabase",
}
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


ADD_MS: Final = 1_700_000_000_000

DATA: Final = {
    "empty": b"",
    "every byte": bytes(range(256)),
    "line ends": b"\r\nEND\r\n",
    "zeros": bytes(1000),
    "zeros at both ends": b"\0\0middle\0\0",
    "looks like records": b"\x01\x02\x10\x00\x00\x00\x05\x01\x00\x00\x00",
    "no UTF-8": b"\xff\xfe\xc3(",
    "a megabyte": b"\xff" * (1 << 20),
}
"""Data of items, by their special property."""

NAMES: Final = {
    "high bytes": b"\xe9t\xe9",
    "the low half of the high bytes": bytes(range(0x80, 0xC0)),
    "the high half of the high bytes": bytes(range(0xC0, 0x100)),
    "its own UTF-8 spelling": b"\xc3\xa9",
    "a fanout child": b"work+child",
    "two pluses": b"a+b+c",
    "a plus at the end": b"x+",
    "200 bytes": b"n" * 200,
    "shell characters": b"-rf*?;$(x)'\"\\:|",
}
"""Names of queues, by their special property."""


def huge_item() -> bytes:
    """Return two gigabytes of zeros. They take no memory until they are read."""
    return bytes(1 << 31)
