"""Disk faults, clock steps and power failures for real processes: compiles shim.c, preloads it and controls it."""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Self

_SOURCE: Final = Path(__file__).with_suffix(".c")
_COMPILE_S: Final = 120.0

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
    "operations",
    "dies_at",
)
"""The fields of `struct control` in shim.c, each an int64."""

FILES: Final = 65536
"""The number of files whose synced size is recorded. An inode and a size for each follow the fields."""

NOTE: Final = struct.Struct("@qq")
HEADER: Final = struct.Struct("@iiqq")
"""`struct header` of shim.c: kind, size of the path, offset, size of the data."""

_BYTES: Final = 8 * len(FIELDS) + NOTE.size * FILES

KINDS: Final = ("write", "truncate", "sync", "rename", "remove")
"""The names of `enum kind` in shim.c."""


def compiler() -> str | None:
    """Return the path of the C compiler; None if there is none."""
    return shutil.which("gcc") or shutil.which("cc")


class Shim:
    """The disk and the clock of processes that run with `environment`. Faults concern regular files below `files` only.

    Needs a C compiler. With `has_log`, all file operations below `files` are recorded for `operations`. Close it after
    use.
    """

    def __init__(self, folder: Path, files: Path, *, has_log: bool = False) -> None:
        """Compile the library into `folder`. Raise FileNotFoundError without a C compiler."""
        compile_with = compiler()
        if compile_with is None:
            raise FileNotFoundError("no C compiler: install gcc")
        library, control = folder / "shim.so", folder / "shim.control"
        subprocess.run(
            [compile_with, "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(library), str(_SOURCE), "-ldl"],
            check=True,
            stdin=subprocess.DEVNULL,
            timeout=_COMPILE_S,
        )
        control.write_bytes(bytes(_BYTES))
        with control.open("r+b") as file:
            self._mapped = mmap.mmap(file.fileno(), _BYTES)
        self._files = files.resolve()
        self._log = folder / "shim.log"
        self.environment: Final = {
            "LD_PRELOAD": str(library),
            "KESTREL_SHIM_CONTROL": str(control),
            "KESTREL_SHIM_FOLDER": str(self._files),
        }
        if has_log:
            self._log.touch()
            self.environment["KESTREL_SHIM_LOG"] = str(self._log)

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
        """Leave that much room on the disk. Removing or shortening files frees more."""
        self["free_bytes"] = free_bytes
        self["is_full"] = 1

    def heal(self) -> None:
        """End all faults of the disk. The clock keeps its offset."""
        for field in ("is_full", "write_fails", "sync_fails"):
            self[field] = 0

    def power_fails(self) -> int:
        """Cut each file to the size that a sync has reached. Return the number of bytes that were lost.

        Call it when the server is dead. It works for files that are only appended to, however large. For other files
        use the log and `files_after_power_failure`. Data after a failed sync is lost. File names survive.
        """
        synced = {}
        for place in range(8 * len(FIELDS), len(self._mapped), NOTE.size):
            inode, size = NOTE.unpack_from(self._mapped, place)
            if inode:
                synced[inode] = size if size >= 0 else -1 - size
                # The next run starts with the remaining bytes.
                NOTE.pack_into(self._mapped, place, inode, synced[inode])
        lost = 0
        for path in self._files.rglob("*"):
            if path.is_file():
                status = path.stat()
                kept = min(status.st_size, synced.get(status.st_ino, 0))
                lost += status.st_size - kept
                os.truncate(path, kept)
        return lost

    def set_clock(self, ahead_s: float) -> None:
        """Put the processes' time of day that many seconds ahead of the machine's."""
        self["clock_offset_ns"] = int(ahead_s * 1e9)

    @property
    def log_size(self) -> int:
        """The size of the log in bytes: a point in time for `FileOperation.end`."""
        return self._log.stat().st_size

    def operations(self) -> list[FileOperation]:
        """Return the recorded operations in order, with paths relative to `files`."""
        return list(_read_log(self._log.read_bytes(), self._files))


class FileOperation(NamedTuple):
    """A file operation that succeeded."""

    kind: str
    path: str
    offset: int
    """The offset of a write; the new size for a truncation."""
    data: bytes
    """The data of a write; the new path for a rename."""
    end: int
    """The offset in the log after this operation."""


def _read_log(log: bytes, files: Path) -> Iterator[FileOperation]:
    place = 0
    while place < len(log):
        kind, path_size, offset, data_size = HEADER.unpack_from(log, place)
        path = log[place + HEADER.size : place + HEADER.size + path_size]
        place += HEADER.size + path_size + data_size
        data = log[place - data_size : place]
        if KINDS[kind] == "rename":
            data = os.fsencode(os.path.relpath(os.fsdecode(data), files))
        yield FileOperation(KINDS[kind], os.path.relpath(os.fsdecode(path), files), offset, data, place)


def unsynced_operations(operations: Sequence[FileOperation]) -> list[int]:
    """Return the indexes of the writes and truncations that no later sync of their file follows."""
    waiting: dict[str, list[int]] = {}
    for place, operation in enumerate(operations):
        if operation.kind in {"write", "truncate"}:
            waiting.setdefault(operation.path, []).append(place)
        elif operation.kind == "rename":
            waiting[os.fsdecode(operation.data)] = waiting.pop(operation.path, [])
        else:
            waiting.pop(operation.path, None)
    return sorted(place for places in waiting.values() for place in places)


def files_after_power_failure(operations: Sequence[FileOperation], lost: Collection[int]) -> dict[str, bytes]:
    """Return the files that these operations leave, without the operations whose indexes are in `lost`.

    With an empty `lost` these are the files after a killed process. File names are durable at once.
    """
    files: dict[str, bytearray] = {}
    for place, operation in enumerate(operations):
        if operation.kind == "remove":
            files.pop(operation.path, None)
        elif operation.kind == "rename":
            files[os.fsdecode(operation.data)] = files.pop(operation.path, bytearray())
        else:
            file = files.setdefault(operation.path, bytearray())
            if operation.kind != "sync" and place not in lost:
                size = operation.offset if operation.kind == "truncate" else operation.offset + len(operation.data)
                file.extend(bytes(max(0, size - len(file))))
                if operation.kind == "truncate":
                    del file[size:]
                else:
                    file[operation.offset : size] = operation.data
    return {path: bytes(file) for path, file in files.items()}


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write these files, by relative path, to a new folder."""
    folder.mkdir()
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
