"""Files in the working folder of a worker, by which a test observes its calls and holds them at a FIFO, the gate."""

from __future__ import annotations

import os
from pathlib import Path


def lines_of(folder: Path, name: str) -> list[str]:
    """Return the lines that calls have written to a file."""
    path = folder / name
    return path.read_text().splitlines() if path.exists() else []


def open_gate(folder: Path) -> None:
    """Let all calls that wait at the gate continue, and no call wait there from now on."""
    (folder / "file").touch()
    gate = os.open(folder / "gate", os.O_WRONLY)
    (folder / "file").replace(folder / "gate")
    os.close(gate)
