"""kestrel-fleet reports mistakes of its command line before Spark is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from kestrel.spark.fleet_cli import main
from tests.journal.handwritten import addx
from tests.tools.tool_processes import fill


def ends(*arguments: object) -> int:
    try:
        return main([str(each) for each in arguments])
    except SystemExit as end:
        assert isinstance(end.code, int)
        return end.code


@pytest.mark.parametrize("command", [(), ("verify",), ("pack",), ("export",), ("import",)])
def test_help_has_examples(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert ends(*command, "--help") == 0
    shown = capsys.readouterr().out
    assert f"  kestrel-fleet {command[0] if command else 'verify'} " in shown.partition("examples:\n")[2]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["verify", "missing"], "there is no "),
        (["verify", "nothing*"], "nothing matches nothing*: name a folder of journals"),
        (["pack", "s3://bucket/spool"], "journals are read from folders that every worker can see"),
        (["export", ".", "--out", ".", "--format", "parquet"], ". already exists: name another folder for the items"),
        (["export", ".", "--out", "x"], "the following arguments are required: --format"),
        (["export", ".", "--out", "x", "--format", "jsonl", "--added", "--queued"], "not allowed with argument"),
        (["verify", "--queue", "a.b", "."], "no queue can have the name 'a.b'"),
        (["import", "items"], "the following arguments are required: --into"),
        (["verify", ""], "the name of a file or folder cannot be empty"),
        (["export", ".", "--out", "", "--format", "jsonl"], "the name of a file or folder cannot be empty"),
        (["import", "items", "--into", ""], "the name of a file or folder cannot be empty"),
        ([], "the following arguments are required: COMMAND"),
    ],
)
def test_invalid_arguments_are_refused_with_2(
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(fill(tmp_path, {"work": addx(b"x")}))
    assert ends(*arguments) == 2
    out, said = capsys.readouterr()
    assert (out, sentence in said) == ("", True)


def test_without_java_nothing_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ends("verify", tmp_path) == 2
    assert "apt-get install openjdk-17-jre-headless" in capsys.readouterr().err
