"""FanoutChildren: which names are children of which."""

from __future__ import annotations

import pytest

from kestrel.queues.routing import FanoutChildren


@pytest.mark.parametrize(
    ("names", "parent", "children"),
    [
        ([], b"a", []),
        ([b"a"], b"a", []),
        ([b"a+x"], b"a", [b"a+x"]),
        ([b"a+x"], b"a+x", []),
        ([b"a+y", b"a", b"a+x", b"ab+x", b"b+x"], b"a", [b"a+x", b"a+y"]),
        ([b"a+x", b"a+x"], b"a", [b"a+x"]),
        ([b"a+x+y"], b"a", [b"a+x+y"]),
        ([b"a+x", b"a+x+y"], b"a+x", []),
        ([b"+x", b"x+", b"++"], b"", []),
        ([b"x+"], b"x", [b"x+"]),
    ],
)
def test_children_of_a_name_are_sorted(names: list[bytes], parent: bytes, children: list[bytes]) -> None:
    families = FanoutChildren()
    for name in names:
        families.add(name)
    assert families.children_of(parent) == children
