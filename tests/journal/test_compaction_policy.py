"""The compaction policy: sizes and settings decide when files are rotated, rewritten and packed."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from kestrel.journal.compaction_policy import (
    Compaction,
    CompactionLimits,
    JournalSizes,
    choose_compaction,
    should_rotate,
)

LIMITS = CompactionLimits(
    default_journal_size_bytes=1000,
    max_memory_size_bytes=5000,
    max_journal_size_bytes=20_000,
    min_journal_compact_delay_ms=60_000,
    disable_aggressive_rewrites=False,
)


def state(total_bytes: int, live_bytes: int = 0, **more: object) -> JournalSizes:
    """Return the sizes of a queue that, by default, has an item and was never rewritten."""
    values = {"items": 1, "has_rotated": False, "read_bytes": 0, "packed_bytes": 0, "ms_since_rewrite": None, **more}
    return JournalSizes(total_bytes=total_bytes, live_bytes=live_bytes, **values)


@pytest.mark.parametrize(("size", "expected"), [(0, False), (5000, False), (5001, True)])
def test_file_larger_than_memory_limit_is_rotated(size: int, expected: bool) -> None:
    assert should_rotate(size, LIMITS) is expected


class TestAnEmptyQueue:
    @pytest.mark.parametrize(("size", "expected"), [(999, Compaction.NONE), (1000, Compaction.REWRITE)])
    def test_is_rewritten_from_default_size_on(self, size: int, expected: Compaction) -> None:
        assert choose_compaction(state(size, items=0), LIMITS) is expected

    def test_is_rewritten_at_any_size_if_it_has_rotated_files(self) -> None:
        assert choose_compaction(state(1, items=0, has_rotated=True), LIMITS) is Compaction.REWRITE

    def test_is_rewritten_right_after_a_rewrite(self) -> None:
        assert choose_compaction(state(1000, items=0, ms_since_rewrite=0), LIMITS) is Compaction.REWRITE

    def test_with_open_reads_is_rewritten_only_if_half_is_freed(self) -> None:
        assert choose_compaction(state(1000, 501, items=0), LIMITS) is Compaction.NONE
        assert choose_compaction(state(1000, 500, items=0), LIMITS) is Compaction.REWRITE

    def test_with_open_reads_waits_without_aggressive_rewrites(self) -> None:
        limits = LIMITS._replace(disable_aggressive_rewrites=True)
        assert choose_compaction(state(1000, 500, items=0, ms_since_rewrite=59_999), limits) is Compaction.NONE
        assert choose_compaction(state(1000, 500, items=0, ms_since_rewrite=60_000), limits) is Compaction.REWRITE
        assert choose_compaction(state(1000, items=0, ms_since_rewrite=0), limits) is Compaction.REWRITE

    def test_without_bytes_in_its_files_is_left_alone(self) -> None:
        limits = LIMITS._replace(default_journal_size_bytes=0)
        assert choose_compaction(state(0, items=0), limits) is Compaction.NONE
        assert choose_compaction(state(0, items=0, has_rotated=True), limits) is Compaction.NONE


class TestAQueueWithItems:
    def test_is_left_alone_up_to_max_journal_size(self) -> None:
        assert choose_compaction(state(20_000, 10_000), LIMITS) is Compaction.NONE

    def test_is_rewritten_above_max_size_if_half_is_freed(self) -> None:
        assert choose_compaction(state(20_001, 10_000), LIMITS) is Compaction.REWRITE
        assert choose_compaction(state(20_001, 10_001), LIMITS) is Compaction.NONE

    def test_is_never_rewritten_before_a_removal(self) -> None:
        assert choose_compaction(state(10**12, 10**12), LIMITS) is Compaction.NONE

    def test_waits_for_the_delay(self) -> None:
        assert choose_compaction(state(20_001, 9000, ms_since_rewrite=59_999), LIMITS) is Compaction.NONE
        assert choose_compaction(state(20_001, 9000, ms_since_rewrite=60_000), LIMITS) is Compaction.REWRITE

    def test_does_not_wait_without_a_delay(self) -> None:
        limits = LIMITS._replace(min_journal_compact_delay_ms=None)
        assert choose_compaction(state(20_001, 9000, ms_since_rewrite=0), limits) is Compaction.REWRITE

    def test_does_not_wait_near_the_size_bound(self) -> None:
        assert choose_compaction(state(28_000, 9000, ms_since_rewrite=0), LIMITS) is Compaction.NONE
        assert choose_compaction(state(28_001, 9000, ms_since_rewrite=0), LIMITS) is Compaction.REWRITE


class TestAQueueReadBehind:
    def test_is_packed_above_max_size_if_half_is_freed(self) -> None:
        assert choose_compaction(state(20_001, 15_000, read_bytes=2000, packed_bytes=1000), LIMITS) is Compaction.PACK
        assert choose_compaction(state(20_001, 15_000, read_bytes=1999, packed_bytes=1000), LIMITS) is Compaction.NONE
        assert choose_compaction(state(20_000, 15_000, read_bytes=2000, packed_bytes=1000), LIMITS) is Compaction.NONE

    def test_is_packed_rather_than_rewritten(self) -> None:
        assert choose_compaction(state(100_000, 10_000, read_bytes=2000, packed_bytes=1000), LIMITS) is Compaction.PACK

    def test_is_packed_without_delay(self) -> None:
        packable = state(20_001, 15_000, read_bytes=2000, packed_bytes=0, ms_since_rewrite=0)
        assert choose_compaction(packable, LIMITS) is Compaction.PACK

    def test_is_rewritten_if_packing_frees_too_little(self) -> None:
        assert (
            choose_compaction(state(100_000, 10_000, read_bytes=2000, packed_bytes=1999), LIMITS) is Compaction.REWRITE
        )


SIZES = st.integers(0, 10**6)


@given(
    st.builds(
        JournalSizes,
        total_bytes=SIZES,
        has_rotated=st.booleans(),
        items=st.integers(0, 3),
        live_bytes=SIZES,
        read_bytes=SIZES,
        packed_bytes=SIZES,
        ms_since_rewrite=st.none() | SIZES,
    ),
    st.builds(
        CompactionLimits,
        default_journal_size_bytes=SIZES,
        max_memory_size_bytes=SIZES,
        max_journal_size_bytes=SIZES,
        min_journal_compact_delay_ms=st.none() | SIZES,
        disable_aggressive_rewrites=st.booleans(),
    ),
)
def test_rewrite_always_frees_half_and_size_stays_bounded(journal: JournalSizes, limits: CompactionLimits) -> None:
    chosen = choose_compaction(journal, limits)
    if chosen is Compaction.REWRITE:
        assert 0 < journal.total_bytes >= 2 * journal.live_bytes
    if chosen is Compaction.PACK:
        assert 0 < journal.read_bytes >= 2 * journal.packed_bytes
    if chosen is Compaction.NONE and journal.items:
        assert journal.total_bytes <= 2 * journal.live_bytes + limits.max_journal_size_bytes
