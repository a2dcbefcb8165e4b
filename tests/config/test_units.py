"""Sizes and durations are read exactly or not at all."""

from __future__ import annotations

import datetime
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrel.config.units import MAX_AMOUNT, TIB, format_duration_ms, format_size, parse_duration_ms, parse_size

KIB, MIB, GIB = 2**10, 2**20, 2**30


@pytest.mark.parametrize(
    ("written", "size"),
    [
        (0, 0),
        (16777216, 16 * MIB),
        ("0", 0),
        ("0B", 0),
        ("16MiB", 16 * MIB),
        ("16 MiB", 16 * MIB),
        ("16mib", 16 * MIB),
        ("16MB", 16 * MIB),
        ("16.megabytes", 16 * MIB),
        ("1.megabyte", MIB),
        ("1.5.gigabytes", GIB + GIB // 2),
        ("1.5KiB", 1536),
        ("8 kb", 8 * KIB),
        ("100.bytes", 100),
        ("2.kilobytes", 2 * KIB),
        ("1TiB", 1024 * GIB),
        (MAX_AMOUNT, MAX_AMOUNT),
    ],
)
def test_sizes_are_parsed(written: object, size: int) -> None:
    assert parse_size(written) == size


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("128 bananas", '"128 bananas" is not a size'),
        ("", '"" is not a size'),
        ("MiB", '"MiB" is not a size'),
        ("16", '"16" is not a size'),
        ("00", '"00" is not a size'),
        ("16  MiB", "is not a size"),
        (" 16MiB", "is not a size"),
        ("16MiB\n", "is not a size"),
        ("1MiB1KiB", "is not a size"),
        ("-1MiB", '"-1MiB" is not a size'),
        ("1e3 bytes", "is not a size"),
        ("1_000 bytes", "is not a size"),
        ("٣ bytes", "is not a size"),
        ("1" * 80 + "B", "is not a size"),
        (True, "true is not a size"),
        (16.0, "16.0 is not a size"),
        (None, "is not a size"),
        ([16], "a list is not a size"),
        ({}, "a table is not a size"),
        (datetime.date(2011, 5, 27), "a date or time is not a size"),
        (-1, "-1 is negative"),
        ("0.3 bytes", "is not a whole number of bytes"),
        (MAX_AMOUNT + 1, "is more than 2**62 bytes"),
        ("9999999999999999999 TiB", "is more than 2**62 bytes"),
        pytest.param(16**5000, "a number of 20001 bits is more than 2**62 bytes", id="5000 digits"),
    ],
)
def test_an_invalid_size_is_reported_with_a_valid_example(written: object, complaint: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_size(written)
    assert complaint in str(caught.value)
    assert 'write for example "16MiB"' in str(caught.value)


@pytest.mark.parametrize(
    ("written", "duration_ms"),
    [
        (0, 0),
        (-0.0, 0),
        (5, 5_000),
        (0.1, 100),
        (1.001, 1_001),
        ("100ms", 100),
        ("100.milliseconds", 100),
        ("1.second", 1_000),
        ("1.5s", 1_500),
        ("1 s", 1_000),
        ("90 seconds", 90_000),
        ("1m30s", 90_000),
        ("1m 30s", 90_000),
        ("1 minute 30 seconds", 90_000),
        ("2h", 7_200_000),
        ("2.hours", 7_200_000),
        ("1d12h", 129_600_000),
        ("1s500ms", 1_500),
        ("0", 0),
        ("0s", 0),
    ],
)
def test_durations_are_parsed(written: object, duration_ms: int) -> None:
    assert parse_duration_ms(written) == duration_ms


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("128 bananas", '"128 bananas" is not a duration'),
        ("", '"" is not a duration'),
        ("5", '"5" is not a duration'),
        ("00", '"00" is not a duration'),
        ("1M", '"1M" is not a duration'),
        ("1m,30s", "is not a duration"),
        ("1m  30s", "is not a duration"),
        ("30s1m", "is not a duration"),
        ("1s1s", "is not a duration"),
        ("1s 1.second", "is not a duration"),
        ("never", "is not a duration"),
        ("-5s", "is not a duration"),
        ("1" * 80 + "s", "is not a duration"),
        (True, "true is not a duration"),
        (float("nan"), "nan is not a duration"),
        (float("inf"), "inf is not a duration"),
        ([], "a list is not a duration"),
        (-1, "-1 is negative"),
        (-0.5, "-0.5 is negative"),
        ("0.5ms", "is not a whole number of milliseconds"),
        (0.0001, "is not a whole number of milliseconds"),
        (1e300, "is more than 2**62 milliseconds"),
        (2**62, "is more than 2**62 milliseconds"),
        ("99999999999999999999d", "is more than 2**62 milliseconds"),
    ],
)
def test_an_invalid_duration_is_reported_with_a_valid_example(written: object, complaint: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_duration_ms(written)
    assert complaint in str(caught.value)
    assert 'write for example "100ms"' in str(caught.value)


@given(st.integers(0, 10**15))
def test_a_number_of_seconds_with_three_decimals_is_exact(duration_ms: int) -> None:
    seconds, rest = divmod(duration_ms, 1_000)
    assert parse_duration_ms(f"{seconds}.{rest:03}s") == duration_ms


amounts = st.integers(0, MAX_AMOUNT)
multiples = st.builds(lambda unit, count: unit * count, st.sampled_from([KIB, MIB, GIB, TIB]), st.integers(0, 5_000))


@given(amounts | multiples)
def test_a_written_size_parses_back_and_uses_the_largest_unit(size_bytes: int) -> None:
    text = format_size(size_bytes)
    assert parse_size(text) == size_bytes
    if size_bytes:
        number, unit = re.findall("[0-9]+|[A-Za-z]+", text)
        assert unit == "TiB" or int(number) % 1024


@given(amounts | st.integers(0, 10**9))
def test_a_written_duration_parses_back_and_has_no_zero_parts(duration_ms: int) -> None:
    text = format_duration_ms(duration_ms)
    assert parse_duration_ms(text) == duration_ms
    if duration_ms:
        number_by_unit = {unit: int(number) for number, unit in re.findall("([0-9]+)([a-z]+)", text)}
        bounds = {"d": MAX_AMOUNT, "h": 24, "m": 60, "s": 60, "ms": 1_000}
        assert all(0 < number < bounds[unit] for unit, number in number_by_unit.items())
