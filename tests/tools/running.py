"""The tools run as a person runs them: in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def command(tool: str, *arguments: object) -> list[str]:
    """What the installed command runs."""
    return [sys.executable, "-m", f"kestrel.tools.{tool}", *map(str, arguments)]


def run(tool: str, *arguments: object) -> subprocess.CompletedProcess[bytes]:
    """Run it to its end."""
    return subprocess.run(command(tool, *arguments), capture_output=True, env=ENVIRONMENT, check=False, timeout=120)


def fill(folder: Path, files: dict[str, bytes]) -> Path:
    """Write these files to the folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, contents in files.items():
        (folder / name).write_bytes(contents)
    return folder
