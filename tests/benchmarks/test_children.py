"""Child processes of a benchmark end with it, also after a signal during their start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from benchmarks.peers import child_processes
from tests.server.running import ROOT, eventually

TOLD_IN_THE_MIDDLE = """
import os, signal, sys
from benchmarks.peers import child_processes

signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(7))
os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.SIGTERM))
child_processes.start(["sleep", "60"])
print("it goes on")
"""

KILLED = """
import os, signal
from benchmarks.peers import child_processes

print(child_processes.start(["sleep", "60"]).pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", program]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def test_sigterm_during_a_start_ends_the_program() -> None:
    ended = run(TOLD_IN_THE_MIDDLE)
    assert (ended.returncode, ended.stdout, ended.stderr) == (7, "", "")


def test_child_ends_with_its_parent() -> None:
    ended = run(KILLED)
    assert ended.returncode == -signal.SIGKILL
    child = Path("/proc", ended.stdout.strip())
    eventually(lambda: not child.exists() or "(zombie)" in (child / "status").read_text(), "the child is gone")


def test_child_receives_signals_that_were_blocked_during_its_start() -> None:
    process = child_processes.start(["sleep", "60"])
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(60) == -signal.SIGTERM
