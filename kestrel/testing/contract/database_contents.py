"""Contents: reads return what batches put and kept, and the next owner finds the totals of each queue."""

from __future__ import annotations

from typing import Final

import pytest
from zope.interface.verify import verifyObject

from kestrel.storage.database import IDatabase, StoredItem, StoredQueue
from kestrel.testing.contract.database_backend import DatabaseBackend, OwnedDatabase, item, items
from kestrel.testing.contract.requirements import DATA, NAMES

EVERY_BYTE: Final = bytes(range(256))

NAMES_THAT_LOOK_ALIKE: Final = [
    *(bytes([byte]) for byte in EVERY_BYTE),
    b"a\0",
    b"a\0b",
    b"a ",
    b" a",
    b"ab",
    b"abc",
    b"a%",
    b"a_",
    b"\xc3\xa9",
    b"\xc3\x89",
    b"e\xcc\x81",
    EVERY_BYTE[:255],
    EVERY_BYTE[1:],
    b"n" * 254,
    b"n" * 255,
    b"n" * 254 + b"N",
    b"\0" * 255,
    b"\xff" * 255,
]
"""Names of up to 255 bytes. Some are prefixes of others, or differ only in case or Unicode normalization."""

BIG: Final = 1 << 62
HIGHEST: Final = (1 << 63) - 1
MIB: Final = 1 << 20


