"""Which of many places a test tries, where its neighbours prove the same.

With KESTREL_EVERY_PLACE=1 in the environment it is all of them (`make every-place`). With KESTREL_FEW_PLACES=1 it is a
third of what it is otherwise, always the same: so `.ci/run` has time for both builds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Sequence
from typing import Final, TypeVar

Seen = TypeVar("Seen")

EVERY_PLACE: Final = os.environ.get("KESTREL_EVERY_PLACE") == "1"
"""Whether samples are to be all there is."""

FEW_PLACES: Final = os.environ.get("KESTREL_FEW_PLACES") == "1"
"""Whether samples are to be small."""

FEWER: Final = 3
"""Of so many places that are tried otherwise, one is in a small sample."""


def step_between(step: int) -> int:
    """How far apart the places of a sample are that are `step` apart otherwise."""
    if EVERY_PLACE:
        return 1
    return step * FEWER if FEW_PLACES else step


def examples(count: int) -> int:
    """How many examples a test takes that takes so many otherwise."""
    return count // FEWER if FEW_PLACES else count


def is_tried(place: int) -> bool:
    """Whether a test tries that place, which is one of those that it tries without a sample."""
    return EVERY_PLACE or not FEW_PLACES or place % FEWER == 0


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
