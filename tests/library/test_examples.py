"""The example programs of the library run and print the expected lines."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kestrel.disk.lock import FolderLock

ROOT = Path(__file__).resolve().parents[2]
LONG_S = 60

BLOCKING_QUEUE = """\
waiting workers: 1
fold is refused: 2 jobs wait already
worker 1: wash must be done again
worker 1: wash is done
worker 1: dry is done
worker 1: iron is done
3 jobs are done
the latest price is 12, 2 were dropped
"""

FIRST_TIME = """\
mail: 0 events are left from the last run
mail: ann signs up
mail: bob signs up has failed 3 times and is dropped
count: 1 events are new
a step: knead the dough
0 steps are left
"""

SECOND_TIME = """\
mail: 1 events are left from the last run
mail: cleo signs up
mail: ann signs up
mail: bob signs up has failed 3 times and is dropped
count: 3 events are new
a step: knead the dough
0 steps are left
"""


def start(name: str, *args: str) -> subprocess.CompletedProcess[str]:
    """Run an example until it ends."""
    program = [sys.executable, str(ROOT / "examples" / name), *args]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(program, capture_output=True, text=True, timeout=LONG_S, env=environment, check=False)


def run(name: str, *args: str) -> str:
    """Return the output of an example, which must succeed without errors."""
    done = start(name, *args)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize(
    ("name", "output"), [("blocking_queue.py", BLOCKING_QUEUE), ("journaled_queue.py", FIRST_TIME)]
)
def test_example_runs_to_its_end(name: str, output: str) -> None:
    assert run(name) == output


def test_example_continues_with_its_folder(tmp_path: Path) -> None:
    folder = str(tmp_path / "events")
    assert [run("journaled_queue.py", folder) for _ in range(2)] == [FIRST_TIME, SECOND_TIME]


@pytest.mark.parametrize("name", ["library.py", "journaled_queue.py"])
def test_example_reports_a_folder_in_use_in_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / ".kestrel").mkdir()
    lock = FolderLock(os.fsencode(tmp_path / ".kestrel" / "lock"))
    try:
        done = start(name, str(tmp_path))
    finally:
        lock.release()
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("the folder cannot be used: ")
    assert done.stderr.count("\n") == 1
