"""Values in human-readable form."""

from __future__ import annotations

import pytest

from kestrel.tools.formatting import show_duration, show_size


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (150 * 1024, "150 KiB"),
        (5 << 20, "5.0 MiB"),
        (3 << 30, "3.0 GiB"),
        (7 << 50, "7168.0 TiB"),
    ],
)
def test_size_is_shown_in_a_suitable_unit(size: int, shown: str) -> None:
    assert show_size(size) == shown


@pytest.mark.parametrize(
    ("ms", "shown"),
    [
        (0, "0"),
        (350, "350ms"),
        (1000, "1s"),
        (1549, "1.5s"),
        (90_000, "1m30s"),
        (7_260_000, "2h1m"),
        (266_400_000, "3d2h"),
    ],
)
def test_duration_is_shown_in_its_two_largest_units(ms: int, shown: str) -> None:
    assert show_duration(ms) == shown
