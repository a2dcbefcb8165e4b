"""``kestrel-report`` (docs/spark.md): from a folder of journals to a report, and its errors."""

from __future__ import annotations

import importlib.util
import json
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Final, NoReturn

import pytest
from pyspark.sql import SparkSession

from kestrel.spark.report.report_folder import ReportFolder
from kestrel.spark.report.report_text import MARK
from kestrel.spark.report_cli import main
from kestrel.tools.tool_runner import ToolFailed
from tests.journal.handwritten import REMOVE, addx, confirm, open_, unremove

START_MS: Final = 1_700_000_000_000
NOW_MS: Final = START_MS + 100_000
SECRET: Final = b"the data of an item"


def later(seconds: int) -> bytes:
    return addx(SECRET, START_MS + 1000 * seconds)


def test_folder_becomes_a_report(spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for server, more in (("one", b""), ("two", b"\x02\x01")):
        spool = tmp_path / "data" / server / "spool"
        spool.mkdir(parents=True)
        # one: waits 0 s to 10 s; two: opened, returned, and taken; three: remains
        records = later(0) + REMOVE + later(10) + open_(1) + unremove(1) + open_(2) + later(30) + confirm(2) + more
        (spool / "work").write_bytes(records)
    (tmp_path / "data" / "one" / "spool" / "<b>").write_bytes(later(5))
    out = tmp_path / "a report #1 100%"
    partitions = spark.conf.get("spark.sql.shuffle.partitions")

    argv = [f"{tmp_path}/data/*/spool", "--out", str(out), "--now", str(NOW_MS), "--interval", "10s"]
    assert main([*argv, "--max-items", "work=1"]) == 0

    printed, said = capfd.readouterr()
    assert "2 servers, 2 folders, 3 files" in printed
    assert "3 queues: 7 items added, 4 removed, 3 left" in printed
    assert f"the report is {out}/index.html" in printed
    assert "kestrel-report: 1 file has a problem" in said
    page = (out / "index.html").read_text()
    assert "unfinished" in page and "<b> on" not in page and "&lt;b&gt;" in page
    assert SECRET.decode() not in page + printed + said
    assert not [path for path in out.rglob("*") if path.is_file() and SECRET in path.read_bytes()]

    told = json.loads((out / "summary.json").read_text())
    fleet = told["fleet"]
    assert (told["state"], told["now_ms"], told["interval_ms"], told["problems"]) == ("finished", NOW_MS, 10_000, 1)
    assert (fleet["queues"], fleet["items_added"], fleet["items_left"], fleet["head_age_ms"]) == (3, 7, 3, 95_000)
    assert (fleet["waiting"]["max_least_ms"], fleet["waiting"]["max_most_ms"]) == (0, 20_000)
    assert (fleet["redeliveries"]["items"], fleet["redeliveries"]["once"]) == (4, 2)
    assert fleet["expired"]["discarded_maybe"] == 2
    assert [each["server"] for each in told["servers"]] == ["one", "two"]

    def table(name: str) -> list[tuple[object, ...]]:
        return [tuple(row) for row in spark.read.parquet(f"file://{out}/{name}").orderBy("server", "queue").collect()]

    assert sorted(path.name for path in out.iterdir() if path.is_dir()) == [
        *("depth", "expired", "histories", "problems", "queues", "rankings", "redeliveries", "throughput", "waiting")
    ]
    assert len(table("histories")) == 7
    assert [row[:3] for row in table("queues")] == [
        *(("fleet", None, None), ("server", "one", None), ("queue", "one", "<b>"), ("queue", "one", "work")),
        *(("server", "two", None), ("queue", "two", "work")),
    ]
    assert [row[0] for row in table("problems")] == ["two"]
    assert spark.conf.get("spark.sql.shuffle.partitions") == partitions
    assert spark.range(1).count() == 1  # an existing session remains


def test_folder_without_journals_becomes_a_report(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "spool").mkdir()
    assert main([str(tmp_path / "spool"), "--out", str(tmp_path / "report"), "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert (told["state"], told["fleet"], told["servers"]) == ("finished", None, [])
    assert "There are no journals." in (tmp_path / "report" / "index.html").read_text()


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ([""], "the name of a file or folder cannot be empty"),
        (["--out", ""], "the name of a file or folder cannot be empty"),
        (["--interval", "0"], "an interval must be from 1 ms"),
        (["--interval", "1.0005"], "is not a whole number of milliseconds"),
        (["--interval", "1x"], "is not a duration"),
        (["--max-items", "work"], "is not a queue and its limit: write it as in orders=10000"),
        (["--max-items", "work=0"], "not a whole number of at least 1"),
        (["--now", "yesterday"], "is not a time: write it as in 2026-01-31T12:00:00"),
        (["--now", "0001-01-01"], "outside the range of times in a journal"),
        (["--server", "\udc80"], "accepts only UTF-8 names"),
    ],
)
def test_invalid_arguments_are_explained(
    capsys: pytest.CaptureFixture[str], argv: list[str], sentence: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["/nowhere", *argv])
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err


def test_missing_folder_is_reported_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], has_all: None
) -> None:
    assert main([str(tmp_path / "none"), "--out", str(tmp_path / "report")]) == 2
    assert "name a folder of journals" in capsys.readouterr().err
    assert not (tmp_path / "report").exists()


def test_existing_report_remains_when_spark_cannot_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], has_all: None
) -> None:
    def refuses(tool: str, master: str | None, settings: object) -> NoReturn:
        raise ToolFailed(f"there is no {master}", 1)

    (tmp_path / "spool").mkdir()
    older = ReportFolder(str(tmp_path / "report"))
    older.begin()
    older.finish("page", {MARK: 1})
    monkeypatch.setattr("kestrel.spark.session.session", refuses)
    assert main([str(tmp_path / "spool"), "--out", str(tmp_path / "report"), "--master", "spark://nowhere"]) == 1
    assert "there is no spark://nowhere" in capsys.readouterr().err
    assert older.page.read_text() == "page"
    assert json.loads((tmp_path / "report" / "summary.json").read_text()) == {MARK: 1}


@pytest.fixture
def has_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system where Java may be missing."""
    monkeypatch.setattr("kestrel.spark.startup.shutil.which", lambda *_, **__: "java")


@pytest.mark.parametrize("module", ["matplotlib", "jinja2"])
def test_missing_software_is_named_with_its_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], has_all: None, module: str
) -> None:
    find_spec = importlib.util.find_spec

    def without(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == module else find_spec(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    assert main([str(tmp_path)]) == 2
    assert f"{module} not installed: pip install 'kestrel-mq[spark]'" in capsys.readouterr().err
