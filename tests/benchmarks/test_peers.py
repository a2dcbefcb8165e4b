"""The comparison with other servers runs, reports its figures, and leaves nothing behind."""

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
    """Return results with these figures per second."""
    seen = Figures(*[1.0] * len(Figures._fields))  # type: ignore[arg-type]
    return seen._replace(
        requests=round(requests_per_s), items=round(items_per_s), items_per_s=items_per_s, requests_per_s=requests_per_s
    )


def measured(case: Case, *each_round: Mapping[str, float]) -> Measured:
    """Return results with items per second for each server and round."""
    told = [{name: figures(value) for name, value in round_.items()} for round_ in each_round]
    return Measured(case, told, dict.fromkeys(each_round[0], 50 * MB))


def case_named(name: str) -> Case:
    return next(case for case in cases.cases(FULL) if case.name == name)


# Cases.


def test_one_axis_varies_at_a_time() -> None:
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
def test_every_form_has_every_axis_and_unique_names(sizes: Sizes) -> None:
    all_cases = cases.cases(sizes)
    assert len({case.name for case in all_cases}) == len(all_cases)
    axes = {cases.CONNECTIONS, cases.SIZE, cases.PIPELINE, cases.QUEUES, cases.WORKLOAD, cases.SYNC, cases.BACKLOG}
    assert {case.axis for case in all_cases} == axes


def test_base_case_is_on_every_axis() -> None:
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
def test_server_takes_part_in_the_cases_that_it_supports(name: str, without: set[Program]) -> None:
    everyone = (KESTREL, KESTREL_PURE, BEANSTALKD, REDIS, MEMCACHED, SYNC_EACH)
    case = case_named(name)
    assert {program for program in everyone if not interleaved_runs.takes_part(program, case)} == without


# Ratios and goals.


def test_ratios_are_within_a_round() -> None:
    seen = measured(case_named("connections 50"), {"kestrel": 10, "redis": 20}, {"kestrel": 40, "redis": 40})
    assert seen.ratio("kestrel", "redis", ITEMS) == Spread(0.75, 0.5, 1.0)
    assert seen.ratio("kestrel", "redis", REQUESTS) == Spread(1, 1, 1)
    assert seen.ratio("kestrel", "beanstalkd", ITEMS) is None


def test_server_without_results_has_no_ratio() -> None:
    seen = measured(case_named("connections 50"), {"kestrel": 10, "redis": 0})
    assert seen.ratio("kestrel", "redis", ITEMS) is None


def test_ratio_is_in_the_row_of_the_other_server() -> None:
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
def test_goals_are_compared_in_items(
    name: str, seen: Mapping[str, float], build: str, wanted: list[tuple[float, bool]]
) -> None:
    judged = goals.goals([measured(case_named(name), seen)], build)
    assert [(goal.wanted, goal.is_seen) for goal in judged] == wanted


def test_backlog_is_compared_with_empty_queue_per_round() -> None:
    pure = {"kestrel, pure": 4}
    empty = measured(case_named("backlog 0"), {"kestrel": 100, **pure}, {"kestrel": 10, **pure})
    full = measured(case_named("backlog 1,000,000"), {"kestrel": 90, "kestrel, pure": 3}, {"kestrel": 7, **pure})
    judged = goals.goals([empty, full], "compiled")
    assert [(goal.what, goal.seen, goal.is_seen) for goal in judged] == [
        ("kestrel, a backlog of 1,000,000 to an empty queue", 0.8, True),
        ("kestrel, pure, a backlog of 1,000,000 to an empty queue", 0.875, True),
    ]


def test_memory_may_slightly_exceed_the_limit_of_the_queue() -> None:
    assert goals.memory_goal("kestrel", 1_000_000, 128 * MIB + 100 * MB, 128 * MIB).is_seen
    assert not goals.memory_goal("kestrel", 1_000_000, 128 * MIB + 101 * MB, 128 * MIB).is_seen


def test_goal_is_reported_in_a_line() -> None:
    assert Goal("more", 2.0, 1.5).line() == "MISSED  more: 1.50, at least 2.00"
    assert Goal("less", 2.0, 1.5, is_least=False).line() == "met     less: 1.50, at most 2.00"


def test_remaining_time_is_that_of_the_remaining_steps() -> None:
    now = [100.0]
    clock = RunProgress(10, lambda: now[0])
    assert clock.left() == ""
    now[0] += 30
    clock.step(2)
    assert clock.left() == ", 2 min left"
    clock.step(4)
    assert clock.left() == ", 20 s left"


def test_picture_has_panel_per_axis_and_curve_per_pair() -> None:
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


def test_ratio_beyond_the_picture_is_at_its_edge() -> None:
    ratios = {"1": Spread(1e9, 1e9, 1e9), "2": Spread(1e-9, 0, 1)}
    picture = ElementTree.fromstring(draw("title", {"axis": [Curve("one to other", ratios)]}))
    height = float(picture.attrib["viewBox"].split()[-1])
    [line] = picture.findall(f"{SVG}polyline")
    assert all(0 < float(point.split(",")[1]) < height for point in line.attrib["points"].split())


