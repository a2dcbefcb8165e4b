"""The line that says how far a long work is."""

from __future__ import annotations

import io
import os
import pty
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from twisted.internet.task import Clock

from kestrel.tools.progress import LARGE_BYTES, Progress
from tests.journal.made import addx
from tests.tools.running import ENVIRONMENT, command


class Terminal(io.StringIO):
    """A terminal that keeps what is written to it."""

    def isatty(self) -> bool:
        return True


def test_it_says_how_much_is_done_how_fast_and_how_long_it_will_take() -> None:
    terminal, clock = Terminal(), Clock()
    with Progress("work: reading", 400_000_000, terminal, clock.seconds) as progress:
        clock.advance(2)
        progress.advance(100_000_000)
        assert terminal.getvalue() == "\rwork: reading: 25%  100 of 400 MB  50 MB/s  0:06 left\x1b[K"
    assert terminal.getvalue().endswith("left\x1b[K\r\x1b[K")


def test_it_is_drawn_no_more_often_than_one_can_see() -> None:
    terminal, clock = Terminal(), Clock()
    with Progress("work", 400_000_000, terminal, clock.seconds) as progress:
        for _ in range(1000):
            clock.advance(0.001)
            progress.advance(1)
    assert 5 < terminal.getvalue().count("MB/s") <= 10


def test_what_is_read_again_does_not_count() -> None:
    progress = Progress("work", 100)
    progress.reached(b"a", 50)
    progress.reached(b"a", 20)
    progress.reached(b"b", 10)
    progress.reached(b"a", 60)
    assert progress.done == 70


@pytest.mark.parametrize(("make", "total"), [(Terminal, LARGE_BYTES - 1), (io.StringIO, LARGE_BYTES)])
def test_there_is_none_for_small_work_and_none_where_nobody_looks(make: Callable[[], io.StringIO], total: int) -> None:
    terminal, clock = make(), Clock()
    with Progress("work", total, terminal, clock.seconds) as progress:
        clock.advance(10)
        progress.advance(1)
    assert terminal.getvalue() == ""


def on_a_terminal(arguments: list[str], stdout: int = subprocess.DEVNULL) -> bytes:
    """What a command says whose standard error is a terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(arguments, stdout=stdout, stderr=theirs, env=ENVIRONMENT) as process:
        os.close(theirs)
        said = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # how a terminal says that the other side is closed
                break
            if not part:
                break
            said += part
    os.close(ours)
    assert process.returncode == 0
    return said


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A folder with a queue of some 70 MB in small items."""
    run = addx(b"x" * 100) * 10_000
    with (tmp_path / "work").open("wb") as file:
        for _ in range(58):
            file.write(run)
    return tmp_path


def test_a_large_journal_shows_its_progress_on_the_terminal(large: Path) -> None:
    assert b"work: reading: " in on_a_terminal(command("qdump", "-q", large / "work"))
    said = on_a_terminal(command("qpack", "--verify", large))
    assert b"work: reading: " in said
    assert b" of 70 MB" in said
    assert said.endswith(b"\r\x1b[K")


def test_a_small_journal_shows_none(tmp_path: Path) -> None:
    (tmp_path / "work").write_bytes(addx(b"x"))
    assert on_a_terminal(command("qdump", tmp_path / "work")) == b""
