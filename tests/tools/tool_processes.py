"""The tools run as a person runs them: in a process of their own, and on a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

from tests.child import Child
from tests.server.running import Server

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
ENVIRONMENT.pop("PYTHONUNBUFFERED", None)  # with it everything is written at once, and no flush would be missed


def command(tool: str, *arguments: object) -> list[str]:
    """What the installed command runs."""
    return [sys.executable, "-m", f"kestrel.tools.{tool}.command", *map(str, arguments)]


def environment(server: Server) -> dict[str, str]:
    """For kestrel-cli: it asks that server."""
    return {**ENVIRONMENT, "KESTREL_SERVERS": f"127.0.0.1:{server.port}"}


def run(tool: str, *arguments: object) -> subprocess.CompletedProcess[bytes]:
    """Run it to its end."""
    return subprocess.run(command(tool, *arguments), capture_output=True, env=ENVIRONMENT, check=False, timeout=120)


def on_a_terminal(
    arguments: list[str],
    stdin: int = subprocess.DEVNULL,
    stdout: int = subprocess.DEVNULL,
    env: dict[str, str] = ENVIRONMENT,
    *,
    is_for: str = "stderr",
    typed: bytes = b"",
) -> tuple[int, bytes]:
    """The exit status of a command, and what it says on a terminal, which is its standard error, or all of its files.

    `is_for` is ``stderr``, ``stdout`` or ``all``; `typed` is typed at once.
    """
    ours, theirs = pty.openpty()
    os.write(ours, typed)
    with Child(
        arguments,
        stdin=theirs if is_for == "all" else stdin,
        stdout=stdout if is_for == "stderr" else theirs,
        stderr=subprocess.DEVNULL if is_for == "stdout" else theirs,
        env=env,
    ) as process:
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
    return process.returncode, said


def fill(folder: Path, files: dict[str, bytes]) -> Path:
    """Write these files to the folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, contents in files.items():
        (folder / name).write_bytes(contents)
    return folder
