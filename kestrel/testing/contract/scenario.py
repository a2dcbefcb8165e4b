"""A scenario: steps of a few queues, to be repeated with faults and crashes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from kestrel.testing.contract.model_check import ModelCheckedStorage

LIMITS: Final[dict[str, Any]] = {
    "max_memory_size_bytes": 60,
    "default_journal_size_bytes": 200,
    "max_journal_size_bytes": 600,
    "min_journal_compact_delay_ms": None,
    "sync_journal_ms": 0,
}
"""Limits that the scenario exceeds."""

Step: TypeAlias = Callable[[ModelCheckedStorage], None]

PARENT, CHILD, SIBLING, OTHER = b"a", b"a+b", b"a+c", b"other"


def put_to_all(tracked: ModelCheckedStorage) -> None:
    """Put items to the whole fanout."""
    for size in (0, 15, 40):
        tracked.put([PARENT, CHILD, SIBLING], b"." * size, expires=size == 15)


def put_to_one(tracked: ModelCheckedStorage) -> None:
    """Put items to one child, and to a queue outside the fanout."""
    tracked.put([CHILD], b"for one")
    for size in (30, 50):
        tracked.put([OTHER], b"," * size)


def open_some(tracked: ModelCheckedStorage) -> None:
    """Open some heads, and take one without opening it."""
    for name in (CHILD, CHILD, OTHER):
        tracked.take(name, opened=True)
    tracked.take(PARENT)


def end_some(tracked: ModelCheckedStorage) -> None:
    """Put back one open read as failed, and confirm one."""
    opened = list(tracked.models[CHILD].opened)
    tracked.put_back(CHILD, opened[:1], failed=True)
    tracked.confirm(CHILD, opened[-1:])


def take_some(tracked: ModelCheckedStorage) -> None:
    """Take items of all queues without opening them."""
    for name in (PARENT, PARENT, CHILD, SIBLING, OTHER):
        tracked.take(name)


def clear_one(tracked: ModelCheckedStorage) -> None:
    """Clear a queue, and put an item to it."""
    tracked.clear(SIBLING)
    tracked.put([SIBLING], b"after the clear")


def delete_one(tracked: ModelCheckedStorage) -> None:
    """Delete a queue, and make it again with one item."""
    tracked.delete(OTHER)
    tracked.put([OTHER], b"after the deletion")


def have_upkeep(tracked: ModelCheckedStorage) -> None:
    """Make the backend compact its files."""
    tracked.compact(PARENT)


STEPS: Final[Sequence[Step]] = (
    put_to_all,
    put_to_one,
    open_some,
    put_to_all,
    end_some,
    take_some,
    have_upkeep,
    clear_one,
    put_to_all,
    put_to_one,
    open_some,
    take_some,
    have_upkeep,
)

STEPS_WITH_A_DELETION: Final[Sequence[Step]] = (*STEPS[:9], delete_one, *STEPS[9:])
