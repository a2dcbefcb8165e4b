"""A disk that fails, a clock that steps, and power failures, for real servers: shim.c compiled, loaded into them, and
controlled.
"""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
from pathlib import Path
from typing import Final, Self

from tests.child import LONG_S

_SOURCE: Final = Path(__file__).with_suffix(".c")

FIELDS: Final = (
    "clock_offset_ns",
    "is_full",
    "free_bytes",
    "write_fails",
    "sync_fails",
    "refused",
    "failed_writes",
    "failed_syncs",
    "writes",
    "syncs",
)
"""As `struct control` of shim.c, each an int64."""

FILES: Final = 65536
"""Of so many files it is noted how much is synced: behind the fields, an inode and a size for each."""

NOTE: Final = struct.Struct("@qq")

_BYTES: Final = 8 * len(FIELDS) + NOTE.size * FILES


class Shim:
    """What a server with this `environment` has of disk and clock. Faults hold for regular files below `files` alone.

    It wants a C compiler. To be closed.
    """

    def __init__(self, folder: Path, files: Path) -> None:
        library, control = folder / "shim.so", folder / "shim.control"
        subprocess.run(
            ["cc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(library), str(_SOURCE), "-ldl"],
            check=True,
            stdin=subprocess.DEVNULL,
            timeout=LONG_S,
        )
        control.write_bytes(bytes(_BYTES))
        with control.open("r+b") as file:
            self._mapped = mmap.mmap(file.fileno(), _BYTES)
        self._files = files
        self.environment: Final = {
            "LD_PRELOAD": str(library),
            "KESTREL_SHIM_CONTROL": str(control),
            "KESTREL_SHIM_FOLDER": str(files.resolve()),
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._mapped.close()

    def __getitem__(self, field: str) -> int:
        (value,) = struct.unpack_from("@q", self._mapped, 8 * FIELDS.index(field))
        return int(value)

    def __setitem__(self, field: str, value: int) -> None:
        struct.pack_into("@q", self._mapped, 8 * FIELDS.index(field), value)

    def disk_is_full(self, free_bytes: int) -> None:
        """From now on there is so much room, and what is erased."""
        self["free_bytes"] = free_bytes
        self["is_full"] = 1

    def heal(self) -> None:
        """The disk is well again; the clock stays where it is."""
        for field in ("is_full", "write_fails", "sync_fails"):
            self[field] = 0

    def power_fails(self) -> int:
        """Now that the server is dead, each file is cut to what a sync has reached. Returns how many bytes that costs.

        Where a sync has failed, those behind it have reached nothing more. The names are as they were: what an
        unsynced folder would lose is not tried.
        """
        synced = {}
        for place in range(8 * len(FIELDS), len(self._mapped), NOTE.size):
            inode, size = NOTE.unpack_from(self._mapped, place)
            if inode:
                synced[inode] = size if size >= 0 else -1 - size
                NOTE.pack_into(self._mapped, place, inode, synced[inode])  # what is left is what it seems to be
        lost = 0
        for path in self._files.rglob("*"):
            if path.is_file():
                status = path.stat()
                kept = min(status.st_size, synced.get(status.st_ino, 0))
                lost += status.st_size - kept
                os.truncate(path, kept)
        return lost

    def set_clock(self, ahead_s: float) -> None:
        """The server's time of day is that much ahead of ours."""
        self["clock_offset_ns"] = int(ahead_s * 1e9)
