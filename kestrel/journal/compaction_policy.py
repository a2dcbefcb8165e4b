"""The policy for rotation and compaction of journals, as pure functions of sizes and settings.

*Live* bytes are the bytes that a rewrite would write, for the current items and open reads. All other bytes of the
files are *spent*. A rewrite writes the live bytes and frees the spent ones. It is done only if it frees at least half
of the files, so files without spent bytes are never rewritten. The goal is that the files take at most twice the live
bytes, plus maxJournalSize, plus one file. Since bytes are spent during a rewrite, it begins when half of maxJournalSize
is used.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Compaction(Enum):
    """The compaction to do."""

    NONE = "none"
    REWRITE = "rewrite"
    """Replace all files by one with the live records."""
    PACK = "pack"
    """Replace the files that have been read into memory by one, and keep the files still in read-behind."""


class CompactionLimits(NamedTuple):
    """The settings of a queue that control rotation and compaction."""

    default_journal_size_bytes: int
    max_memory_size_bytes: int
    max_journal_size_bytes: int
    min_journal_compact_delay_ms: int | None
    disable_aggressive_rewrites: bool


class JournalSizes(NamedTuple):
    """The sizes of a queue's journal at one moment."""

    total_bytes: int
    """Size of all files."""
    has_rotated: bool
    """True if there are rotated files."""
    items: int
    """Number of items in the queue, without open reads."""
    live_bytes: int
    """Bytes that a rewrite would write."""
    read_bytes: int
    """Size of the rotated files that are completely read into memory, which a pack would replace."""
    packed_bytes: int
    """Upper bound of the bytes that a pack would write."""
    ms_since_rewrite: int | None
    """Milliseconds since the last rewrite, or None if there was none."""


def should_rotate(current_bytes: int, limits: CompactionLimits) -> bool:
    """Return whether the current file should be rotated."""
    return current_bytes > limits.max_memory_size_bytes


def choose_compaction(state: JournalSizes, limits: CompactionLimits) -> Compaction:
    """Return which compaction should be done now."""
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
    """Return the compaction of a queue without items.

    A queue that has only open reads may become empty often, so `disable_aggressive_rewrites` limits its rewrites.
    """
    if state.live_bytes and limits.disable_aggressive_rewrites and not _has_waited(state, limits):
        return Compaction.NONE
    return Compaction.REWRITE


def _has_waited(state: JournalSizes, limits: CompactionLimits) -> bool:
    delay_ms = limits.min_journal_compact_delay_ms
    return delay_ms is None or state.ms_since_rewrite is None or state.ms_since_rewrite >= delay_ms
