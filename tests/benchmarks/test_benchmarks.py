"""The benchmarks run, each with little work. Their speed is not tested."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks import (
    admin,
    backlog,
    expiry,
    fanout,
    hot_path,
    memory,
    open_files,
    operations,
    postgres,
    reactor,
    reload,
    replay,
    restart,
    scale,
    slow_reader,
)
from benchmarks.harness import Column, GoalMissed, Results, Spread, percentile, spread
from benchmarks.storages import JOURNAL, SCROLL, STORAGES, Opened, make_backlog
from benchmarks.svg_chart import Curve, draw
from kestrel.compiled import BUILD
from kestrel.config.units import MIB

ROOT = Path(__file__).parents[2]

MOST_CALLS = {"set": 68, "get/open": 71, "get/close": 56}
"""The numbers of docs/performance.md. Lower them when the path gets shorter."""

FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload(["benchmarks.__main__"])


@pytest.fixture(autouse=True)
def quick_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Import everything in a new process first, so that the import is not measured."""
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: FORKING)


def results(columns: tuple[Column, ...]) -> Results:
    return Results("test", columns, as_json=False)


def rows_of(benchmark: ModuleType, sizes: object, **options: Any) -> list[dict[str, Any]]:
    """Run a benchmark, and return the rows of its table."""
    figures = results(benchmark.COLUMNS)
    benchmark.measure(figures, sizes, **options)
    return figures.rows


def test_replay_measures_every_case() -> None:
    rows = rows_of(replay, replay.Sizes(file_bytes=100_000, repeats=1), seed=1)
    assert len(rows) == len(replay.CASES) * len(replay.ITEM_BYTES)
    assert all(row["mb_per_s"] > 0 for row in rows)


def test_hot_path_measures_every_case_of_the_running_build() -> None:
    rows = rows_of(hot_path, hot_path.Sizes(requests=400, repeats=1))
    assert [(row["queues"], row["pipeline"]) for row in rows] == list(hot_path.CASES)
    assert {row["build"] for row in rows} == {BUILD}
    assert all(row["cpu_us"] > 0 for row in rows)


