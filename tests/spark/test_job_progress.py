"""The line on the terminal while Spark works."""

from __future__ import annotations

import io

from kestrel.spark.job_progress import JobProgress, Stage


class Terminal(io.StringIO):
    """A stream that is one, or is not."""

    def __init__(self, *, is_terminal: bool = True) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


def drawn(*stages: Stage) -> str:
    stream = Terminal()
    JobProgress(None, "verifying", stream, lambda: stages).draw()  # type: ignore[arg-type]
    return stream.getvalue()


def test_it_says_how_many_tasks_are_done_of_all_stages_at_work() -> None:
    assert drawn(Stage(80, 12, 2), Stage(4, 0, 0)) == "\rverifying: 12 of 84 tasks, 2 at work\x1b[K"


def test_it_is_cut_to_the_width_of_the_terminal() -> None:
    stream = Terminal()
    JobProgress(None, "x" * 200, stream, list).draw()  # type: ignore[arg-type]
    assert stream.getvalue() == "\r" + 79 * "x" + "\x1b[K"


def test_before_there_are_tasks_it_says_what_is_done() -> None:
    assert drawn() == "\rverifying\x1b[K"


def test_the_line_goes_at_the_end() -> None:
    stream = Terminal()
    with JobProgress(None, "verifying", stream, list) as progress:  # type: ignore[arg-type]
        progress.draw()
    assert stream.getvalue().endswith("\r\x1b[K")


def test_where_there_is_no_terminal_nothing_is_drawn() -> None:
    stream = Terminal(is_terminal=False)
    with JobProgress(None, "verifying", stream, list):  # type: ignore[arg-type]
        pass
    assert stream.getvalue() == ""
