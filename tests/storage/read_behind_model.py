"""A model of a journal queue, with all states that a restart may find."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from kestrel.item import Item

Seen: TypeAlias = tuple[bytes, int, int]
"""An item as a client sees it: data, add time, expiry."""

ADDX_HEADER_BYTES: Final = 21
XID_RECORD_BYTES: Final = 5
ERRORS_BYTES: Final = 15
"""The size of an open and an abort that restore the errors of an item."""
REMOVE_BYTES: Final = 1
CONTINUE_BYTES: Final = 4
"""The size that a CONTINUE record adds to its item."""


def as_client_sees(item: Item | None) -> Seen | None:
    """Return the part of an item that a client sees."""
    return None if item is None else (item.data, item.add_ms, item.expiry_ms)


def record_bytes(item: Seen) -> int:
    """Return the size of the record of a put."""
    return ADDX_HEADER_BYTES + len(item[0])


@dataclass(slots=True)
class Entry:
    """An item of the model."""

    seen: Seen
    put_at: int
    """The number of the state that the put led to."""
    errors: int = 0
    was_open: bool = False
    """True if the item was an open read, of this server or an earlier one."""


@dataclass
class ModelQueue:
    """A queue as a list of items and a dict of open reads."""

    memory_limit: int
    """The largest maxMemorySize so far."""
    items: deque[Entry] = field(default_factory=deque)
    opened: dict[int, Entry] = field(default_factory=dict)
    xids: set[int] = field(default_factory=set)
    """All xids so far."""
    batch_bytes: int = 0
    """The bytes recorded since the last commit."""
    largest_batch_bytes: int = 0
    is_touched: bool = False
    """True if something was recorded since the last commit."""

    def after_restart(self) -> list[Entry]:
        """Return the items after a restart: the open reads by xid, then the others."""
        return [*(self.opened[xid] for xid in sorted(self.opened)), *self.items]

    def end_batch(self) -> None:
        """Begin the next batch."""
        self.largest_batch_bytes = max(self.largest_batch_bytes, self.batch_bytes)
        self.batch_bytes = 0
        self.is_touched = False

    def live_bytes(self) -> int:
        """Return the size of a journal that holds only the present items."""
        items = sum(record_bytes(entry.seen) for entry in self.items)
        opened = sum(record_bytes(entry.seen) + XID_RECORD_BYTES for entry in self.opened.values())
        last_with_errors = max((place for place, entry in enumerate(self.items, 1) if entry.errors), default=0)
        counts = last_with_errors + sum(entry.errors > 0 for entry in self.opened.values())
        return items + opened + counts * ERRORS_BYTES


@dataclass(slots=True)
class State:
    """The items and errors that a restart would find. The first `were_open` items have been open reads."""

    items: tuple[Seen, ...] = ()
    errors: tuple[int, ...] = ()
    were_open: int = 0

    def __str__(self) -> str:
        return str([(item[1], errors) for item, errors in zip(self.items, self.errors, strict=True)])


class StateHistory:
    """All states of the queue of one name, one for each record, over deletions and restarts.

    A kill may leave any state from `written` on, the last state whose commit has ended. A power failure may leave any
    state from `synced` on, the last state that is known to be synced. So a crash loses the end of the history only.
    """

    def __init__(self) -> None:
        self.states = [State()]
        self.written = 0
        self.synced = 0
        self._deletion = -1

    @property
    def last(self) -> int:
        return len(self.states) - 1

    def add(self, model: ModelQueue) -> None:
        """Add the state after a record."""
        entries = model.after_restart()
        were_open = len(model.opened) + sum(entry.was_open for entry in model.items)
        seen, errors = (entry.seen for entry in entries), (entry.errors for entry in entries)
        self.states.append(State(tuple(seen), tuple(errors), were_open))

    def delete(self) -> None:
        """Add the state after a deletion. A kill cannot undo it, a power failure can until something is synced."""
        self.states.append(State())
        self._deletion = self.written = self.last

    def mark_written(self, state: int) -> None:
        """Record that a kill keeps that state."""
        self.written = max(self.written, state)

    def mark_synced(self, state: int) -> None:
        """Record that a power failure keeps that state, unless it is a deletion without later records."""
        self.mark_written(state)
        if state > self._deletion:
            self.synced = max(self.synced, state)

    def copy(self) -> StateHistory:
        copy = StateHistory()
        copy.states = self.states.copy()
        copy.written, copy.synced, copy._deletion = self.written, self.synced, self._deletion
        return copy

    def restore(self, items: Sequence[Seen], errors: Sequence[int], since: int) -> State:
        """Find these items, which a crash left, among the states from `since` on, and drop the later states."""
        state = State(tuple(items), tuple(errors))
        matching = [
            number
            for number, each in enumerate(self.states[since:], since)
            if (each.items, each.errors) == (state.items, state.errors)
        ]
        assert matching, (
            f"the {len(items)} items that were found, by add time and errors {state}, are none of the states"
            f" {[*map(str, self.states[since:])]}"
        )
        state.were_open = max(self.states[number].were_open for number in matching)
        del self.states[matching[-1] + 1 :]
        self.written = self.synced = self.last
        self._deletion = -1
        return state
