"""The program that runs the targets."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.fuzz import __main__, runner, target
from tests.fuzz.runner import LibFuzzerOutput, Result, RunLimit, escaped, fuzz

STATUS = "#2048\tpulse  cov: 62 ft: 213 corp: 44/8318b lim: 2048 exec/s: 227 rss: 48Mb"
NEW = "#4096\tNEW    cov: 63 ft: 215 corp: 45/8826b lim: 2048 exec/s: 219 rss: 50Mb L: 542/542 MS: 1 CrossOver-"
STATISTICS = """\
Done 5000 runs in 11 second(s)
stat::number_of_executed_units: 5000
stat::average_exec_per_sec:     454
stat::new_units_added:          83
stat::slowest_unit_time_sec:    0
stat::peak_rss_mb:              51
"""
CRASH = """\
 === Uncaught Python exception: ===
KeyError: 'work'
==27280== ERROR: libFuzzer: fuzz target exited
artifact_prefix='build/fuzz/memcache-'; Test unit written to build/fuzz/memcache-crash-9a7e
"""


def read(text: str) -> LibFuzzerOutput:
    reader = LibFuzzerOutput()
    for line in text.splitlines():
        reader.line(line)
    return reader


def test_output_of_libfuzzer_is_read() -> None:
    reader = read(f"INFO: Instrumenting kestrel.item\n{STATUS}\n{NEW}\n{STATISTICS}")
    assert (reader.runs, reader.coverage, reader.features) == (5000, 63, 215)
    assert (reader.peak_mib, reader.new_inputs, reader.artifact, reader.is_done) == (51, 83, None, True)
    assert not any("Instrumenting" in line for line in reader.last_lines)


def test_only_status_lines_are_progress() -> None:
    assert [LibFuzzerOutput().line(line) for line in (STATUS, NEW, "stat::peak_rss_mb: 51", "KeyError: 'work'")] == [
        True, True, False, False,
    ]  # fmt: skip


def test_finding_is_read_with_its_input() -> None:
    reader = read(f"{STATUS}\n{CRASH}")
    assert reader.artifact == Path("build/fuzz/memcache-crash-9a7e")
    assert "KeyError: 'work'" in reader.last_lines
    assert not reader.is_done


def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], printed: str, status: int
) -> tuple[Result, str]:
    """Return the result and the output for a process with that output and exit status."""
    program = f"import sys; sys.stderr.write({printed!r}); sys.exit({status})"
    monkeypatch.setattr(runner, "command", lambda *_: [sys.executable, "-c", program])
    result = fuzz("memcache", RunLimit(1), 1, Path("build/fuzz"))
    return result, capsys.readouterr().out


def test_run_without_a_finding_prints_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result, output = run(monkeypatch, capsys, f"{STATUS}\n{STATISTICS}", 0)
    assert result.has_passed
    assert output.count("\n") == 1
    figures = ("memcache", "5,000 runs", "454/s", "coverage    62", "peak   51 MiB", "new inputs   83", "findings 0")
    assert [figure for figure in figures if figure not in output] == []


def test_finding_is_printed_with_the_replay_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result, output = run(monkeypatch, capsys, f"{STATUS}\n{CRASH}", 77)
    assert (result.has_passed, result.artifact) == (False, Path("build/fuzz/memcache-crash-9a7e"))
    assert "findings 1" in output and "KeyError: 'work'" in output
    assert "python -m tests.fuzz memcache --replay build/fuzz/memcache-crash-9a7e" in output


@pytest.mark.parametrize(("printed", "status"), [(STATUS, 0), (STATUS, 1), (STATISTICS, 1), ("", 0)])
def test_unexpected_end_of_a_process_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], printed: str, status: int
) -> None:
    result, output = run(monkeypatch, capsys, printed, status)
    assert not result.has_passed
    assert f"the process exited with status {status} without an input" in output


def test_summary_counts_targets_and_sets_the_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = Result("text", True), Result("memcache", False)
    assert (__main__.print_summary([good, good]), __main__.print_summary([good, bad])) == (0, 1)
    assert capsys.readouterr().out == "2 passed, 0 failed\n1 passed, 1 failed\n"


def test_command_has_limits_dictionary_and_corpus(tmp_path: Path) -> None:
    command = runner.command("memcache", RunLimit(7), 3, tmp_path)
    assert command[:2] == ["timeout", str(7 + runner.OVERTIME_S)]
    assert {"-max_total_time=7", "-seed=3", "-timeout=10", "-rss_limit_mb=512"} <= set(command)
    assert command[-2:] == [str(tmp_path / "corpus" / "memcache"), str(target.CORPUS / "memcache")]
    assert '"\\x67\\x65\\x74\\x20"\n' in (tmp_path / "memcache.dict").read_text()


def test_dictionary_words_may_have_any_byte() -> None:
    assert escaped(b'"\\\x00\xff') == "\\x22\\x5c\\x00\\xff"


@pytest.mark.parametrize("name", target.names())
def test_dictionary_words_are_not_empty(name: str) -> None:
    assert all(target.load(name).words())


# The command.


def test_input_is_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "input"
    file.write_bytes(b"get work\r\n")
    assert __main__.main(["memcache", "--replay", str(file)]) == 0
    assert capsys.readouterr().out == f"memcache: {file}: no finding\n"


def test_replay_raises_the_exception(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "input"
    file.write_bytes(b"x = 1")

    def fail(path: Path) -> None:
        raise KeyError("planted")

    monkeypatch.setattr("tests.fuzz.targets.config.load", fail)
    with pytest.raises(KeyError, match="planted"):
        __main__.main(["config", "--replay", str(file)])


def test_unknown_target_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SystemExit, match=r"unknown target memcached; the targets are .*memcache_session"):
        __main__.main(["memcached", "--seconds", "1"])


def test_missing_atheris_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(__main__, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"atheris is not installed.*\[fuzz\]"):
        __main__.main(["units", "--seconds", "1"])


def test_number_of_inputs_replaces_the_time(tmp_path: Path) -> None:
    command = runner.command("memcache", RunLimit(7, runs=300), 3, tmp_path)
    assert "-runs=300" in command
    assert not any(option.startswith("-max_total_time") for option in command)
