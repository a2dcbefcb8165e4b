"""When a journal file is rotated, and when older files are replaced: functions of sizes and settings alone.

*Live* bytes are those of the records that a rewrite would write: the items and open reads that there are. What else
is in the files is *spent*. A rewrite costs the live bytes and frees the spent ones, so it is worth it only when it
frees at least half; that is also why files that hold nothing spent are never rewritten, however large they are.
The files are not to be larger than twice the live bytes, maxJournalSize and one file more. A rewrite takes its time,
in which more is spent, so it begins when half of maxJournalSize is left.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Compaction(Enum):
    """What is to be done."""

    NONE = "none"
    REWRITE = "rewrite"
    """All files are replaced by one that holds what is live."""
    PACK = "pack"
    """The files that have been read forward are replaced by one; those that wait to be read stay."""


class CompactionLimits(NamedTuple):
    """A queue's settings, by their names."""

    default_journal_size_bytes: int
    max_memory_size_bytes: int
    max_journal_size_bytes: int
    min_journal_compact_delay_ms: int | None
    disable_aggressive_rewrites: bool


class JournalSizes(NamedTuple):
    """A queue's journal at a moment, sizes in bytes."""

    total_bytes: int
    """All files."""
    has_rotated: bool
    """Whether there is more than the current file."""
    items: int
    """In the queue, open reads not counted."""
    live_bytes: int
    read_bytes: int
    """The rotated files in which nothing waits any more to be read forward: what a pack would replace."""
    packed_bytes: int
    """What a pack would write at most."""
    ms_since_rewrite: int | None
    """None: there was none."""


def should_rotate(current_bytes: int, limits: CompactionLimits) -> bool:
    """Whether the current file is to become a rotated one."""
    return current_bytes > limits.max_memory_size_bytes


def choose_compaction(state: JournalSizes, limits: CompactionLimits) -> Compaction:
    """What is to be done with these files now."""
    spent = state.total_bytes - state.live_bytes
    is_too_large = state.total_bytes > limits.max_journal_size_bytes
    if is_too_large and 0 < state.read_bytes >= 2 * state.packed_bytes:
        return Compaction.PACK
    if spent <= 0 or spent < state.live_bytes:
        return Compaction.NONE
    if state.items == 0 and (
        state.total_bytes >= limits.default_journal_size_bytes or (state.has_rotated and not state.live_bytes)
    ):
        return _emptied(state, limits)
    if spent > state.live_bytes + limits.max_journal_size_bytes // 2 or (is_too_large and _has_waited(state, limits)):
        return Compaction.REWRITE
    return Compaction.NONE


def _emptied(state: JournalSizes, limits: CompactionLimits) -> Compaction:
    """A queue with open reads alone may be emptied again and again."""
    if state.live_bytes and limits.disable_aggressive_rewrites and not _has_waited(state, limits):
        return Compaction.NONE
    return Compaction.REWRITE


def _has_waited(state: JournalSizes, limits: CompactionLimits) -> bool:
    delay_ms = limits.min_journal_compact_delay_ms
    return delay_ms is None or state.ms_since_rewrite is None or state.ms_since_rewrite >= delay_ms
