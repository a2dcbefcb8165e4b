"""A sample of places or examples that a test tries, where neighbouring ones prove the same.

With KESTREL_EVERY_PLACE=1 in the environment, tests try all places (`make every-place`). With KESTREL_FEWER=3 they try
a third of the places and examples that they try otherwise, always the same. This gives `.ci/run` time for both builds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Sequence
from typing import Final, TypeVar

Seen = TypeVar("Seen")

EVERY_PLACE: Final = os.environ.get("KESTREL_EVERY_PLACE") == "1"
"""Whether samples are to be all there is."""

FEWER: Final = int(os.environ.get("KESTREL_FEWER", "1"))
"""How many times smaller samples are than usual."""


def step_between(step: int) -> int:
    """Return the distance between the places of a sample that are usually `step` apart."""
    return 1 if EVERY_PLACE else step * FEWER


def examples(count: int) -> int:
    """Return the number of examples of a test that usually takes `count`."""
    return count // FEWER


def is_tried(place: int) -> bool:
    """Return whether a test tries a place that it usually tries."""
    return EVERY_PLACE or place % FEWER == 0


def beside_changes(count: int, step: int, look: Callable[[int], Seen]) -> dict[int, Seen]:
    """What is seen at places of 0, 1, ... up to the count, which is one of them; in their order.

    It is looked at every `step`-th, at the last, and wherever something else is seen than at the place before it: at
    that place, at the one before and at the one behind. What changes and changes back between two places that are
    looked at is not seen.
    """
    step = step_between(step)
    seen: dict[int, Seen] = {}

    def look_at(place: int) -> Seen:
        if place not in seen:
            seen[place] = look(place)
        return seen[place]

    between = [(first, min(first + step, count)) for first in range(0, count, step)] or [(0, 0)]
    while between:
        first, last = between.pop()
        if look_at(first) == look_at(last):
            continue
        if last - first > 1:
            middle = (first + last) // 2
            between += [(first, middle), (middle, last)]
        elif last < count:
            look_at(last + 1)
    return dict(sorted(seen.items()))


def of_each_kind(kinds: Sequence[Hashable], step: int) -> list[int]:
    """The places of the first and of the last of each kind, and every `step`-th."""
    if EVERY_PLACE:
        return list(range(len(kinds)))
    step = step_between(step)
    last = {kind: place for place, kind in enumerate(kinds)}
    first = {kind: len(kinds) - 1 - place for place, kind in enumerate(reversed(kinds))}
    return sorted({*first.values(), *last.values(), *range(0, len(kinds), step)})
