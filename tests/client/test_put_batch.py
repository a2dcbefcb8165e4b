"""The batches of a put of many items. test_blocking.py tests their results."""

from __future__ import annotations

from kestrel.client.put_batch import BATCH_BYTES, BATCH_ITEMS, batches


def test_batch_has_a_maximum_number_of_items() -> None:
    items = [b"%d" % number for number in range(2 * BATCH_ITEMS + 1)]
    made = list(batches(iter(items)))
    assert [len(batch) for batch in made] == [BATCH_ITEMS, BATCH_ITEMS, 1]
    assert [item for batch in made for item in batch] == items


def test_batch_has_a_maximum_size_unless_it_has_one_item() -> None:
    half, large = b"x" * (BATCH_BYTES // 2), b"x" * (BATCH_BYTES + 1)
    assert list(batches([half, half, b"y", large, b"z"])) == [[half, half], [b"y"], [large], [b"z"]]
