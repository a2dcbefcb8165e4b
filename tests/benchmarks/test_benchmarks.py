"""The benchmarks run, each with next to nothing to do; how fast they are is no test's business."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from benchmarks import backlog, expiry, fanout, memory, open_files, reactor, reload, replay
from benchmarks.harness import Column, GoalMissed, Results, Spread, percentile, spread
from benchmarks.picture import Curve, draw
from kestrel.config.units import MIB


def results(columns: tuple[Column, ...]) -> Results:
    return Results("test", columns, as_json=False)


def test_replay_measures_every_case() -> None:
    figures = results(replay.COLUMNS)
    replay.measure(figures, replay.Sizes(file_bytes=100_000, repeats=1), seed=1)
    assert len(figures.rows) == len(replay.CASES) * len(replay.ITEM_BYTES)
    assert all(float(row["mb_per_s"]) > 0 for row in figures.rows)


def test_memory_measures_what_an_item_takes() -> None:
    figures = results(memory.COLUMNS)
    memory.measure(figures, memory.Sizes({64: 50_000}, repeats=1), seed=1)
    assert 21 < float(figures.rows[0]["bytes_over_data"]) < 200


def test_backlog_compares_with_an_empty_queue() -> None:
    figures = results(backlog.COLUMNS)
    sizes = backlog.Sizes((0, 40_000), (1,), rounds=1, turns=1, batches=2, disk_bytes=MIB)
    backlog.measure(figures, sizes, seed=1)
    assert [(row["backlog"], row["operation"]) for row in figures.rows] == [
        (0, "put"),
        (0, "get"),
        (40_000, "put"),
        (40_000, "get"),
    ]
    assert [row["ratio"] for row in figures.rows[:2]] == [1, 1]


def test_reactor_watches_every_step() -> None:
    figures = results(reactor.COLUMNS)
    reactor.measure(figures, reactor.Sizes(MIB, 8 * MIB, phase_s=0.05, repeats=1), seed=1)
    assert {"idle", "loading", *reactor.STEPS} <= {str(row["phase"]) for row in figures.rows}


def test_open_files_uses_and_loads_queues() -> None:
    figures = results(open_files.COLUMNS)
    open_files.measure(figures, open_files.Sizes(queues=200, starts=1))
    assert 100 < int(figures.rows[0]["most_open_files"]) < 1000


def test_expiry_watches_a_client_while_every_item_leaves() -> None:
    figures = results(expiry.COLUMNS)
    sizes = expiry.Sizes(items=3_000, watched_s=0.02, lead_s=1.5, repeats=1, disk_bytes=MIB)
    expiry.measure(figures, sizes, seed=1)
    assert [(row["case"], row["phase"]) for row in figures.rows] == [
        (case.name, phase) for case in expiry.CASES for phase in expiry.PHASES
    ]
    assert all(float(row["worst_ms"]) >= float(row["p50_ms"]) > 0 for row in figures.rows)
    assert [float(row["items_per_s"]) > 0 for row in figures.rows if "items_per_s" in row] == [True] * 3


def test_expiry_fails_when_a_client_waited_too_long() -> None:
    figures = results(expiry.COLUMNS)
    figures.add(case="the timer", phase=expiry.BEFORE, worst_ms_most=90.0)  # that is not its fault
    figures.add(case="the timer", phase=expiry.WHILE, worst_ms_most=50.0)
    expiry.check(figures)
    figures.add(case="the timer", phase=expiry.AFTER, worst_ms_most=50.1)
    with pytest.raises(GoalMissed, match=r"took 50\.1 ms, over 50 ms \(the timer, just after\)"):
        expiry.check(figures)


def test_fanout_shows_that_children_share_an_item() -> None:
    figures = results(fanout.COLUMNS)
    fanout.measure(figures, fanout.Sizes(rounds=1, batches=1, kept_batches=4, disk_bytes=MIB), seed=1)
    assert [row["children"] for row in figures.rows] == list(fanout.CHILDREN)
    assert [row["encodings"] for row in figures.rows] == [1] * len(fanout.CHILDREN)
    assert all(8 <= float(row["bytes_per_child"]) < 64 for row in figures.rows[1:])


def test_reload_measures_every_change() -> None:
    figures = results(reload.COLUMNS)
    reload.measure(figures, reload.Sizes(queues=100, repeats=2), seed=1)
    assert [row["change"] for row in figures.rows] == list(reload.CHANGES)
    assert all(float(row["held_ms_most"]) >= float(row["held_ms_least"]) > 0 for row in figures.rows)


def test_a_table_has_a_line_for_each_row() -> None:
    table = results((Column("name", "name"), Column("figure", "MB/s", ",.1f")))
    table.add(name="first", figure=1234.56)
    table.add(name="second")
    assert table.lines() == ["name       MB/s", "first   1,234.6", "second"]


def test_as_json_each_row_is_a_line_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with Results("test", (), as_json=True) as figures:
        figures.add(case="first", figure=2)
    assert json.loads(capsys.readouterr().out) == {"benchmark": "test", "case": "first", "figure": 2}


def test_spread_and_percentile() -> None:
    assert spread([3, 1, 2]) == Spread(2, 1, 3)
    values = [float(number) for number in range(1, 1001)]
    assert (percentile(values, 99.9), percentile(values, 50), percentile([7.0], 99.9)) == (999, 500, 7)


def test_the_picture_is_whole() -> None:
    curve = Curve("a < b", [(0, Spread(1, 1, 1)), (1_000, Spread(0.9, 0.8, 1.1))])
    picture = ElementTree.fromstring(draw("A title", {"put": [curve], "get": [curve]}))
    assert len(picture.findall("{http://www.w3.org/2000/svg}polyline")) == 2
