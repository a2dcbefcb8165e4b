"""What is said of a run."""

from __future__ import annotations

from kestrel.load.figures import Figures
from kestrel.load.report import as_object, table, verdict


def measured() -> Figures:
    figures = Figures()
    lane = figures.lane("put")
    for number in range(4):
        lane.add(500_000, number * 0.5, number * 0.5 + 0.5)
    figures.lane("take")
    figures.counts |= {"stored": 4, "seen": 4, "missing": 0, "doubled": 0}
    return figures


def test_the_table_is_aligned_and_leaves_out_what_was_not_done() -> None:
    assert table(measured()) == [
        "     items  seconds  items/s  MB/s  p50 ms  p90 ms  p99 ms  max ms",
        "put      4     2.00        2  1.00  500.00  500.00  500.00  500.00",
    ]


def test_the_journal_is_a_column_where_it_was_looked_at() -> None:
    figures = measured()
    figures.lanes[0].journal_bytes = 2_500_000
    assert [line[-10:] for line in table(figures)] == ["journal MB", "      2.50"]


def test_all_that_is_wrong_is_in_the_sentence() -> None:
    figures = measured()
    assert verdict(figures) == "all is well: 4 items stored, and each came once"
    assert figures.wrong == 0
    figures.counts |= {"missing": 1, "doubled": 2000}
    assert verdict(figures) == "not all is well: 1 missing, 2,000 doubled of 4 items that the server stored"
    assert figures.wrong == 2001


def test_what_an_interrupted_run_has_not_taken_is_not_missing() -> None:
    figures = measured()
    figures.is_interrupted = True
    figures.counts["missing"] = 3
    assert verdict(figures) == "interrupted: these are the figures so far"
    assert figures.wrong == 0


def test_the_object_has_the_same_figures() -> None:
    told = as_object("flood", measured(), protocol="text")
    assert (told["tool"], told["protocol"], told["seen"], told["interrupted"]) == ("flood", "text", 4, False)
    put, take = told["lanes"]
    assert (put["items"], put["seconds"], put["items_per_s"], put["mb_per_s"]) == (4, 2.0, 2.0, 1.0)
    assert put["p99_ms"] == 500.0
    assert (take["items"], take["items_per_s"], take["max_ms"]) == (0, 0.0, 0.0)
