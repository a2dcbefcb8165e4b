"""Progress lines."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from twisted.internet.task import Clock

from kestrel.tools.progress import LARGE_BYTES, LARGE_LOAD_BYTES, SLOW_LOAD_S, ByteProgress, LoadProgress
from tests.journal.handwritten import addx
from tests.tools.tool_processes import command, on_a_terminal


class Terminal(io.StringIO):
    """A terminal that records its output."""

    def isatty(self) -> bool:
        return True


def test_line_shows_bytes_speed_and_remaining_time() -> None:
    terminal, clock = Terminal(), Clock()
    with ByteProgress("work: reading", 400_000_000, terminal, clock.seconds) as progress:
        clock.advance(2)
        progress.advance(100_000_000)
        assert terminal.getvalue() == "\rwork: reading: 25%  100 of 400 MB  50 MB/s  0:06 left\x1b[K"
    assert terminal.getvalue().endswith("left\x1b[K\r\x1b[K")


def test_large_work_is_shown_from_the_beginning() -> None:
    terminal, clock = Terminal(), Clock()
    with ByteProgress("work", 400_000_000, terminal, clock.seconds) as progress:
        progress.advance(1_000_000)
    assert terminal.getvalue() == "\rwork: 0%  1 of 400 MB  0 MB/s  0:00 left\x1b[K\r\x1b[K"


def test_line_is_drawn_at_most_ten_times_a_second() -> None:
    terminal, clock = Terminal(), Clock()
    with ByteProgress("work", 400_000_000, terminal, clock.seconds) as progress:
        for _ in range(1000):
            clock.advance(0.001)
            progress.advance(1)
    assert 5 < terminal.getvalue().count("MB/s") <= 10


def test_bytes_read_again_do_not_count() -> None:
    progress = ByteProgress("work", 100)
    progress.reached(b"a", 50)
    progress.reached(b"a", 20)
    progress.reached(b"b", 10)
    progress.reached(b"a", 60)
    assert progress.done == 70


@pytest.mark.parametrize(("make", "total"), [(Terminal, LARGE_BYTES - 1), (io.StringIO, LARGE_BYTES)])
def test_small_work_and_files_show_no_progress(make: Callable[[], io.StringIO], total: int) -> None:
    terminal, clock = make(), Clock()
    with ByteProgress("work", total, terminal, clock.seconds) as progress:
        clock.advance(10)
        progress.advance(1)
    assert terminal.getvalue() == ""


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """Return a folder with a queue of about 70 MB."""
    (tmp_path / "work").write_bytes(addx(b"x" * 70_000) * 1000)
    return tmp_path


def test_large_journal_shows_its_progress(large: Path) -> None:
    status, said = on_a_terminal(command("qdump", "-q", large / "work"))
    assert status == 0
    assert b"work: reading: " in said
    status, said = on_a_terminal(command("qpack", "--verify", large))
    assert status == 0
    assert b"work: reading: " in said
    assert b" of 70 MB" in said
    assert said.endswith(b"\r\x1b[K")


# Loads of items.


def test_large_load_shows_a_bar_from_the_beginning() -> None:
    terminal, clock = Terminal(), Clock()
    with LoadProgress(LARGE_LOAD_BYTES * 100, terminal, clock.seconds) as progress:
        progress.reached(0, 0)
        assert terminal.getvalue() == "\r[>                   ] 0%  0 items  0/s  0.0 of 419.4 MB  0:00 left\x1b[K"
        clock.advance(30)
        progress.reached(600_000, LARGE_LOAD_BYTES * 25)
        progress.reached(600_001, LARGE_LOAD_BYTES * 25)
        assert terminal.getvalue().endswith(
            "\r[=====>              ] 25%  600000 items  20000/s  104.9 of 419.4 MB  1:30 left\x1b[K"
        )
    assert terminal.getvalue().endswith("left\x1b[K\r\x1b[K")


def test_bar_is_full_at_the_end() -> None:
    terminal, clock = Terminal(), Clock()
    progress = LoadProgress(LARGE_LOAD_BYTES, terminal, clock.seconds)
    clock.advance(1)
    progress.reached(10, LARGE_LOAD_BYTES + 1)
    assert terminal.getvalue() == "\r[====================] 100%  10 items  10/s  4.2 of 4.2 MB  0:00 left\x1b[K"


@pytest.mark.parametrize("total", [LARGE_LOAD_BYTES - 1, None])
def test_small_load_is_shown_when_it_is_slow(total: int | None) -> None:
    terminal, clock = Terminal(), Clock()
    with LoadProgress(total, terminal, clock.seconds) as progress:
        clock.advance(SLOW_LOAD_S - 0.01)
        progress.reached(1, 1)
        assert terminal.getvalue() == ""
        clock.advance(0.01)
        progress.reached(5000, 1_000_000)
        assert "5000 items  5000/s  1.0 " in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_fast_load_and_files_show_no_progress() -> None:
    clock = Clock()
    for stream in (io.StringIO(), Terminal()):
        with LoadProgress(None, stream, clock.seconds) as progress:
            if not stream.isatty():
                clock.advance(10)
            progress.reached(1, 1)
        assert stream.getvalue() == ""
