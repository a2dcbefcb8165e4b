"""The comparison with other servers runs, tells what it saw, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import fairness
from benchmarks.harness import MB, Results, RunProgress, Spread
from benchmarks.peers import __main__ as peers
from benchmarks.peers import cases, goals, interleaved_runs, machine
from benchmarks.peers.cases import FULL, QUICK, SHORT, Case, Sizes
from benchmarks.peers.generator import Figures, Generator, Load, WrongReply
from benchmarks.peers.goals import Goal
from benchmarks.peers.interleaved_runs import ITEMS, REQUESTS, Measured
from benchmarks.peers.ratio_chart import Curve, draw
from benchmarks.peers.report import curves, rows
from benchmarks.peers.servers import (
    BEANSTALKD,
    CEILING,
    DEFAULT,
    KESTREL,
    KESTREL_PURE,
    MEMCACHED,
    REDIS,
    SYNC_EACH,
    Program,
    before,
    build,
    ceiling,
    cores,
    running,
)
from benchmarks.peers.twistd_launcher import WatchedPoller
from kestrel import __version__
from kestrel.config.model import Config, QueueOverrides
from kestrel.config.units import MIB
from kestrel.disk.files import Disk
from kestrel.testing.server import MemoryServer
from tests.child import PATIENCE_S, Child
from tests.memcache_text import set_
from tests.server.running import ROOT, Client, eventually

SVG = "{http://www.w3.org/2000/svg}"
TINY = Sizes((2,), (2,), (1,), (1,), (0, 100), rounds=1, seconds=0.01, warm_s=0.01, memory_items=2_000, memory_mib=1)


def figures(items_per_s: float, requests_per_s: float = 100.0) -> Figures:
    """Those of a second."""
    seen = Figures(*[1.0] * len(Figures._fields))  # type: ignore[arg-type]
    return seen._replace(
        requests=round(requests_per_s), items=round(items_per_s), items_per_s=items_per_s, requests_per_s=requests_per_s
    )


def measured(case: Case, *each_round: Mapping[str, float]) -> Measured:
    """Items a second by each server, round by round."""
    told = [{name: figures(value) for name, value in round_.items()} for round_ in each_round]
    return Measured(case, told, dict.fromkeys(each_round[0], 50 * MB))


def case_named(name: str) -> Case:
    return next(case for case in cases.cases(FULL) if case.name == name)


# Cases.


def test_one_thing_is_varied_at_a_time() -> None:
    base = case_named("pipeline 1")
    changed = {"connections", "size", "pipeline", "workload", "children", "queues", "is_behind"}
    for case in cases.cases(FULL):
        others = {
            name
            for name in changed
            if getattr(case.load, name) != getattr(base.load, name)
            and not (case.axis == cases.BACKLOG and name == "is_behind")
            and not (case.axis == cases.WORKLOAD and name in ("children", "queues"))
        }
        others |= {"sync"} if case.setting != base.setting else set()
        allowed = 2 if "," in case.point else 1
        assert len(others) <= allowed, (case.name, others)


@pytest.mark.parametrize("sizes", [FULL, QUICK, SHORT])
def test_every_form_has_every_axis_and_no_name_twice(sizes: Sizes) -> None:
    all_cases = cases.cases(sizes)
    assert len({case.name for case in all_cases}) == len(all_cases)
    axes = {cases.CONNECTIONS, cases.SIZE, cases.PIPELINE, cases.QUEUES, cases.WORKLOAD, cases.SYNC, cases.BACKLOG}
    assert {case.axis for case in all_cases} == axes


def test_the_base_stands_on_each_axis_and_is_one_work() -> None:
    base = case_named("connections 50")
    same = [case.axis for case in cases.cases(FULL) if case.work == base.work]
    assert same == [cases.CONNECTIONS, cases.SIZE, cases.PIPELINE, cases.QUEUES, cases.SYNC, cases.BACKLOG]


@pytest.mark.parametrize(
    "name, without",
    [
        ("connections 50", {SYNC_EACH}),
        ("workload reliable", {SYNC_EACH, MEMCACHED}),
        ("workload fanout 3", {SYNC_EACH, MEMCACHED, BEANSTALKD}),
        ("sync each reply", {MEMCACHED}),
        ("sync each reply, own queues", {SYNC_EACH, MEMCACHED}),
        ("backlog 0", {SYNC_EACH}),
        ("backlog 1,000,000", {SYNC_EACH, MEMCACHED}),
    ],
)
def test_a_server_takes_part_where_it_has_what_is_asked_for(name: str, without: set[Program]) -> None:
    everyone = (KESTREL, KESTREL_PURE, BEANSTALKD, REDIS, MEMCACHED, SYNC_EACH)
    case = case_named(name)
    assert {program for program in everyone if not interleaved_runs.takes_part(program, case)} == without


# Ratios, goals, and how they are told.


def test_figures_of_one_round_are_divided_by_each_other() -> None:
    seen = measured(case_named("connections 50"), {"kestrel": 10, "redis": 20}, {"kestrel": 40, "redis": 40})
    assert seen.ratio("kestrel", "redis", ITEMS) == Spread(0.75, 0.5, 1.0)
    assert seen.ratio("kestrel", "redis", REQUESTS) == Spread(1, 1, 1)
    assert seen.ratio("kestrel", "beanstalkd", ITEMS) is None


def test_there_is_no_ratio_to_who_did_nothing() -> None:
    seen = measured(case_named("connections 50"), {"kestrel": 10, "redis": 0})
    assert seen.ratio("kestrel", "redis", ITEMS) is None


def test_ratios_stand_in_the_row_of_the_other_server() -> None:
    seen = [measured(case_named("connections 50"), {"kestrel": 10, "kestrel, pure": 5, "redis": 20})]
    by_server = {str(row["server"]): row for row in rows(seen)}
    assert by_server["redis"]["items_ratio"] == 0.5
    assert by_server["redis"]["pure_items_ratio"] == 0.25
    assert by_server["kestrel, pure"]["items_ratio"] == 2.0
    assert "items_ratio" not in by_server["kestrel"]
    assert by_server["kestrel"]["memory_mb"] == 50.0


@pytest.mark.parametrize(
    "name, seen, build, wanted",
    [
        ("connections 10", {"kestrel": 20, "beanstalkd": 10}, "compiled", [(2.2, False)]),
        ("connections 500", {"kestrel": 22, "beanstalkd": 10}, "compiled", [(2.2, True)]),
        ("connections 50", {"kestrel": 9, "beanstalkd": 10}, "pure", [(0.9, True)]),
        ("connections 50", {"kestrel": 8, "redis": 10}, "pure", []),
        ("connections 1", {"kestrel": 1, "beanstalkd": 10}, "compiled", []),
        ("connections 5,000", {"kestrel": 1, "beanstalkd": 10}, "compiled", []),
        (
            "pipeline 16",
            {"kestrel": 79, "beanstalkd": 10, "redis": 80},
            "compiled",
            [(9.0, False), (1.0, False), (1.2, True)],
        ),
        ("pipeline 16", {"kestrel": 19, "beanstalkd": 10, "redis": 40}, "pure", [(2.0, False)]),
        (
            "pipeline 16, 10 conn.",
            {"kestrel": 9, "kestrel, pure": 2, "beanstalkd": 1},
            "compiled",
            [(9.0, True), (2.0, True)],
        ),
        ("connections 10", {"kestrel": 9, "redis": 10}, "compiled", [(0.95, False)]),
        ("connections 50", {"kestrel": 5, "redis": 10}, "compiled", [(0.95, False), (1.3, False)]),
        ("size 1 KiB", {"kestrel": 1, "redis": 10}, "compiled", []),
        ("size 1 KiB, 16 in flight", {"kestrel": 8, "redis": 10}, "compiled", [(0.8, True)]),
        ("size 1 MiB, 8 conn.", {"kestrel": 7, "redis": 10}, "compiled", [(0.8, False)]),
        ("size 1 MiB, 8 conn.", {"kestrel": 7, "redis": 10}, "pure", []),
        ("sync each reply, own queues", {"kestrel": 1, "beanstalkd": 10}, "compiled", []),
        (
            "sync each reply",
            {"kestrel": 80, "beanstalkd": 10, "kestrel, a sync each": 11},
            "pure",
            [(8.0, False), (8.0, True)],
        ),
        (
            "sync each reply",
            {"kestrel": 90, "kestrel, pure": 79, "beanstalkd": 10, "kestrel, a sync each": 10},
            "compiled",
            [(8.0, False), (8.0, True), (8.0, False)],
        ),
    ],
)
def test_goals_are_judged_by_items(
    name: str, seen: Mapping[str, float], build: str, wanted: list[tuple[float, bool]]
) -> None:
    judged = goals.goals([measured(case_named(name), seen)], build)
    assert [(goal.wanted, goal.is_seen) for goal in judged] == wanted


def test_a_backlog_is_compared_with_the_empty_queue_of_the_same_rounds() -> None:
    pure = {"kestrel, pure": 4}
    empty = measured(case_named("backlog 0"), {"kestrel": 100, **pure}, {"kestrel": 10, **pure})
    full = measured(case_named("backlog 1,000,000"), {"kestrel": 90, "kestrel, pure": 3}, {"kestrel": 7, **pure})
    judged = goals.goals([empty, full], "compiled")
    assert [(goal.what, goal.seen, goal.is_seen) for goal in judged] == [
        ("kestrel, a backlog of 1,000,000 to an empty queue", 0.8, True),
        ("kestrel, pure, a backlog of 1,000,000 to an empty queue", 0.875, True),
    ]


def test_memory_may_be_a_bit_more_than_the_limit_of_the_queue() -> None:
    assert goals.memory_goal("kestrel", 1_000_000, 128 * MIB + 100 * MB, 128 * MIB).is_seen
    assert not goals.memory_goal("kestrel", 1_000_000, 128 * MIB + 101 * MB, 128 * MIB).is_seen


def test_a_goal_is_told_in_a_line() -> None:
    assert Goal("more", 2.0, 1.5).line() == "MISSED  more: 1.50, at least 2.00"
    assert Goal("less", 2.0, 1.5, is_least=False).line() == "met     less: 1.50, at most 2.00"


def test_the_time_that_is_left_is_that_of_the_steps_that_are_left() -> None:
    now = [100.0]
    clock = RunProgress(10, lambda: now[0])
    assert clock.left() == ""
    now[0] += 30
    clock.step(2)
    assert clock.left() == ", 2 min left"
    clock.step(4)
    assert clock.left() == ", 20 s left"


def test_the_picture_has_a_panel_for_each_axis_and_a_curve_for_each_pair() -> None:
    seen = [
        measured(case_named(name), {"kestrel": 30, "redis": 20, "beanstalkd": 1, CEILING: 1000})
        for name in ("connections 10", "connections 50", "sync each reply")
    ]
    drawn = curves(seen)
    assert {axis: [curve.name for curve in each] for axis, each in drawn.items()} == {
        "connections": ["kestrel to beanstalkd", "kestrel to redis"],
        "sync": ["kestrel to beanstalkd", "kestrel to redis"],
    }
    picture = ElementTree.fromstring(draw("A < title", drawn))
    assert len(picture.findall(f"{SVG}polyline")) == 4
    assert len(picture.findall(f"{SVG}circle")) == 2 + 2 * (2 + 1)
    assert "prefers-color-scheme: dark" in str(picture.findtext(f"{SVG}style"))


def test_a_ratio_beyond_the_picture_stands_at_its_edge() -> None:
    ratios = {"1": Spread(1e9, 1e9, 1e9), "2": Spread(1e-9, 0, 1)}
    picture = ElementTree.fromstring(draw("title", {"axis": [Curve("one to other", ratios)]}))
    height = float(picture.attrib["viewBox"].split()[-1])
    [line] = picture.findall(f"{SVG}polyline")
    assert all(0 < float(point.split(",")[1]) < height for point in line.attrib["points"].split())


def test_a_reader_is_told_what_makes_figures_worthless() -> None:
    machine_has = {"cores": 2, "file_system": "ext4", "folder": "/somewhere"}
    assert peers.notes(machine_has) == []
    [one_core] = peers.notes({**machine_has, "cores": 1})
    assert "one core" in one_core
    [in_memory] = peers.notes({**machine_has, "file_system": "tmpfs"})
    assert in_memory.startswith("/somewhere is in memory")
    assert machine.file_system("/proc/self") == "proc"


# Servers.


def processes_in(folder: Path) -> list[int]:
    """Those that work in that folder, or were made there."""
    found = []
    for entry in os.listdir("/proc"):
        for link in ("cwd", "exe"):
            with suppress(OSError):
                if entry.isdigit() and os.readlink(f"/proc/{entry}/{link}").startswith(f"{folder}/"):
                    found.append(int(entry))
    return found


OTHERS = [
    pytest.param(BEANSTALKD, marks=pytest.mark.needs("beanstalkd")),
    pytest.param(REDIS, marks=pytest.mark.needs("redis-server")),
    pytest.param(MEMCACHED, marks=pytest.mark.needs("memcached")),
]


@pytest.mark.parametrize("program", [KESTREL, *OTHERS])
def test_a_server_is_gone_with_its_folder_whatever_happens(program: Program, tmp_path: Path) -> None:
    def work() -> None:
        with running(program, tmp_path / "own", DEFAULT) as server:
            assert set(processes_in(tmp_path)) == {server.pid}
            assert server.memory_bytes() > 100_000
            raise ValueError("something else")

    with pytest.raises(ValueError, match="something else"):
        work()
    assert list(tmp_path.iterdir()) == []
    assert processes_in(tmp_path) == []


def test_a_server_that_does_not_start_is_said_with_its_words(tmp_path: Path) -> None:
    broken = Program("broken", "memcache", lambda *_: ["sh", "-c", "echo no such luck; exit 1"], lambda: "1")
    with (
        pytest.raises(SystemExit, match=r"broken does not start:\nno such luck"),
        running(broken, tmp_path / "own", DEFAULT),
    ):
        pass


def test_ours_says_whether_it_is_compiled(tmp_path: Path) -> None:
    with running(KESTREL_PURE, tmp_path / "own", DEFAULT) as server:
        assert build(server) == "pure"


def test_kestrel_of_another_checkout_runs(tmp_path: Path) -> None:
    package = tmp_path / "old" / "kestrel"
    package.mkdir(parents=True)
    for path in (ROOT / "kestrel").iterdir():
        if path.suffix != ".so":
            (package / path.name).symlink_to(path)
    init = package / "__init__.py"
    init.unlink()
    init.write_text((ROOT / "kestrel" / "__init__.py").read_text().replace(f'"{__version__}"', '"0.0.1"'))
    with running(before(tmp_path / "old"), tmp_path / "own", DEFAULT) as server, Client(server.port) as client:
        assert client.stats()["version"] == "0.0.1"


def test_folder_that_is_no_checkout_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        peers.main(["--before", str(tmp_path)])
    assert f"{tmp_path} is not a checkout of kestrel" in capsys.readouterr().err


def test_servers_run_on_the_core_that_they_are_given(tmp_path: Path) -> None:
    core = cores().server
    with running(KESTREL, tmp_path / "own", DEFAULT, core) as server:
        found = set()
        for thread in os.listdir(f"/proc/{server.pid}/task"):
            with suppress(ProcessLookupError):  # it has ended since
                found.add(frozenset(os.sched_getaffinity(int(thread))))
        assert found == {frozenset({core})}


class SyncCount(Disk):
    """Counts the files that are synced."""

    def __init__(self) -> None:
        self.syncs = 0

    def sync(self, descriptor: int) -> None:
        """Sync, and count."""
        self.syncs += 1
        super().sync(descriptor)


def syncs_of_ten_puts(folder: Path) -> int:
    """How many syncs it takes until ten clients of one queue, who put at the same time, are answered."""
    disk = SyncCount()
    config = Config(default=QueueOverrides({"sync_journal_ms": 0}))
    server = MemoryServer(folder=folder, disk=disk, config=config)
    clients = [server.connect() for _ in range(10)]
    already = disk.syncs
    for client in clients:
        client.send(set_(b"work", b"item"))
    assert [client.take() for client in clients] == [b"STORED\r\n"] * 10
    return disk.syncs - already


SYNCS_WITHOUT_GROUP_COMMIT = """
import sys
from pathlib import Path
from benchmarks.peers.twistd_launcher import syncing_each
from tests.benchmarks.test_peers import syncs_of_ten_puts
with syncing_each():
    print(syncs_of_ten_puts(Path(sys.argv[1])))
