"""The tables of reports, held against the same figures counted in plain Python, item by item."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import DataFrame, SparkSession

from kestrel.spark import reports
from kestrel.spark.columns import HISTORIES
from kestrel.spark.options import SourceFailed
from kestrel.spark.report.report_data import suitable_interval_ms
from kestrel.spark.reports import all_rankings
from tests.spark.reports import model as model
from tests.spark.reports.rows import COLUMNS, START_MS, as_columns, item, random_items

NOW_MS: Final = START_MS + 350_000
INTERVAL_MS: Final = 7_000

ITEMS: Final = [
    *random_items(600, seed=1),
    item("alpha", "of a scroll alone", state="done", opens=None, aborts=None, errors=2, expired="no"),
    item("gamma", "$x$", state="open", opens=3, aborts=2, position=0, data_bytes=0, taken_after_ms=START_MS),
]
PLACEHOLDER: Final = item("alpha", "work", add_ms=0, data_bytes=0, state="confirmed", opens=1)
"""What a pack has in the place of an item that is done with."""

GROUPS: Final = model.grouped(ITEMS)


@pytest.fixture(scope="module")
def histories(spark: SparkSession) -> Iterator[DataFrame]:
    table = spark.createDataFrame(map(as_columns, [*ITEMS, PLACEHOLDER]), COLUMNS).coalesce(2).persist()
    yield table
    table.unpersist()


def by_key(table: DataFrame, *more: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    rows = {tuple(row[name] for name in ("scope", "server", "queue", *more)): row.asDict() for row in table.collect()}
    assert rows
    return rows


def figures_of(row: dict[str, Any], *names: str) -> list[Any]:
    return [row[name] for name in names]


def test_throughput_counts_adds_when_they_were_and_removals_at_their_latest(histories: DataFrame) -> None:
    rows = by_key(reports.throughput(histories, INTERVAL_MS), "start_ms")
    names = ("items_added", "bytes_added", "items_removed", "bytes_removed")
    expected = {
        (*key, start): figures
        for key, items in GROUPS.items()
        for start, figures in model.throughput(items, INTERVAL_MS).items()
    }
    assert {key: figures_of(row, *names) for key, row in rows.items()} == expected
    assert any(key[3] is None for key in rows)


def test_the_depth_is_between_all_removals_at_their_earliest_and_all_at_their_latest(histories: DataFrame) -> None:
    rows = by_key(reports.depth(histories, INTERVAL_MS), "start_ms")
    names = ("items_least", "items_most", "bytes_least", "bytes_most")
    expected = {
        (*key, start): figures
        for key, items in GROUPS.items()
        for start, figures in model.depth(items, model.changes_at(items, INTERVAL_MS), INTERVAL_MS).items()
    }
    assert {key: figures_of(row, *names) for key, row in rows.items()} == expected
    assert all(0 <= row["items_least"] <= row["items_most"] for row in rows.values())
    assert any(row["items_least"] < row["items_most"] for row in rows.values())


def test_waiting_times_have_a_least_and_a_most(histories: DataFrame) -> None:
    rows = by_key(reports.waiting(histories, NOW_MS))
    expected: dict[Any, list[int | None]] = {}
    for key, items in GROUPS.items():
        least, most, unknown = model.waits(items, NOW_MS)
        ranks = [(rank, bounds) for rank in (0.5, 0.95, 0.99, 1.0) for bounds in (least, most)]
        expected[key] = [len(least), unknown, *(model.percentile(bounds, rank) for rank, bounds in ranks)]
    names = [f"{name}_{bound}_ms" for name in ("p50", "p95", "p99", "max") for bound in ("least", "most")]
    assert {key: figures_of(row, "items", "items_unknown", *names) for key, row in rows.items()} == expected
    assert rows["queue", "alpha", "of a scroll alone"]["items_unknown"] == 1


def test_redeliveries_are_counted_item_by_item(histories: DataFrame) -> None:
    rows = by_key(reports.redeliveries(histories))
    for key, items in GROUPS.items():
        counts = [row["errors"] if row["aborts"] is None else row["aborts"] for row in items if model.is_taken(row)]
        again = sum(each > 0 for each in counts)
        assert figures_of(rows[key], "items", "redelivered", "returns", "most_returns") == [
            *(len(counts), again, sum(counts), max(counts))
        ]
        assert rows[key]["share"] == pytest.approx(again / len(counts))
        assert figures_of(rows[key], "never", "once", "twice", "three_to_five", "six_or_more") == [
            *(sum(each in kind for each in counts) for kind in ({0}, {1}, {2}, {3, 4, 5}, range(6, 99)))
        ]
    assert len(rows) == len(GROUPS)


def test_what_may_have_expired_or_been_discarded_is_told_from_what_has(histories: DataFrame) -> None:
    rows = by_key(reports.expired_and_discarded(histories, NOW_MS))
    for key, items in GROUPS.items():
        gone = [each for each in items if model.is_gone(each)]
        left = [each for each in items if not model.is_gone(each)]
        assert {name: value for name, value in rows[key].items() if name not in ("scope", "server", "queue")} == {
            "items_removed": len(gone),
            "expired_yes": sum(each["expired"] == "yes" for each in gone),
            "expired_maybe": sum(each["expired"] == "maybe" for each in gone),
            "bytes_expired_yes": sum(each["data_bytes"] for each in gone if each["expired"] == "yes"),
            "discarded_maybe": sum(each["discarded"] == "maybe" for each in gone),
            "discarded_unknown": sum(each["discarded"] is None and each["state"] == "removed" for each in gone),
            "items_left": len(left),
            "expired_left": sum(each["expiry_ms"] is not None and each["expiry_ms"] < NOW_MS for each in left),
        }
    assert len(rows) == len(GROUPS)


def head_of(items: Iterable[model.Row]) -> int | None:
    """When the head of one queue was added."""
    left = [each for each in items if not model.is_gone(each)]
    return model.known(min(left, key=lambda each: each["position"])["add_ms"]) if left else None


def test_the_summary_of_a_server_is_that_of_its_queues_together(histories: DataFrame) -> None:
    table = reports.summary(histories, NOW_MS).persist()
    rows = by_key(table)
    assert rows.keys() == GROUPS.keys()
    for key, items in GROUPS.items():
        gone = [each for each in items if model.is_gone(each)]
        left = [each for each in items if not model.is_gone(each)]
        queues = {each_key: each for each_key, each in model.grouped(items).items() if each_key[0] == "queue"}
        adds = [add for each in items if (add := model.known(each["add_ms"])) is not None]
        heads = [head for each in queues.values() if (head := head_of(each)) is not None]
        head = min(heads, default=None)
        row = rows[key]
        assert figures_of(row, "queues", "items_added", "items_removed", "items_left", "items_open", "changes") == [
            *(len(queues), len(items), len(gone), len(left)),
            *(sum(each["state"] == "open" for each in items), len(items) + len(gone)),
        ]
        assert figures_of(row, "bytes_added", "bytes_removed", "bytes_left") == [
            sum(each["data_bytes"] for each in some) for some in (items, gone, left)
        ]
        assert row["returns"] == sum(e["errors"] if e["aborts"] is None else e["aborts"] for e in items)
        assert figures_of(row, "first_add_ms", "last_add_ms", "head_add_ms") == [min(adds), max(adds), head]
        assert row["head_age_ms"] == (None if head is None else max(0, NOW_MS - head))

    queue_rows = [row for key, row in rows.items() if key[0] == "queue"]
    at_once = all_rankings(table, 2).collect()
    for name, rank, order, wanted in (
        ("busiest", reports.busiest, lambda row: -row["changes"], lambda row: True),
        ("biggest", reports.biggest, lambda row: -row["bytes_left"], lambda row: row["items_left"]),
        ("oldest", reports.oldest, lambda row: row["head_add_ms"], lambda row: row["head_add_ms"] is not None),
    ):
        ranked = sorted(filter(wanted, queue_rows), key=lambda row: (order(row), row["server"], row["queue"]))
        names = [(row["server"], row["queue"]) for row in ranked]
        first_ones = {(*names[place], place + 1) for place in range(2)}
        first_of_servers = {
            (server, queue, place + 1)
            for server in {server for server, _ in names}
            for place, queue in enumerate([queue for other, queue in names if other == server][:2])
        }
        for scope, expected in ((reports.Scope.FLEET, first_ones), (reports.Scope.SERVER, first_of_servers)):
            alone = rank(table, 2, scope).collect()
            assert {(row["server"], row["queue"], row["rank"]) for row in alone} == expected
            together = [(row["server"], row["queue"], row[f"{name}_of_{scope.value}"]) for row in at_once]
            assert {each for each in together if each[2] is not None} == expected
    table.unpersist()


def test_docs_spark_has_the_columns_of_each_table(histories: DataFrame) -> None:
    tables = {
        "queues": reports.summary(histories, NOW_MS),
        "throughput": reports.throughput(histories, INTERVAL_MS),
        "depth": reports.depth(histories, INTERVAL_MS),
        "waiting": reports.waiting(histories, NOW_MS),
        "redeliveries": reports.redeliveries(histories),
        "expired": reports.expired_and_discarded(histories, NOW_MS),
    }
    text = (Path(__file__).parents[3] / "docs" / "spark.md").read_text()
    for name, table in tables.items():
        (cell,) = re.findall(rf"^\| `[a-z_]+\(items.*?\)` \| `{name}` \| (.*?) \|", text, re.MULTILINE)
        told = re.findall("`([a-z0-9_]+)`", cell)
        if name == "waiting":  # of each percentile two
            told = [*told[:2], *(f"{each}{bound}" for each in told[4:] for bound in told[2:4])]
        assert ["scope", "server", "queue", *told] == table.columns


def test_no_items_make_no_rows(spark: SparkSession) -> None:
    nothing = spark.createDataFrame([], HISTORIES)
    assert reports.summary(nothing, NOW_MS).collect() == []
    assert reports.depth(nothing).collect() == []


def test_the_default_interval_is_a_round_one_of_which_there_are_not_many() -> None:
    for length_ms in (0, 1, 199, 200, 10_000, 3_600_000, 86_400_000, 10 * 365 * 86_400_000, 2**44 - 2):
        interval_ms = suitable_interval_ms(1, 1 + length_ms)
        assert (1 + length_ms) // interval_ms - 1 // interval_ms < 200
    assert suitable_interval_ms(START_MS, START_MS + 3_600_000) == 30_000
    assert suitable_interval_ms(START_MS, START_MS + 86_400_000) == 600_000


def test_an_interval_of_nothing_is_refused(histories: DataFrame) -> None:
    with pytest.raises(SourceFailed, match="an interval must be from 1 ms"):
        reports.throughput(histories, 0)
    with pytest.raises(SourceFailed, match="to 100 years"):
        reports.depth(histories, 2**62)
