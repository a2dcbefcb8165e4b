"""Many items at once: how many that is."""

from __future__ import annotations

from kestrel.client.put_batch import BATCH_BYTES, BATCH_ITEMS, batches


def test_a_batch_has_no_more_items_than_it_may() -> None:
    items = [b"%d" % number for number in range(2 * BATCH_ITEMS + 1)]
    made = list(batches(iter(items)))
    assert [len(batch) for batch in made] == [BATCH_ITEMS, BATCH_ITEMS, 1]
    assert [item for batch in made for item in batch] == items


def test_a_batch_has_no_more_bytes_than_it_may_but_for_an_item_alone() -> None:
    half, large = b"x" * (BATCH_BYTES // 2), b"x" * (BATCH_BYTES + 1)
    assert list(batches([half, half, b"y", large, b"z"])) == [[half, half], [b"y"], [large], [b"z"]]


def test_of_no_items_there_is_no_batch() -> None:
    assert list(batches([])) == []
