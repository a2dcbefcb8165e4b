"""The remaining items of all readers of a scroll, counted together."""

from __future__ import annotations

import random

import pytest

from kestrel.scroll.done_set import DoneSet
from kestrel.scroll.records import Targets
from kestrel.tools.files.scroll_contents import RemainingItems
from kestrel.tools.files.snapshot_files import ItemTally

NOW_MS = 1000


def values(tally: ItemTally) -> tuple[int, int, int, int | None, int | None]:
    return tally.items, tally.data_bytes, tally.expired, tally.oldest_ms, tally.newest_ms


def test_items_for_many_readers_are_counted() -> None:
    readers = {b"%d" % number: DoneSet(0) for number in range(200)}
    left = RemainingItems(readers, NOW_MS)
    for item_id in range(1, 601):
        left.add(item_id, 2, 1, 0, Targets(frozenset([b"%d" % (item_id % 200)]), are_left_out=False))
    assert {values(tally)[:2] for tally in left.tallies().values()} == {(3, 6)}


@pytest.mark.parametrize("seed", range(20))
def test_counts_equal_those_of_each_reader_alone(seed: int) -> None:
    chance = random.Random(seed)
    readers = {}
    for reader in (b"a", b"b", b"c", b":own"):
        readers[reader] = DoneSet(chance.choice([0, 0, 20, 60, 300]))
        for _ in range(chance.choice([0, 3, 40])):
            first = chance.randrange(1, 250)
            readers[reader].add(first, first + chance.choice([0, 1, 9]))
    left = RemainingItems(readers, NOW_MS)
    alone = {reader: ItemTally(NOW_MS) for reader in readers}
    item_id = chance.randrange(1, 30)
    for _ in range(200):
        some = frozenset(chance.sample([*readers, b"gone"], chance.randrange(4)))
        targets = chance.choice([None, None, Targets(some, chance.random() < 0.5)])
        item = chance.randrange(9), chance.randrange(2000), chance.choice([0, 999, 1000, 2000])
        left.add(item_id, *item, targets)
        for reader, tally in alone.items():
            if item_id not in readers[reader] and (targets is None or targets.has(reader)):
                tally.add(*item)
        item_id += chance.choice([1, 1, 1, 5])
    assert {reader: values(tally) for reader, tally in left.tallies().items()} == {
        reader: values(tally) for reader, tally in alone.items()
    }