class DatabaseContentsTests(DatabaseBackend):
    """Contents over restarts."""

    def test_it_provides_its_interface(self, owner: OwnedDatabase) -> None:
        assert verifyObject(IDatabase, owner.database)

    def test_a_new_database_has_no_queues(self, owner: OwnedDatabase) -> None:
        assert owner.found == {}
        assert owner.restarted().found == {}

    # Puts.

    @pytest.mark.parametrize("data", DATA.values(), ids=DATA)
    def test_read_returns_arbitrary_bytes_unchanged(self, owner: OwnedDatabase, data: bytes) -> None:
        put = [item(1, data), item(2, b"next")]
        owner.put(b"work", *put)
        assert owner.read() == put
        assert owner.restarted().read() == put

    def test_read_returns_times_and_errors_unchanged(self, owner: OwnedDatabase) -> None:
        put = [
            StoredItem(1, b"a", 0, 0, 0),
            StoredItem(2, b"b", 1, 2, 3),
            StoredItem(3, b"c", BIG, BIG + 1, (1 << 31) - 1),
            StoredItem(4, b"d", 1_700_000_000_000, 1_700_000_060_000, 1),
        ]
        owner.put(b"work", *put)
        assert owner.read() == put
        assert owner.restarted().read() == put

    def test_read_returns_values_of_the_declared_types(self, owner: OwnedDatabase) -> None:
        owner.put(b"work", item(1))
        again = owner.restarted()
        (found,) = again.read()
        assert [type(field) for field in found] == [int, bytes, int, int, int]
        assert [type(field) for field in again.found[b"work"]] == [bytes, int, int, int, int]

    def test_later_batches_append_items(self, owner: OwnedDatabase) -> None:
        owner.put(b"work", *items(1, 2))
        owner.put(b"work", *items(3, 7))
        owner.put(b"work", *items(8))
        assert owner.read() == items(1, 2, 3, 7, 8)
        assert owner.restarted().read() == items(1, 2, 3, 7, 8)

    def test_positions_use_up_to_63_bits(self, owner: OwnedDatabase) -> None:
        put = items((1 << 31) - 1, 1 << 31, 1 << 32, BIG - 1, BIG, BIG + 1, HIGHEST - 1, HIGHEST)
        owner.put(b"work", *put)
        again = owner.restarted()
        assert again.found[b"work"].last == HIGHEST
        assert again.read() == put
        assert again.read(position=BIG) == put[5:]
        assert again.read(position=HIGHEST) == []
        again.apply(again.changes(removed=[(1 << 31, BIG), (HIGHEST, HIGHEST)], errors={HIGHEST - 1: 2}))
        assert again.read() == [put[0], put[5], put[6]._replace(errors=2)]

    def test_item_of_16_mib_is_stored(self, owner: OwnedDatabase) -> None:
        put = [item(1, b"before"), item(2, EVERY_BYTE * (16 * MIB // 256)), item(3, b"behind")]
        owner.put(b"work", *put)
        assert owner.read() == put
        assert owner.restarted().read(max_bytes=1, position=1) == put[1:2]

    def test_batch_stores_ten_thousand_items(self, owner: OwnedDatabase) -> None:
        owner.put(b"work", *items(*range(1, 10_001)))
        assert owner.positions() == list(range(1, 10_001))

    def test_batch_changes_a_thousand_queues(self, owner: OwnedDatabase) -> None:
        names = [b"queue-%d" % number for number in range(1000)]
        owner.apply(*(owner.changes(name, puts=[item(1, name)]) for name in names))
        owner.apply(*(owner.changes(name, removed=[(1, 1)], puts=[item(2, name * 2)], floor=1) for name in names))
        again = owner.restarted()
        assert [again.read(name) for name in names[::100]] == [[item(2, name * 2)] for name in names[::100]]

    # Reads.

    def test_read_begins_after_the_position(self, owner: OwnedDatabase) -> None:
        owner.put(b"work", *items(2, 3, 7, 8))
        for position in range(10):
            assert owner.positions(position=position) == [each for each in (2, 3, 7, 8) if each > position]

    def test_read_returns_at_most_n_items(self, owner: OwnedDatabase) -> None:
        owner.put(b"work", *items(2, 3, 7, 8))
        assert [owner.positions(n=n) for n in (1, 2, 3, 4, 5)] == [[2], [2, 3], [2, 3, 7], [2, 3, 7, 8], [2, 3, 7, 8]]
        assert owner.positions(position=3, n=1) == [7]

    def test_read_returns_at_most_max_bytes(self, owner: OwnedDatabase) -> None:
        owner.put(b"work", item(1, b"12"), item(2, b""), item(3, b"345"), item(4, b""), item(5, b"6"))
        some, most, all_items = [1, 2], [1, 2, 3, 4], [1, 2, 3, 4, 5]
        found = [owner.positions(max_bytes=max_bytes) for max_bytes in range(8)]
        assert found == [[1], [1], some, some, some, most, all_items, all_items]

    def test_read_returns_at_least_one_item(self, owner: OwnedDatabase) -> None:
        owner.put(b"work", item(1, b"a" * 1000), item(2, b"b" * 1000))
        assert owner.positions(max_bytes=1) == [1]
        assert owner.positions(position=1, max_bytes=999) == [2]

    def test_read_respects_both_limits(self, owner: OwnedDatabase) -> None:
        owner.put(b"work", *(item(position, b"1234") for position in range(1, 10)))
        assert owner.positions(n=2, max_bytes=100) == [1, 2]
        assert owner.positions(n=100, max_bytes=8) == [1, 2]

    def test_read_of_an_empty_or_unknown_queue_returns_nothing(self, owner: OwnedDatabase) -> None:
        owner.apply(owner.changes(b"empty"))
        assert (owner.read(b"empty"), owner.read(b"not there")) == ([], [])

    def test_reads_may_be_concurrent(self, owner: OwnedDatabase) -> None:
        owner.put(b"a", *items(1, 2))
        owner.put(b"b", *items(5))
        asked = [
            owner.database.read_after(name, position, 10, 100)
            for name, position in [(b"a", 0), (b"b", 0), (b"a", 1), (b"not there", 0)]
        ]
        found = [[each.position for each in owner.wait(reading)] for reading in asked]
        assert found == [[1, 2], [5], [2], []]

    # Names.

    def test_names_are_compared_byte_by_byte(self, owner: OwnedDatabase) -> None:
        names = [*NAMES_THAT_LOOK_ALIKE, *(name for name in NAMES.values() if name not in NAMES_THAT_LOOK_ALIKE)]
        assert len(names) == len(set(names))
        owner.apply(*(owner.changes(name, puts=[item(1, name), item(2)]) for name in names))
        owner.apply(*(owner.changes(name, removed=[(2, 2)]) for name in names[::2]))
        again = owner.restarted()
        expected = {
            name: [item(1, name)] if place % 2 == 0 else [item(1, name), item(2)] for place, name in enumerate(names)
        }
        assert {name: again.read(name) for name in names} == expected

    # Removed ranges.

    @pytest.mark.parametrize(
        ("removed", "left"),
        [
            ([(2, 2)], [3, 4, 6, 7, 9]),
            ([(9, 9)], [2, 3, 4, 6, 7]),
            ([(3, 6)], [2, 7, 9]),
            ([(5, 5)], [2, 3, 4, 6, 7, 9]),
            ([(5, 6)], [2, 3, 4, 7, 9]),
            ([(4, 5)], [2, 3, 6, 7, 9]),
            ([(1, 1), (8, 8)], [2, 3, 4, 6, 7, 9]),
            ([(1, 3)], [4, 6, 7, 9]),
            ([(7, 100)], [2, 3, 4, 6]),
            ([(0, 2), (4, 6), (9, HIGHEST)], [3, 7]),
            ([(2, 3), (4, 4), (5, 6), (7, 7)], [9]),
            ([(0, HIGHEST)], []),
        ],
    )
    def test_removed_range_includes_both_ends(
        self, owner: OwnedDatabase, removed: list[tuple[int, int]], left: list[int]
    ) -> None:
        owner.put(b"work", *items(2, 3, 4, 6, 7, 9))
        owner.put(b"other", *items(2, 3, 4, 6, 7, 9))
        owner.apply(owner.changes(removed=removed))
        assert owner.positions() == left
        again = owner.restarted()
        assert (again.positions(), again.positions(b"other")) == (left, [2, 3, 4, 6, 7, 9])

    def test_batch_removes_a_thousand_ranges(self, owner: OwnedDatabase) -> None:
        owner.put(b"work", *items(*range(1, 3001)))
        owner.apply(owner.changes(removed=[(first, first + 1) for first in range(1, 3001, 3)]))
        assert owner.positions() == list(range(3, 3001, 3))

    # Errors.

    def test_last_batch_sets_the_error_count(self, owner: OwnedDatabase) -> None:
        owner.put(b"work", *items(1, 2, 3), item(4, errors=7))
        owner.put(b"other", *items(1, 2))
        owner.apply(owner.changes(errors={1: 1, 3: 1}))
        owner.apply(owner.changes(errors={3: 2, 4: 8}))
        again = owner.restarted()
        assert [each.errors for each in again.read()] == [1, 0, 2, 8]
        assert [each._replace(errors=0) for each in again.read()] == items(1, 2, 3, 4)
        assert [each.errors for each in again.read(b"other")] == [0, 0]

    def test_batch_sets_a_thousand_error_counts(self, owner: OwnedDatabase) -> None:
        owner.put(b"work", *items(*range(1, 1501)))
        owner.apply(owner.changes(errors={position: position for position in range(1, 1001)}))
        assert [each.errors for each in owner.read()] == [*range(1, 1001), *[0] * 500]

    # Whole queues.

    def test_new_queue_replaces_the_stored_one(self, owner: OwnedDatabase) -> None:
        owner.put(b"work", *items(1, 2, 3))
        owner.put(b"other", *items(1))
        owner.apply(owner.changes(is_new=True, puts=[item(2, b"new")]))
        assert owner.read() == [item(2, b"new")]
        again = owner.restarted()
        assert (again.read(), again.read(b"other")) == ([item(2, b"new")], items(1))

    def test_new_queue_may_have_no_items(self, owner: OwnedDatabase) -> None:
        owner.put(b"work", *items(1, 2, 3))
        owner.apply(owner.changes(is_new=True))
        assert owner.read() == []
        assert owner.restarted().found == {b"work": StoredQueue(b"work", 0, 0, 0, 0)}

    def test_deletion_removes_the_queue_and_its_items(self, owner: OwnedDatabase) -> None:
        owner.put(b"work", *items(1, 2, 3))
        owner.put(b"other", *items(1))
        owner.apply(owner.deletion())
        assert owner.read() == []
        again = owner.restarted()
        assert set(again.found) == {b"other"}
        assert (again.read(), again.read(b"other")) == ([], items(1))

    def test_deleted_queue_can_be_created_again(self, owner: OwnedDatabase) -> None:
        owner.put(b"work", *items(1, 2, 3))
        owner.apply(owner.deletion())
        owner.apply(owner.changes(puts=[item(2, b"new")]))
        assert owner.restarted().read() == [item(2, b"new")]

    def test_deletion_of_an_unknown_queue_changes_nothing(self, owner: OwnedDatabase) -> None:
        owner.put(b"work", *items(1))
        owner.apply(owner.deletion(b"not there"), owner.changes(puts=items(2)))
        assert owner.restarted().read() == items(1, 2)

    def test_list_queues_returns_the_last_totals(self, owner: OwnedDatabase) -> None:
        owner.put(b"work", *items(1, 2, 3, 4))
        owner.apply(owner.changes(b"empty"), owner.changes(removed=[(1, 2)], puts=items(9), floor=2))
        owner.put(b"big", item(HIGHEST, b"12345"))
        owner.apply(owner.changes(b"big", removed=[(HIGHEST, HIGHEST)], floor=HIGHEST))
        again = owner.restarted()
        assert again.found == {
            b"work": StoredQueue(b"work", 3, 3, 2, 9),
            b"empty": StoredQueue(b"empty", 0, 0, 0, 0),
            b"big": StoredQueue(b"big", 0, 0, HIGHEST, HIGHEST),
        }
        assert again.restarted().found == again.found