"""


def test_without_group_commit_there_is_a_sync_for_each_put(tmp_path: Path) -> None:
    assert syncs_of_ten_puts(tmp_path / "as-it-is") == 1
    # Python alone can be changed so, as the launcher knows.
    program = [sys.executable, "-c", SYNCS_WITHOUT_GROUP_COMMIT, str(tmp_path / "changed")]
    environment = {**os.environ, "KESTREL_PURE": "1"}
    changed = subprocess.run(
        program, cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    assert changed.stdout == "10\n"


def test_the_longest_stretch_is_what_lies_between_two_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("benchmarks.peers.twistd_launcher.time.perf_counter", lambda: now[0])

    class Poller:
        def poll(self, timeout: float, most_events: int) -> list[object]:
            now[0] += 100.0  # waiting is no work
            return []

    poller = WatchedPoller(Poller())
    for worked_s in (0.002, 0.005, 0.001):
        poller.poll(1, 1)
        now[0] += worked_s
    poller.poll(1, 1)
    poller.tell(tmp_path / "told")
    assert (tmp_path / "told").read_text() == "5.000"
    poller.poll(1, 1)
    now[0] += 0.003
    poller.poll(1, 1)
    poller.tell(tmp_path / "told")
    assert (tmp_path / "told").read_text() == "3.000"


# All of it.


LEFT_OUT = {
    *("sync 100 ms", "sync each reply, own queues", "size 1 KiB", "size 1 MiB, 1 conn."),
    *("queues own", "workload waiting", "workload reliable"),
}
"""What takes as many servers once more and is told as the others are; `make bench ARGS=--short` has it."""


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> list[Case]:
    """The form with next to nothing to do, and its cases."""
    fair = fairness.Sizes(rounds=1, seconds=0.05, flood=500, large_bytes=100_000, slow_bytes=10 * MIB, idle=50)
    monkeypatch.setitem(peers.SIZES, "tiny", (TINY, fair, MIB))
    monkeypatch.setattr(fairness, "LEAD_S", 0.01)
    some = [case for case in cases.cases(TINY) if case.name not in LEFT_OUT]
    monkeypatch.setattr(cases, "cases", lambda sizes, seed: some)
    return some


@pytest.mark.needs("gcc", "beanstalkd", "redis-server", "memcached")
def test_a_short_comparison_tells_all_of_it(
    tiny: list[Case], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    affinity = os.sched_getaffinity(0)
    told, drawn = tmp_path / "told.json", tmp_path / "drawn.svg"
    peers.compare("tiny", 1, results_path=told, picture_path=drawn)
    assert os.sched_getaffinity(0) == affinity
    results = json.loads(told.read_text())
    ours = [KESTREL, KESTREL_PURE] if results["build"] == "compiled" else [KESTREL]
    queues = [*ours, BEANSTALKD, REDIS]
    assert [(row["axis"], row["point"], row["server"]) for row in results["cases"]] == [
        (case.axis, case.point, program.name)
        for case in tiny
        for program in (*queues, MEMCACHED, ceiling(tmp_path), SYNC_EACH)
        if interleaved_runs.takes_part(program, case)
    ]
    assert all(row["requests_per_s"] > 0 for row in results["cases"])
    # Linux may add a running process's time only at its next tick, after such a short run.
    assert all(row["cpu_us"] >= 0 for row in results["cases"])
    assert sum(row["cpu_us"] for row in results["cases"]) > 0
    assert [row["server"] for row in results["memory"]] == [program.name for program in queues]
    assert [row["beside"] for row in results["fairness"]] == list(fairness.DISTURBERS)
    assert results["longest_tick_ms"] > 0
    assert results["versions"]["beanstalkd"].startswith("beanstalkd")
    assert "appendfsync always" in results["commands"]["redis, synced each reply"]
    assert ElementTree.parse(drawn).getroot().tag == f"{SVG}svg"
    told_lines = capsys.readouterr().out.splitlines()
    assert {("met" if goal["is_seen"] else "MISSED", goal["what"]) for goal in results["goals"]} == {
        (line[:6].strip(), line[8:].partition(":")[0]) for line in told_lines if line.startswith(("met   ", "MISSED"))
    }


@pytest.mark.needs("gcc", "beanstalkd")
def test_an_end_by_sigterm_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.peers", "--short"]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    with Child(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL) as process:
        eventually(lambda: any(tmp_path.glob("*/server-*/binlog.1")), "beanstalkd runs", 60.0)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60.0) == 128 + signal.SIGTERM
    eventually(lambda: not processes_in(tmp_path), "its servers are gone")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.needs("gcc")
def test_a_wrong_reply_ends_the_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = Generator(tmp_path)
    words = ["--protocol", "cache", "--pipeline", "2"]  # a queue does not give the last item to each who asks
    monkeypatch.setattr(Load, "arguments", lambda load, port, pid: [*words, "--port", str(port)])
    with (
        pytest.raises(WrongReply, match="kestrel: load: wrong reply 1 of 2"),
        running(KESTREL, tmp_path / "own", DEFAULT) as server,
    ):
        server.work(generator, Load("memcache"))
    assert not (tmp_path / "own").exists()


def test_the_slow_reader_and_the_others_have_their_columns() -> None:
    results = Results("fairness", fairness.COLUMNS, as_json=False)
    pair = (figures(10), figures(5)._replace(p99_us=7.0, max_us=9.0), 30 * MB)
    fairness._add(results, "idle connections", [pair], 10_000)
    [row] = results.rows
    assert (row["p99_us"], row["max_us"], row["server_mb"], row["bytes_each"]) == (7.0, 9.0, 30.0, 3_000.0)
