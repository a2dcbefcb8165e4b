"""Arguments of clients: invalid ones are rejected before anything is sent."""

from __future__ import annotations

from typing import Any

import pytest

from kestrel.client.arguments import (
    LONGEST_TIMEOUT_S,
    check_options,
    delay_ms,
    expiry_ms,
    name_bytes,
    to_milliseconds,
)
from kestrel.client.errors import RequestError
from kestrel.client.memcache import MemcacheCalls
from kestrel.client.put_batch import batches
from kestrel.client.thrift import ThriftCalls
from kestrel.commands import MAX_DELAY_MS
from kestrel.errors import BadQueueName
from kestrel.tls import TlsOptions


def test_name_is_bytes_or_unicode_text() -> None:
    assert name_bytes("w\xf6rk") == name_bytes(b"w\xc3\xb6rk") == b"w\xc3\xb6rk"
    with pytest.raises(BadQueueName, match="surrogate"):
        name_bytes("work\udcff")
    for wrong in (None, 5, bytearray(b"work")):
        with pytest.raises(TypeError, match="name must be bytes or a string"):
            name_bytes(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", ["abc", 5, None, bytearray(b"abc")])
def test_items_must_be_bytes(wrong: Any) -> None:
    for put in (
        lambda: MemcacheCalls().put(b"work", wrong),
        lambda: ThriftCalls().put(b"work", [wrong]),
        lambda: list(batches([b"a", wrong])),
    ):
        with pytest.raises(TypeError, match=f"items must be bytes, not {type(wrong).__name__}"):
            put()


@pytest.mark.parametrize("wrong", [b"abc", b"", "abc", ""])
def test_put_many_rejects_a_single_item(wrong: Any) -> None:
    with pytest.raises(TypeError, match="an iterable of bytes"):
        list(batches(wrong))


@pytest.mark.parametrize("seconds", [float("inf"), float("-inf"), float("nan")])
def test_times_must_be_finite(seconds: float) -> None:
    for take in (to_milliseconds, expiry_ms, lambda seconds: check_options(seconds, None)):
        with pytest.raises(ValueError, match=r"finite number of seconds, not -?(inf|nan)"):
            take(seconds)


def test_times_must_be_numbers() -> None:
    wrong: Any
    for wrong in (None, "5"):
        with pytest.raises(TypeError, match="a time must be a number of seconds"):
            to_milliseconds(wrong)
        with pytest.raises(TypeError, match="timeout_s must be a number of seconds"):
            check_options(wrong, None)
    with pytest.raises(TypeError, match="expires_in must be a number of seconds"):
        expiry_ms("5")  # type: ignore[arg-type]


def test_delay_is_rounded_up_to_milliseconds() -> None:
    assert [delay_ms(delay) for delay in (None, 0, 0.0001, 1.5, 10 * 365 * 86_400)] == [0, 0, 1, 1500, MAX_DELAY_MS]
    for delay in (-0.01, 10 * 365 * 86_400 + 0.001):
        with pytest.raises(RequestError, match="delay must be 0 to 315360000 seconds"):
            delay_ms(delay)


def test_options_are_checked() -> None:
    check_options(0.001, TlsOptions())
    for timeout_s in (0, -1):
        with pytest.raises(ValueError, match="more than 0"):
            check_options(timeout_s, None)
    check_options(LONGEST_TIMEOUT_S, None)
    for timeout_s in (LONGEST_TIMEOUT_S + 1, 10**30):
        with pytest.raises(ValueError, match=r"at most 2147483 \(24 days\)"):
            check_options(timeout_s, None)
    with pytest.raises(TypeError, match="TlsOptions or None, not True"):
        check_options(1, True)  # type: ignore[arg-type]
