"""The program around the targets: what it says of a run, and how it ends."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.fuzz import __main__, running, target
from tests.fuzz.running import Length, Result, Told, escaped, fuzz

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


def told(text: str) -> Told:
    reader = Told()
    for line in text.splitlines():
        reader.line(line)
    return reader


def test_what_libfuzzer_says_is_read() -> None:
    reader = told(f"INFO: Instrumenting kestrel.item\n{STATUS}\n{NEW}\n{STATISTICS}")
    assert (reader.runs, reader.coverage, reader.features) == (5000, 63, 215)
    assert (reader.peak_mib, reader.new_inputs, reader.artifact, reader.is_done) == (51, 83, None, True)
    assert not any("Instrumenting" in line for line in reader.last_lines)


def test_only_a_status_line_is_progress() -> None:
    assert [Told().line(line) for line in (STATUS, NEW, "stat::peak_rss_mb: 51", "KeyError: 'work'")] == [
        True, True, False, False,
    ]  # fmt: skip


def test_a_finding_is_read_with_what_was_said_of_it() -> None:
    reader = told(f"{STATUS}\n{CRASH}")
    assert reader.artifact == Path("build/fuzz/memcache-crash-9a7e")
    assert "KeyError: 'work'" in reader.last_lines
    assert not reader.is_done


def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], said: str, status: int
) -> tuple[Result, str]:
    """What comes of a process that says that and ends so."""
    program = f"import sys; sys.stderr.write({said!r}); sys.exit({status})"
    monkeypatch.setattr(running, "command", lambda *_: [sys.executable, "-c", program])
    result = fuzz("memcache", Length(1), 1, Path("build/fuzz"))
    return result, capsys.readouterr().out


def test_a_run_without_a_finding_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result, said = run(monkeypatch, capsys, f"{STATUS}\n{STATISTICS}", 0)
    assert result.has_passed
    assert said.count("\n") == 1
    figures = ("memcache", "5,000 runs", "454/s", "coverage    62", "peak   51 MiB", "new inputs   83", "findings 0")
    assert [figure for figure in figures if figure not in said] == []


def test_a_finding_is_told_with_its_input_and_the_way_to_try_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result, said = run(monkeypatch, capsys, f"{STATUS}\n{CRASH}", 77)
    assert (result.has_passed, result.artifact) == (False, Path("build/fuzz/memcache-crash-9a7e"))
    assert "findings 1" in said and "KeyError: 'work'" in said
    assert "python -m tests.fuzz memcache --replay build/fuzz/memcache-crash-9a7e" in said


@pytest.mark.parametrize(("said", "status"), [(STATUS, 0), (STATUS, 1), (STATISTICS, 1), ("", 0)])
def test_a_process_that_ends_otherwise_has_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], said: str, status: int
) -> None:
    result, output = run(monkeypatch, capsys, said, status)
    assert not result.has_passed
    assert f"the process ended with status {status} and left no input" in output


def test_the_end_counts_what_passed_and_fails_if_something_did_not(capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = Result("text", True), Result("memcache", False)
    assert (__main__.summed_up([good, good]), __main__.summed_up([good, bad])) == (0, 1)
    assert capsys.readouterr().out == "2 passed, 0 failed\n1 passed, 1 failed\n"


def test_the_process_is_bounded_and_is_given_what_is_known(tmp_path: Path) -> None:
    command = running.command("memcache", Length(7), 3, tmp_path)
    assert command[:2] == ["timeout", str(7 + running.OVERTIME_S)]
    assert {"-max_total_time=7", "-seed=3", "-timeout=10", "-rss_limit_mb=512"} <= set(command)
    assert command[-2:] == [str(tmp_path / "corpus" / "memcache"), str(target.CORPUS / "memcache")]
    assert '"\\x67\\x65\\x74\\x20"\n' in (tmp_path / "memcache.dict").read_text()


def test_words_are_written_so_that_any_byte_can_be_in_one() -> None:
    assert escaped(b'"\\\x00\xff') == "\\x22\\x5c\\x00\\xff"


@pytest.mark.parametrize("name", target.names())
def test_no_word_of_a_target_is_empty(name: str) -> None:
    assert all(target.load(name).words())


# The command.


def test_an_input_is_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "input"
    file.write_bytes(b"get work\r\n")
    assert __main__.main(["memcache", "--replay", str(file)]) == 0
    assert capsys.readouterr().out == f"memcache: {file}: nothing found\n"


def test_what_a_replayed_input_raises_is_raised(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "input"
    file.write_bytes(b"x = 1")

    def fail(path: Path) -> None:
        raise KeyError("planted")

    monkeypatch.setattr("tests.fuzz.targets.config.load", fail)
    with pytest.raises(KeyError, match="planted"):
        __main__.main(["config", "--replay", str(file)])


def test_seeds_are_written_and_what_was_found_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(target, "CORPUS", tmp_path)
    (tmp_path / "units").mkdir()
    (tmp_path / "units" / "found").write_bytes(b"1x")
    assert __main__.main(["units", "--seeds"]) == 0
    assert {"found", *target.load("units").seeds()} == {path.name for path in (tmp_path / "units").iterdir()}


def test_a_target_that_there_is_not_is_told_with_those_that_there_are() -> None:
    with pytest.raises(SystemExit, match=r"no target memcached: there are .*memcache_session"):
        __main__.main(["memcached", "--seconds", "1"])


def test_without_atheris_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(__main__, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"atheris is not installed.*\[fuzz\]"):
        __main__.main(["units", "--seconds", "1"])


def test_a_number_of_inputs_is_the_same_work_on_any_machine(tmp_path: Path) -> None:
    command = running.command("memcache", Length(7, runs=300), 3, tmp_path)
    assert "-runs=300" in command
    assert not any(option.startswith("-max_total_time") for option in command)