def test_requests_make_no_more_calls_than_recorded() -> None:
    command = [sys.executable, "-m", "benchmarks.calls", "--json"]
    environment = os.environ | {"KESTREL_PURE": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    counts = {row["request"]: row["calls"] for row in map(json.loads, done.stdout.splitlines())}
    assert counts.keys() == MOST_CALLS.keys()
    assert {request: count for request, count in counts.items() if count > MOST_CALLS[request]} == {}


def test_scale_measures_a_server_with_many_of_everything() -> None:
    sizes = scale.Sizes([scale.Case(3, 2, 50)], starts=1, pairs=scale.TURN, disk_bytes=MIB)
    (row,) = rows_of(scale, sizes, seed=1, storages=[SCROLL])
    assert (row["storage"], row["connections"], row["queues"], row["backlog"]) == (SCROLL, 3, 2, 50)
    assert 0 < row["p50_ms"] <= row["p99_ms"]


@pytest.mark.needs("postgresql")
@pytest.mark.database
def test_postgres_compares_each_storage_with_the_journal() -> None:
    rows = rows_of(postgres, postgres.SHORT)
    assert len(rows) == len(postgres.STORAGES) * len(postgres.SHORT.items) * len(postgres.NAMES)
    assert {row["ratio"] for row in rows if row["storage"] == postgres.SYNCED} == {1}


def test_memory_measures_the_memory_of_an_item() -> None:
    (row,) = rows_of(memory, memory.Sizes({64: 50_000}, repeats=1), seed=1)
    assert 21 < row["bytes_over_data"] < 200


def test_backlog_compares_with_an_empty_queue() -> None:
    servers = ((JOURNAL, 1), (SCROLL, 1))
    sizes = backlog.Sizes((0, 40_000), servers, rounds=1, turns=1, batches=2, disk_bytes=MIB)
    rows = rows_of(backlog, sizes, seed=1)
    assert [(row["storage"], row["backlog"], row["operation"]) for row in rows] == [
        (storage, items, operation)
        for storage in (JOURNAL, SCROLL)
        for items in (0, 40_000)
        for operation in ("put", "get")
    ]
    assert [row["ratio"] for row in rows if not row["backlog"]] == [1, 1, 1, 1]


def test_reactor_watches_every_step() -> None:
    sizes = reactor.Sizes(MIB, 8 * MIB, 40_000, checkpoints_every_s=0.1, phase_s=0.05, repeats=1)
    rows = rows_of(reactor, sizes, seed=1)
    assert {"idle", "loading", *reactor.STEPS} <= {row["phase"] for row in rows}


def test_open_files_uses_and_loads_queues() -> None:
    rows = rows_of(open_files, open_files.Sizes(queues=200, starts=1))
    assert 100 < rows[0]["most_open_files"] < 1000


def test_expiry_measures_a_client_while_all_items_expire() -> None:
    sizes = expiry.Sizes(items=3_000, watched_s=0.02, lead_s=1.5, repeats=1, disk_bytes=MIB)
    rows = rows_of(expiry, sizes, seed=1)
    assert [(row["case"], row["phase"]) for row in rows] == [
        (case.name, phase) for case in expiry.CASES for phase in expiry.PHASES
    ]
    assert all(row["worst_ms"] >= row["p50_ms"] > 0 for row in rows)
    assert [row["items_per_s"] > 0 for row in rows if "items_per_s" in row] == [True] * 3


def test_expiry_fails_when_a_client_waited_too_long() -> None:
    figures = results(expiry.COLUMNS)
    figures.add(case="the timer", phase=expiry.BEFORE, worst_ms_most=90.0)  # not the fault of the server
    figures.add(case="the timer", phase=expiry.WHILE, worst_ms_most=50.0)
    expiry.check(figures)
    figures.add(case="the timer", phase=expiry.AFTER, worst_ms_most=50.1)
    with pytest.raises(GoalMissed, match=r"took 50\.1 ms, over 50 ms \(the timer, just after\)"):
        expiry.check(figures)


def test_fanout_shows_what_children_share() -> None:
    sizes = fanout.Sizes((0, 1, 10), rounds=1, batches=1, kept_batches=3, gets=10, disk_bytes=MIB)
    rows = rows_of(fanout, sizes, seed=1)
    assert [(row["storage"], row["children"]) for row in rows] == [
        (storage, children) for storage in STORAGES for children in sizes.children
    ]
    record_bytes = {JOURNAL: 1045, SCROLL: 1049}
    for row in rows:
        copies = row["children"] + 1 if row["storage"] == JOURNAL else 1
        assert row["written_per_put"] == row["folder_per_put"] == copies * record_bytes[row["storage"]]
        if copies > 1:
            assert 8 <= row["bytes_per_child"] < 64


def test_operations_compares_all_storages_and_operations() -> None:
    rows = rows_of(operations, operations.Sizes((64,), rounds=1, turns=1, batches=2), seed=1)
    assert [(row["through"], row["sync_journal"], row["operation"]) for row in rows] == [
        (through, sync, operation)
        for through in ("storage", "server")
        for sync in ("never", "0")
        for operation in ("put", "get")
    ]
    assert all(row["cpu_cost"] > 0 for row in rows)


def test_restart_reads_files_without_hints() -> None:
    rows = rows_of(restart, restart.Sizes(items=20_000, since_hint=2_000, repeats=1, disk_bytes=MIB), seed=1)
    read = {row["case"]: row["mb_read"] for row in rows}
    assert list(read) == [case.name for case in restart.CASES]
    assert read["scroll, after a stop"] < read["scroll, after a crash"] < read["scroll, without a hint"]


def test_slow_reader_finds_limits_of_memory() -> None:
    sizes = slow_reader.Sizes(20_000, held_every=1_000, child_items=6_400, checkpoint_items=5_000, disk_bytes=MIB)
    rows = rows_of(slow_reader, sizes, seed=1)
    assert [(row["case"], row["held"]) for row in rows] == list(
        zip((case.name for case in slow_reader.CASES), (1, 20, 1, 1), strict=True)
    )
    assert [row["items_then"] for row in rows] == [1, 20, 3_200, 1]


@pytest.mark.parametrize("storage", STORAGES)
def test_prepared_backlog_is_like_that_of_a_server(storage: str, tmp_path: Path) -> None:
    make_backlog(storage, tmp_path, 1, 1024, 30_000, taken=7)  # more than one file of a scroll
    opened = Opened(storage, tmp_path)
    queue = opened.queue()
    assert (queue.items, queue.stats["journal_repaired_bytes"]) == (30_000, 0)
    assert len({opened.take(queue).data for _ in range(100)}) == 100


def test_reload_measures_every_change() -> None:
    rows = rows_of(reload, reload.Sizes(queues=100, repeats=2), seed=1)
    assert [row["change"] for row in rows] == list(reload.CHANGES)
    assert all(row["held_ms_most"] >= row["held_ms_least"] > 0 for row in rows)


def test_admin_measures_every_request() -> None:
    rows = rows_of(admin, admin.Sizes(queues=100, repeats=2))
    assert [row["call"] for row in rows] == [*admin.CALLS, admin.SAMPLE]
    assert all(row["total_ms"] >= row["longest_ms"] > 0 for row in rows)


def test_admin_fails_when_a_request_blocks_the_reactor_too_long() -> None:
    figures = results(admin.COLUMNS)
    figures.add(call="/stats.json", total_ms=300.0, longest_ms=11.0)  # only one request is made
    figures.add(call="/metrics", total_ms=99.9, longest_ms=10.0)
    admin.check(figures)
    figures.add(call="/api/overview", total_ms=30.0, longest_ms=10.1)
    with pytest.raises(GoalMissed, match=r"/api/overview took 30 ms of the reactor, 10\.1 ms at a time"):
        admin.check(figures)


def test_table_has_a_line_for_each_row() -> None:
    table = results((Column("name", "name"), Column("figure", "MB/s", ",.1f")))
    table.add(name="first", figure=1234.56)
    table.add(name="second")
    assert table.lines() == ["name       MB/s", "first   1,234.6", "second"]


def test_json_has_a_line_for_each_row_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with Results("test", (), as_json=True) as figures:
        figures.add(case="first", figure=2)
    assert json.loads(capsys.readouterr().out) == {"benchmark": "test", "case": "first", "figure": 2}


def test_spread_and_percentile() -> None:
    assert spread([3, 1, 2]) == Spread(2, 1, 3)
    values = [float(number) for number in range(1, 1001)]
    assert (percentile(values, 99.9), percentile(values, 50), percentile([7.0], 99.9)) == (999, 500, 7)


def test_picture_is_complete() -> None:
    curve = Curve("a < b", [(0, Spread(1, 1, 1)), (1_000, Spread(0.9, 0.8, 1.1))])
    picture = ElementTree.fromstring(draw("A title", {"put": [curve], "get": [curve]}))
    assert len(picture.findall("{http://www.w3.org/2000/svg}polyline")) == 2
