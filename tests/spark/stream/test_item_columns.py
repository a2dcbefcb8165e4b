"""The columns of items, and the items of rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from kestrel.keyed import join
from kestrel.spark.options import SourceFailed
from kestrel.spark.stream.item_columns import LONGEST_MS, ItemColumns
from tests.spark.stream.ddl import columns_of


def columns(schema: str, *, has_keys: bool = False) -> ItemColumns:
    return ItemColumns(columns_of(schema), has_keys=has_keys)


def items(made: ItemColumns, **values: Any) -> dict[int, list[bytes]]:
    batch = pa.RecordBatch.from_arrays([pa.array(each) for each in values.values()], names=list(values))
    return {expiry_ms: list(found) for expiry_ms, found in made.items_of(batch)}


def test_data_are_the_items_in_the_order_of_the_rows() -> None:
    assert items(columns("data BINARY"), data=[b"b", b"", b"a"]) == {0: [b"b", b"", b"a"]}


def test_text_is_an_item_in_utf_8() -> None:
    assert items(columns("data STRING"), data=["Größe"]) == {0: ["Größe".encode()]}
    assert items(columns("data STRING"), data=pa.array(["a"], pa.large_string())) == {0: [b"a"]}


def test_columns_are_found_in_any_order_and_arrow_type() -> None:
    made = columns("key STRING, expires_in_ms INT, data STRING", has_keys=True)
    assert items(made, _0=["k"], _1=pa.array([5], pa.int32()), _2=["a"]) == {5: [join(b"k", b"a")]}


def test_items_are_grouped_by_expiry_and_null_is_never() -> None:
    made = columns("data STRING, expires_in_ms BIGINT")
    found = items(made, data=list("abcdefg"), expires_in_ms=[10, None, 20, 0, 10, LONGEST_MS, 20])
    assert found == {10: [b"a", b"e"], 0: [b"b", b"d"], 20: [b"c", b"g"], LONGEST_MS: [b"f"]}


def test_item_that_has_expired_is_put_as_expired() -> None:
    made = columns("data STRING, expires_in_ms BIGINT")
    assert items(made, data=list("abc"), expires_in_ms=[-5, -(1 << 40), -1]) == {-1: [b"a", b"b", b"c"]}


def test_time_that_the_protocol_cannot_express_is_reported() -> None:
    made = columns("data STRING, expires_in_ms BIGINT")
    with pytest.raises(SourceFailed, match=r"expires_in_ms must be at most 2147483647, or 24 days, not 2147483648"):
        items(made, data=["a", "b"], expires_in_ms=[0, LONGEST_MS + 1])


def test_no_rows_make_no_items() -> None:
    for schema in ("data BINARY", "data BINARY, expires_in_ms BIGINT"):
        names = columns_of(schema).names
        arrays = [pa.array([], pa.binary()), pa.array([], pa.int64())][: len(names)]
        batch = pa.RecordBatch.from_arrays(arrays, names=names)
        assert [list(found) for _, found in columns(schema).items_of(batch)] in ([], [[]])


@pytest.mark.parametrize("name", ["data", "key"])
def test_null_is_reported_before_any_item_of_its_batch(name: str) -> None:
    values: dict[str, list[str | None]] = {"data": ["a", "b"], "key": ["k", "l"]}
    values[name][1] = None
    with pytest.raises(SourceFailed, match=rf"^the column {name} is null in a row: filter by {name} IS NOT NULL$"):
        items(columns("data STRING, key STRING", has_keys=True), **values)


@pytest.mark.parametrize("key", ["", "k" * 65536])
def test_empty_or_too_long_key_is_reported(key: str) -> None:
    with pytest.raises(SourceFailed, match=f"^the column key: a key has from 1 to 65535 bytes, not {len(key)}$"):
        items(columns("data STRING, key STRING", has_keys=True), data=["a"], key=[key])


@pytest.mark.parametrize(
    ("schema", "has_keys", "sentence"),
    [
        ("value STRING", False, "a queue has no column value: select only data and expires_in_ms"),
        ("data BINARY, add_ms BIGINT", True, "a queue has no column add_ms: select only data, expires_in_ms"),
        ("Data BINARY", False, "a queue has no column Data: select only data and"),
        ("expires_in_ms BIGINT", False, r'the required column data is missing: select something.alias\("da'),
        ("data BINARY", True, "the required column key is missing: select"),
        ("data BINARY, key BINARY", False, r'the column key requires option\("keys", "true"\): set it, or'),
        ("data INT", False, "the column data has the type int, not binary or string: cast it, or make a text"),
        ("data STRUCT", False, r"the column data has the type struct<a:int>, not .* by to_json\(struct\("),
        ("data STRING, key INT", True, "the column key has the type int, not binary or string: cast it"),
        ("data STRING, expires_in_ms STRING", False, "the column expires_in_ms has the type string, not bigint"),
        ("data STRING, expires_in_ms DOUBLE", False, "the column expires_in_ms has the type double, not bigint"),
        ("data STRING, data BINARY", False, "there are two columns data: select one of them"),
    ],
)
def test_unsuitable_columns_are_reported_with_the_way_out(schema: str, has_keys: bool, sentence: str) -> None:
    with pytest.raises(SourceFailed, match=f"^{sentence}"):
        columns(schema, has_keys=has_keys)
