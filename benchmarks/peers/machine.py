"""The description of the machine."""

from __future__ import annotations

import os
import platform
import re
import tempfile
from datetime import UTC, datetime
from pathlib import Path

IN_MEMORY = frozenset({"tmpfs", "ramfs"})
"""File systems on which a sync costs nothing."""


def cpu_model() -> str:
    """Return the name of the processor."""
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.machine()


def file_system(path: str) -> str:
    """Return the type of the file system that holds the path."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    holding = [(where, kind) for where, kind in mounts if os.path.commonpath((where, os.path.realpath(path))) == where]
    return max(holding, key=lambda mount: len(mount[0]))[1]


def describe() -> dict[str, object]:
    """Return the date, processor and system, and the folder of the servers."""
    folder = tempfile.gettempdir()
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.platform(),
        "folder": folder,
        "file_system": file_system(folder),
        "load_average": os.getloadavg()[0],
    }
