"""The memcache codec."""

from __future__ import annotations

import re
from functools import partial

from kestrel.protocols import memcache
from kestrel.protocols.memcache import MemcacheCodec
from tests.fuzz.choices import Choices, repairing
from tests.fuzz.codecs import check_codec
from tests.fuzz.target import Target

LIMITS = ((8192, 1 << 24), (60, 40), (16, 1), (1, 0))
"""(line size, item size) limits."""


def check(data: bytes) -> None:
    memcache._PARSED_LINES.clear()  # an input must not depend on earlier inputs
    choices = Choices(data)
    (max_line, max_item), sizes = choose(choices)
    make = partial(MemcacheCodec, max_line, max_item, bool(len(sizes) & 1))
    check_codec(make, choices.rest(), sizes, max(max_line, max_item + len(b"\r\n")))


def choose(choices: Choices) -> tuple[tuple[int, int], list[int]]:
    """Return the limits, and the sizes of the pieces."""
    return LIMITS[choices.number(len(LIMITS))], choices.numbers(15)


WORDS = (
    b"set work 0 0 ", b"\r\n", b"get ", b"gets ", b"work", b"/t=", b"/open", b"/close", b"/abort", b"/peek", b"delete ",
    b"flush ", b"flush_all", b"flush_expired ", b"flush_all_expired", b"monitor work ", b"confirm work ", b"version",
    b"stats", b"dump_stats", b"dump_config", b"reload", b"status", b"shutdown", b"quit", b"add ", b"cas ", b"ReadOnly",
    b"2147483647", b"-2147483648", b"4294967296", b"-1", b"a+b", b"noreply", b"/delay=1500", b"315360000001",
    b"+delayed",
)  # fmt: skip


_SET = re.compile(rb"(set [^ \r\n]+ [^ \r\n]+ [^ \r\n]+ )([0-9]+)(\r?\n)(.*?)(?=\r\n)", re.DOTALL | re.IGNORECASE)


def repaired(data: bytes) -> bytes:
    """Return data whose sets have the lengths of the bytes before the next line end."""
    return _SET.sub(lambda found: b"%b%d%b%b" % (found[1], len(found[4]), found[3], found[4]), data)


TARGET = Target(check, lambda: WORDS, repairing(choose, repaired))
