"""What happens to a few queues, step by step, while the disk fails or the process dies somewhere in it."""

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
"""Limits that the steps exceed."""

Step: TypeAlias = Callable[[ModelCheckedStorage], None]

PARENT, CHILD, SIBLING, OTHER = b"a", b"a+b", b"a+c", b"other"


def put_to_all(tracked: ModelCheckedStorage) -> None:
    """Items for a whole fanout."""
    for size in (0, 15, 40):
        tracked.put([PARENT, CHILD, SIBLING], b"." * size, expires=size == 15)


def put_to_one(tracked: ModelCheckedStorage) -> None:
    """Items for a child alone, and for a queue that is no fanout."""
    tracked.put([CHILD], b"for one")
    for size in (30, 50):
        tracked.put([OTHER], b"," * size)


def open_some(tracked: ModelCheckedStorage) -> None:
    """Open reads, and a plain take."""
    for name in (CHILD, CHILD, OTHER):
        tracked.take(name, opened=True)
    tracked.take(PARENT)


def end_some(tracked: ModelCheckedStorage) -> None:
    """One open read is put back, which failed; one is confirmed."""
    opened = list(tracked.models[CHILD].opened)
    tracked.put_back(CHILD, opened[:1], failed=True)
    tracked.confirm(CHILD, opened[-1:])


def take_some(tracked: ModelCheckedStorage) -> None:
    """Plain takes of everybody."""
    for name in (PARENT, PARENT, CHILD, SIBLING, OTHER):
        tracked.take(name)


def clear_one(tracked: ModelCheckedStorage) -> None:
    """A clear, and a put behind it."""
    tracked.clear(SIBLING)
    tracked.put([SIBLING], b"after the clear")


def delete_one(tracked: ModelCheckedStorage) -> None:
    """A queue is deleted, and made again at once."""
    tracked.delete(OTHER)
    tracked.put([OTHER], b"after the deletion")


def have_upkeep(tracked: ModelCheckedStorage) -> None:
    """The backend tidies up."""
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
