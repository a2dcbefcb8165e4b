"""The views of a report, compared with figures that plain Python counts item by item."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from shutil import rmtree
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from kestrel.spark import views
from kestrel.spark.columns import HISTORIES, PROBLEMS, drop_column
from kestrel.spark.options import SourceFailed
from kestrel.spark.report.report_folder import TABLES
from kestrel.spark.report.report_writer import in_ms
from kestrel.spark.report.views import DERIVED, derive_views, drop_views, set_views
from tests.journal.handwritten import REMOVE, addx
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
"""The content of a removed item in a pack file."""

GROUPS: Final = model.grouped(ITEMS)


def register(spark: SparkSession, items: list[dict[str, Any]], interval_ms: int | None = None) -> None:
    table = spark.createDataFrame([as_columns(each) for each in items], COLUMNS).coalesce(2)
    derive_views(table, NOW_MS, interval_ms)


@pytest.fixture(scope="module")
def registered(spark: SparkSession) -> Iterator[SparkSession]:
    """Return a session with views of `ITEMS`."""
    session = spark.newSession()
    register(session, [*ITEMS, PLACEHOLDER], INTERVAL_MS)
    yield session
    drop_views(session)


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """Return a session for the views of a test."""
    session = spark.newSession()
    yield session
    drop_views(session)


def by_key(spark: SparkSession, view: str, *more: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    collected = in_ms(spark.table(view)).collect()
    rows = {tuple(row[name] for name in ("scope", "server", "queue", *more)): row.asDict() for row in collected}
    assert rows and len(rows) == len(collected)
    return rows


def figures_of(row: dict[str, Any], *names: str) -> list[Any]:
    return [row[name] for name in names]


def test_throughput_counts_removals_at_latest_time(registered: SparkSession) -> None:
    rows = by_key(registered, "throughput", "start_ms")
    names = ("items_added", "bytes_added", "items_removed", "bytes_removed")
    expected = {
        (*key, start): figures
        for key, items in GROUPS.items()
        for start, figures in model.throughput(items, INTERVAL_MS).items()
    }
    assert {key: figures_of(row, *names) for key, row in rows.items()} == expected
    assert any(key[3] is None for key in rows)


def test_depth_is_between_earliest_and_latest_removals(registered: SparkSession) -> None:
    rows = by_key(registered, "depth", "start_ms")
    names = ("items_least", "items_most", "bytes_least", "bytes_most")
    expected = {
        (*key, start): figures
        for key, items in GROUPS.items()
        for start, figures in model.depth(items, model.changes_at(items, INTERVAL_MS), INTERVAL_MS).items()
    }
    assert {key: figures_of(row, *names) for key, row in rows.items()} == expected
    assert all(0 <= row["items_least"] <= row["items_most"] for row in rows.values())
    assert any(row["items_least"] < row["items_most"] for row in rows.values())


def test_waiting_times_have_a_minimum_and_a_maximum(registered: SparkSession) -> None:
    rows = by_key(registered, "waiting")
    expected: dict[Any, list[int | None]] = {}
    for key, items in GROUPS.items():
        least, most, unknown = model.waits(items, NOW_MS)
        ranks = [(rank, bounds) for rank in (0.5, 0.95, 0.99, 1.0) for bounds in (least, most)]
        expected[key] = [len(least), unknown, *(model.percentile(bounds, rank) for rank, bounds in ranks)]
    names = [f"{name}_{bound}_ms" for name in ("p50", "p95", "p99", "max") for bound in ("least", "most")]
    assert {key: figures_of(row, "items", "items_unknown", *names) for key, row in rows.items()} == expected
    assert rows["queue", "alpha", "of a scroll alone"]["items_unknown"] == 1


def test_redeliveries_are_counted_item_by_item(registered: SparkSession) -> None:
    rows = by_key(registered, "redeliveries")
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


def test_certain_expiry_differs_from_possible_expiry_and_discards(registered: SparkSession) -> None:
    rows = by_key(registered, "expired")
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
    """Return the add time of the head of one queue."""
    left = [each for each in items if not model.is_gone(each)]
    return model.known(min(left, key=lambda each: each["position"])["add_ms"]) if left else None


def test_figures_of_a_server_are_those_of_its_queues_together(registered: SparkSession) -> None:
    rows = by_key(registered, "queues")
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


def test_rankings_list_20_queues_per_fleet_and_server(session: SparkSession) -> None:
    items = random_items(500, seed=2)
    for place, each in enumerate(items):
        each["queue"] = f"q{place % 25}"
    register(session, items)
    queues = [row for row in by_key(session, "queues").values() if row["scope"] == "queue"]
    orders = {
        "busiest": (lambda row: (-row["changes"],), lambda row: True),
        "biggest": (lambda row: (-row["bytes_left"], -row["items_left"]), lambda row: row["items_left"]),
        "oldest": (lambda row: (row["head_add_ms"],), lambda row: row["head_add_ms"] is not None),
    }
    expected = set()
    for ranking, (order, is_ranked) in orders.items():
        ranked = sorted(filter(is_ranked, queues), key=lambda row: (*order(row), row["server"], row["queue"]))
        for among, server in (("fleet", None), *(("server", each["server"]) for each in queues)):
            some = [row for row in ranked if server in (None, row["server"])]
            expected |= {(ranking, among, row["server"], row["queue"], n) for n, row in enumerate(some[:20], 1)}
    names = ("ranking", "among", "server", "queue", "rank")
    assert {tuple(row[name] for name in names) for row in session.table("rankings").collect()} == expected


def test_docs_spark_has_the_columns_of_each_view(registered: SparkSession) -> None:
    text = (Path(__file__).parents[3] / "docs" / "spark.md").read_text()
    section = text.partition("### The views")[2].partition("\n## ")[0]
    told = {
        name: re.findall("`([a-z0-9_]+)`", cell)
        for name, cell in re.findall(r"^\| `([a-z]+)` \| (`.*?) \|", section, re.MULTILINE)
    }
    told["rankings"][5:] = told["queues"]
    bounds = ("least", "most")
    told["waiting"][2:] = [f"{rank}_{bound}_ms" for rank in ("p50", "p95", "p99", "max") for bound in bounds]
    for name, columns in told.items():
        scoped = ["scope", "server", "queue"] if name in DERIVED[2:] and name != "rankings" else []
        assert registered.table(name).columns == [*scoped, *columns]
    assert [*told] == ["settings", *DERIVED]


def test_no_items_make_no_rows(session: SparkSession) -> None:
    register(session, [])
    for name in ("queues", "depth", "throughput", "waiting", "rankings"):
        assert session.table(name).collect() == []
    assert session.table("intervals").collect()[0].interval_ms == 60_000


def test_default_interval_is_round_and_gives_few_intervals(session: SparkSession) -> None:
    register(session, [])
    expected = {
        0: 1,
        199: 1,
        200: 10,
        10_000: 100,
        3_600_000: 30_000,
        86_400_000: 600_000,
        200 * 365 * 86_400_000: 2 * 365 * 86_400_000,
    }
    found = {}
    for length_ms in expected:
        items = [as_columns(each) for each in (item(), item(add_ms=START_MS + length_ms))]
        session.createDataFrame(items, COLUMNS).createOrReplaceTempView("histories")  # which all other views follow
        found[length_ms] = session.table("intervals").collect()[0].interval_ms
    assert found == expected


def test_views_read_each_journal_once_and_follow_the_settings(session: SparkSession, tmp_path: Path) -> None:
    spool = tmp_path / "data" / "web1" / "spool"
    spool.mkdir(parents=True)
    (spool / "work").write_bytes(addx(b"a", START_MS) + addx(b"bc", START_MS + 60_000) + REMOVE + b"\x02\x01")
    (spool / "more").write_bytes(addx(b"abc", START_MS))
    views(session, f"{tmp_path}/data/*/spool", queue="work", max_items=2, now_ms=NOW_MS)
    assert session.table("histories").schema == drop_column(session.table("histories").schema, "data")
    assert session.table("histories").columns == drop_column(HISTORIES, "data").names
    assert session.table("problems").columns == PROBLEMS.names
    assert session.table("histories").count() == 2
    rmtree(tmp_path / "data")
    assert session.sql("SELECT server, queue, kind FROM problems").collect() == [("web1", "work", "unfinished")]
    assert session.sql("SELECT items_left, bytes_left FROM queues WHERE scope = 'fleet'").collect() == [(1, 2)]
    assert session.sql("SELECT discarded_maybe FROM expired WHERE scope = 'fleet'").collect() == [(0,)]
    starts = "SELECT count(*) FROM throughput WHERE scope = 'fleet' AND start_time IS NOT NULL"
    assert session.sql(starts).collect() == [(2,)]
    set_views(session, NOW_MS, 86_400_000)
    assert session.sql(starts).collect() == [(1,)]
    drop_views(session)
    assert session.catalog.listTables() == []


def test_every_table_of_a_report_is_a_view(registered: SparkSession) -> None:
    assert set(TABLES) - {"histories", "problems"} == set(DERIVED) - {"items", "intervals"}


@pytest.mark.parametrize(("interval_ms", "sentence"), [(0, "must be from 1 ms"), (2**62, "to 100 years")])
def test_an_invalid_interval_is_refused(spark: SparkSession, interval_ms: int, sentence: str) -> None:
    with pytest.raises(SourceFailed, match=sentence):
        set_views(spark, NOW_MS, interval_ms)
