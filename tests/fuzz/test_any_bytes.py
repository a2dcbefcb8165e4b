"""Short runs of every target with any bytes, and with damaged inputs of the corpus."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz import target
from tests.sample import examples

SLOW = {"journal_start", "memcache_session", "pem", "qdump", "scroll_start", "text_session", "thrift_session"}


@st.composite
def damaged(draw: st.DrawFn, name: str) -> bytes:
    """Draw an input of the corpus in which some bytes are replaced, inserted, deleted, or taken from another input."""
    inputs = target.corpus(name)
    data = draw(st.sampled_from(inputs)).read_bytes()
    for _ in range(draw(st.integers(1, 4))):
        begin = draw(st.integers(0, len(data)))
        end = begin + draw(st.integers(0, 8))
        other = draw(st.one_of(st.binary(max_size=8), st.sampled_from(inputs).map(lambda path: path.read_bytes()[:60])))
        data = data[:begin] + other + data[end:]
    return data


@pytest.mark.parametrize("name", target.names())
def test_targets_accept_any_bytes(name: str) -> None:
    chosen = target.load(name)

    @settings(max_examples=examples(25 if name in SLOW else 100))
    @given(st.one_of(st.binary(max_size=300), damaged(name)))
    def check(data: bytes) -> None:
        chosen.check(data if chosen.repair is None else chosen.repair(data))
        chosen.check(data)

    check()
