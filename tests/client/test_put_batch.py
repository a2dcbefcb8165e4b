"""Many items at once: how many that is, and what has become of them."""

from __future__ import annotations

import pytest

from kestrel.client.errors import BadReply, CannotConnect, ConnectionFailed, ServerError
from kestrel.client.put_batch import BATCH_BYTES, BATCH_ITEMS, PutBatch, batches


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


def test_items_behind_a_refusal_that_were_not_begun_with_are_left_with_it() -> None:
    batch = PutBatch([b"a", b"b", b"c"])
    with pytest.raises(ServerError, match="disk full"):
        batch.answered([1, 1, 1], [1, ServerError("disk full"), CannotConnect("it hung up before")])
    assert (batch.stored, list(batch.left)) == (1, [b"b", b"c"])


@pytest.mark.parametrize("failure", [ConnectionFailed("nothing came"), BadReply("what?")])
def test_of_items_behind_a_refusal_nobody_knows_where_the_connection_broke(failure: ConnectionFailed) -> None:
    batch = PutBatch([b"a", b"b"])
    with pytest.raises(type(failure)):
        batch.answered([1, 1], [ServerError("disk full"), failure])
