"""Reports of a run."""

from __future__ import annotations

from kestrel.load.report import RunStats, format_table, format_verdict, report_json


def measured() -> RunStats:
    run_stats = RunStats()
    request_stats = run_stats.request_stats("put")
    for number in range(4):
        request_stats.add(500_000, number * 0.5, number * 0.5 + 0.5)
    run_stats.request_stats("take")
    run_stats.counts |= {"stored": 4, "seen": 4, "missing": 0, "doubled": 0}
    return run_stats


def test_table_is_aligned_without_unused_rows() -> None:
    assert format_table(measured()) == [
        "     items  seconds  items/s  MB/s  p50 ms  p90 ms  p99 ms  max ms",
        "put      4     2.00        2  1.00  500.00  500.00  500.00  500.00",
    ]


def test_table_has_the_journal_size_if_known() -> None:
    run_stats = measured()
    run_stats.request_stats_list[0].journal_bytes = 2_500_000
    assert [line[-10:] for line in format_table(run_stats)] == ["journal MB", "      2.50"]


def test_verdict_lists_all_problems() -> None:
    run_stats = measured()
    assert format_verdict(run_stats) == "all is well: 4 items stored, and each came once"
    assert run_stats.wrong == 0
    run_stats.counts |= {"missing": 1, "doubled": 2000}
    assert format_verdict(run_stats) == "not all is well: 1 missing, 2,000 doubled of 4 items that the server stored"
    assert run_stats.wrong == 2001


def test_items_left_by_an_interrupted_run_are_not_missing() -> None:
    run_stats = measured()
    run_stats.is_interrupted = True
    run_stats.counts["missing"] = 3
    assert format_verdict(run_stats) == "interrupted: these are the figures so far"
    assert run_stats.wrong == 0


def test_json_report_has_the_figures_of_the_table() -> None:
    told = report_json("flood", measured(), protocol="text")
    assert (told["tool"], told["protocol"], told["seen"], told["interrupted"]) == ("flood", "text", 4, False)
    put, take = told["lanes"]
    assert (put["items"], put["seconds"], put["items_per_s"], put["mb_per_s"]) == (4, 2.0, 2.0, 1.0)
    assert put["p99_ms"] == 500.0
    assert (take["items"], take["items_per_s"], take["max_ms"]) == (0, 0.0, 0.0)
