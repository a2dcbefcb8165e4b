"""Samples of the places or examples that a test tries, where neighbouring ones usually behave alike.

With KESTREL_EVERY_PLACE=1 in the environment, tests try all places (`make every-place`). With KESTREL_FEWER=3 they try
a third of the usual places and examples, always the same ones. This gives `.ci/run` time for both builds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Sequence
from typing import Final, TypeVar

Seen = TypeVar("Seen")

EVERY_PLACE: Final = os.environ.get("KESTREL_EVERY_PLACE") == "1"
"""True if tests try all places."""

FEWER: Final = int(os.environ.get("KESTREL_FEWER", "1"))
"""Divisor for the usual size of a sample."""


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
    """Return the results of `look` at sampled places from 0 to `count`, in order.

    The sample has every `step`-th place and the last one. Around each change of the result it also has the place with
    the new result, the place before it and the place after it. A change and its reversal between two sampled places
    are not found.
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
    """Return the first and last place of each kind, and every `step`-th place."""
    if EVERY_PLACE:
        return list(range(len(kinds)))
    step = step_between(step)
    last = {kind: place for place, kind in enumerate(kinds)}
    first = {kind: len(kinds) - 1 - place for place, kind in enumerate(reversed(kinds))}
    return sorted({*first.values(), *last.values(), *range(0, len(kinds), step)})
