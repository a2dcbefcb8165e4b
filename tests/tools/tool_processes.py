"""Runs the tools in processes of their own, and on terminals."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from tests.child import LONG_S, Child
from tests.server.running import Server

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
ENVIRONMENT.pop("PYTHONUNBUFFERED", None)  # without a buffer, no test could miss a flush


def command(tool: str, *arguments: object) -> list[str]:
    """Return the command line of a tool."""
    module = tool if tool in ("qdump", "qpack") else f"{tool}.command"
    return [sys.executable, "-m", f"kestrel.tools.{module}", *map(str, arguments)]


def environment(server: Server) -> dict[str, str]:
    """Return the environment for kestrel-cli with a server."""
    return {**ENVIRONMENT, "KESTREL_SERVERS": f"127.0.0.1:{server.port}"}


def run(tool: str, *arguments: object, **how: Any) -> subprocess.CompletedProcess[bytes]:
    """Run a tool until it ends. `how` are arguments of `subprocess.run`."""
    return run_command(command(tool, *arguments), **how)


def run_command(arguments: list[str], timeout: float = LONG_S, **how: Any) -> subprocess.CompletedProcess[bytes]:
    """Run a command until it ends. `how` are arguments of `subprocess.run`."""
    usual = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": ENVIRONMENT}
    return subprocess.run(arguments, timeout=timeout, **{**usual, **how})


def on_a_terminal(
    arguments: list[str],
    stdin: int = subprocess.DEVNULL,
    env: dict[str, str] = ENVIRONMENT,
    *,
    is_for: str = "stderr",
    typed: bytes = b"",
) -> tuple[int, bytes]:
    """Run a command on a terminal, and return its exit status and what the terminal received.

    `is_for` names the files that are the terminal: ``stderr``, ``stdout`` or ``all``. `typed` is typed at once.
    """
    ours, theirs = pty.openpty()
    os.write(ours, typed)
    with Child(
        arguments,
        stdin=theirs if is_for == "all" else stdin,
        stdout=subprocess.DEVNULL if is_for == "stderr" else theirs,
        stderr=subprocess.DEVNULL if is_for == "stdout" else theirs,
        env=env,
    ) as process:
        os.close(theirs)
        said = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # the other side is closed
                break
            if not part:
                break
            said += part
    os.close(ours)
    return process.returncode, said


_PEAK: Final = """
import resource, sys
from kestrel.tools.qdump import main
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
before = peak()
status = main(sys.argv[1:])
print(status, peak() - before, file=sys.stderr)
"""


def check_large_dump(form: str, path: Path, *, items: int, most_mib: int) -> None:
    """Check the output and the peak memory of kestrel-qdump for a queue of this many items of 10,000 bytes."""
    program = [sys.executable, "-c", _PEAK, form, str(path)]
    done = run_command(program, check=True)
    status, peak_mib = map(int, done.stderr.split())
    assert (status, peak_mib < most_mib) == (0, True), peak_mib
    if form == "-Q":
        assert len(done.stdout) == items * 10_001
    else:
        assert b"left: %d items" % items in done.stdout


def fill(folder: Path, files: dict[str, bytes]) -> Path:
    """Create a folder with these files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, contents in files.items():
        (folder / name).write_bytes(contents)
    return folder
