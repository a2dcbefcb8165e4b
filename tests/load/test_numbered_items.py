"""Numbered items and their ledger."""

from __future__ import annotations

from kestrel.load.numbered_items import LEAST_BYTES, Ledger, NumberedItems, UnknownItem

MINE = NumberedItems("00000001", 24, 3000, seed=1)


def test_item_is_text_of_a_size_in_the_range() -> None:
    items = [MINE.item(number) for number in range(2000)]
    assert {24 <= len(data) <= 3000 for data in items} == {True}
    assert min(map(len, items)) < 100 < 2900 < max(map(len, items))
    assert not any(set(data) & set(b"\r\n \0") for data in items)


def test_item_is_recognised_by_its_number() -> None:
    assert [MINE.number_of(MINE.item(number)) for number in (0, 7, 99_999_999)] == [0, 7, 99_999_999]
    short = NumberedItems("00000001", LEAST_BYTES, LEAST_BYTES, seed=1)
    assert short.number_of(short.item(5)) == 5
    assert len(short.item(5)) == LEAST_BYTES


def test_foreign_items_differ_from_damaged_ones() -> None:
    data = MINE.item(3)
    assert MINE.number_of(NumberedItems("00000002", 24, 3000, seed=1).item(3)) is UnknownItem.FOREIGN
    assert MINE.number_of(b"hello") is UnknownItem.FOREIGN
    assert MINE.number_of(b"") is UnknownItem.FOREIGN
    assert MINE.number_of(data[:-1]) is UnknownItem.SPOILED
    assert MINE.number_of(data + b"x") is UnknownItem.SPOILED
    assert MINE.number_of(data.replace(b".000000003.", b".x00000003.")) is UnknownItem.SPOILED


def test_ledger_counts_missing_and_doubled_items() -> None:
    ledger = Ledger(MINE, 4)
    assert [ledger.next_number(2), ledger.next_number(2), ledger.next_number(2)] == [0, 1, None]
    assert [ledger.next_number(), ledger.next_number(), ledger.next_number()] == [2, 3, None]
    ledger.came(MINE.item(0))  # before the reply to the put
    for number in range(4):
        ledger.add_put(number, is_stored=number != 3)
    for data in (MINE.item(1), MINE.item(1), b"hello", MINE.item(4), MINE.item(2)[:-1]):
        ledger.came(data)
    assert (ledger.stored, ledger.refused, ledger.expected) == (3, 1, 3)
    assert (ledger.seen, ledger.doubled, ledger.foreign, ledger.spoiled, ledger.missing) == (2, 1, 1, 2, 1)
