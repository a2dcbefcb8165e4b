"""Journal files as a server would have written them, made in seconds and reproducible by seed."""

from __future__ import annotations

import os
import random
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from kestrel.journal.fileset import current_name, rotated_name
from kestrel.journal.records import REMOVE_RECORD, encode_item

QUEUE: Final = b"work"
ADD_MS: Final = 1_700_000_000_000

RUN_BYTES: Final = 1 << 20


class JournalMaker:
    """A writer of the journal of one queue. All its items have the same size and expiry.

    `expiry_ms` is in milliseconds since the epoch; 0 means never. A file larger than `file_bytes` is rotated. `records`
    counts the written records. All files are synced at the end, so that measurements are not disturbed by the system
    writing them back. They remain in the page cache.
    """

    def __init__(
        self, folder: Path, seed: int, item_bytes: int, *, file_bytes: int | None = None, expiry_ms: int = 0
    ) -> None:
        dice = random.Random(seed)
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = os.fsencode(folder)
        self._path = self._folder + b"/" + current_name(QUEUE)
        self._file_bytes = file_bytes
        self._next_number = ADD_MS
        record_bytes = len(encode_item(bytes(item_bytes), 0, 0))
        run = max(1, RUN_BYTES // record_bytes)
        self._puts = [encode_item(dice.randbytes(item_bytes), ADD_MS + n, expiry_ms) for n in range(run)]
        self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115
        self.records = 0
        self.size = 0

    def put(self, count: int) -> None:
        """Write that many puts."""
        self._repeat(self._puts, count)

    def remove(self, count: int) -> None:
        """Write that many removes."""
        self._repeat([REMOVE_RECORD] * RUN_BYTES, count)

    def put_and_remove(self, count: int) -> None:
        """Write that many puts, each followed by a remove."""
        self._repeat([put + REMOVE_RECORD for put in self._puts], count)
        self.records += count

    def _repeat(self, run: list[bytes], count: int) -> None:
        self.records += count
        whole = b"".join(run)
        while count > 0:
            self._write(whole if count >= len(run) else b"".join(run[:count]))
            count -= len(run)

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self.size += len(data)
        if self._file_bytes is not None and self._file.tell() > self._file_bytes:
            self._end_file()
            os.rename(self._path, self._folder + b"/" + rotated_name(QUEUE, self._next_number))
            self._next_number += 1
            self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115

    def _end_file(self) -> None:
        os.fsync(self._file.fileno())
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_file()