def test_reader_is_warned_of_worthless_figures() -> None:
    machine_has = {"cores": 2, "file_system": "ext4", "folder": "/somewhere"}
    assert peers.notes(machine_has) == []
    [one_core] = peers.notes({**machine_has, "cores": 1})
    assert "one core" in one_core
    [in_memory] = peers.notes({**machine_has, "file_system": "tmpfs"})
    assert in_memory.startswith("/somewhere is in memory")
    assert machine.file_system("/proc/self") == "proc"


# Servers.


def processes_in(folder: Path) -> list[int]:
    """Return the processes whose working folder or files are in that folder."""
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
def test_server_and_its_folder_are_always_removed(program: Program, tmp_path: Path) -> None:
    def work() -> None:
        with running(program, tmp_path / "own", DEFAULT) as server:
            assert set(processes_in(tmp_path)) == {server.pid}
            assert server.memory_bytes() > 100_000
            raise ValueError("something else")

    with pytest.raises(ValueError, match="something else"):
        work()
    assert list(tmp_path.iterdir()) == []
    assert processes_in(tmp_path) == []


def test_failed_start_is_reported_with_the_servers_output(tmp_path: Path) -> None:
    broken = Program("broken", "memcache", lambda *_: ["sh", "-c", "echo no such luck; exit 1"], lambda: "1")
    with (
        pytest.raises(SystemExit, match=r"broken does not start:\nno such luck"),
        running(broken, tmp_path / "own", DEFAULT),
    ):
        pass


def test_our_server_reports_its_build(tmp_path: Path) -> None:
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


def test_servers_run_on_the_given_core(tmp_path: Path) -> None:
    core = cores().server
    with running(KESTREL, tmp_path / "own", DEFAULT, core) as server:
        found = set()
        for thread in os.listdir(f"/proc/{server.pid}/task"):
            with suppress(ProcessLookupError):  # it has ended since
                found.add(frozenset(os.sched_getaffinity(int(thread))))
        assert found == {frozenset({core})}


class SyncCount(Disk):
    """Count the files that are synced."""

    def __init__(self) -> None:
        self.syncs = 0

    def sync(self, descriptor: int) -> None:
        """Sync, and count."""
        self.syncs += 1
        super().sync(descriptor)


def syncs_of_ten_puts(folder: Path) -> int:
    """Return the number of syncs for ten clients that put to one queue at the same time."""
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


def test_without_group_commit_each_put_has_a_sync(tmp_path: Path) -> None:
    assert syncs_of_ten_puts(tmp_path / "as-it-is") == 1
    # Only Python can be changed in this way.
    program = [sys.executable, "-c", SYNCS_WITHOUT_GROUP_COMMIT, str(tmp_path / "changed")]
    environment = {**os.environ, "KESTREL_PURE": "1"}
    changed = subprocess.run(
        program, cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    assert changed.stdout == "10\n"


def test_longest_stretch_is_the_time_between_two_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


# The whole comparison.


LEFT_OUT = {
    *("sync 100 ms", "sync each reply, own queues", "size 1 KiB", "size 1 MiB, 1 conn."),
    *("queues own", "workload waiting", "workload reliable"),
}
"""Cases that start further servers, which `make bench ARGS=--short` includes."""


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> list[Case]:
    """Return the shortest form and its cases."""
    fair = fairness.Sizes(rounds=1, seconds=0.05, flood=500, large_bytes=100_000, slow_bytes=10 * MIB, idle=50)
    monkeypatch.setitem(peers.SIZES, "tiny", (TINY, fair, MIB))
    monkeypatch.setattr(fairness, "LEAD_S", 0.01)
    some = [case for case in cases.cases(TINY) if case.name not in LEFT_OUT]
    monkeypatch.setattr(cases, "cases", lambda sizes, seed: some)
    return some


@pytest.mark.needs("gcc", "beanstalkd", "redis-server", "memcached")
def test_short_comparison_reports_everything(
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
def test_sigterm_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.peers", "--short"]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    with Child(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL) as process:
        eventually(lambda: any(tmp_path.glob("*/server-*/binlog.1")), "beanstalkd runs", 60.0)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60.0) == 128 + signal.SIGTERM
    eventually(lambda: not processes_in(tmp_path), "its servers are gone")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.needs("gcc")
def test_wrong_reply_ends_the_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = Generator(tmp_path)
    words = ["--protocol", "cache", "--pipeline", "2"]  # a queue does not deliver the last item to several clients
    monkeypatch.setattr(Load, "arguments", lambda load, port, pid: [*words, "--port", str(port)])
    with (
        pytest.raises(WrongReply, match="kestrel: load: wrong reply 1 of 2"),
        running(KESTREL, tmp_path / "own", DEFAULT) as server,
    ):
        server.work(generator, Load("memcache"))
    assert not (tmp_path / "own").exists()


def test_slow_reader_and_the_others_have_their_columns() -> None:
    results = Results("fairness", fairness.COLUMNS, as_json=False)
    pair = (figures(10), figures(5)._replace(p99_us=7.0, max_us=9.0), 30 * MB)
    fairness._add(results, "idle connections", [pair], 10_000)
    [row] = results.rows
    assert (row["p99_us"], row["max_us"], row["server_mb"], row["bytes_each"]) == (7.0, 9.0, 30.0, 3_000.0)
