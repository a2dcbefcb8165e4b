"""Scroll files as a server would have written them, made in seconds and reproducible by seed."""

from __future__ import annotations

import os
import random
from array import array
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from benchmarks.journals import ADD_MS, QUEUE
from kestrel.config.model import QueueSettings
from kestrel.scroll.done_set import DoneSet
from kestrel.scroll.fileset import reader_name, writer_name
from kestrel.scroll.name_encoding import DEFAULT_READER, stem_of
from kestrel.scroll.reader_file import ReaderState, encode_state
from kestrel.scroll.records import WRITER_MAGIC, encode_put

_RUN_BYTES: Final = 1 << 20
_ID_AT: Final = 9
_ID_BYTES: Final = 8


class ScrollMaker:
    """A writer of the scroll of one queue without children. All its items have the same size.

    Files are rotated as a server does it. All files are synced at the end.
    """

    def __init__(self, folder: Path, seed: int, item_bytes: int) -> None:
        dice = random.Random(seed)
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = os.fsencode(folder)
        self._record_bytes = len(encode_put(0, bytes(item_bytes), 0, 0))
        self._run = max(1, _RUN_BYTES // self._record_bytes)
        puts = [encode_put(0, dice.randbytes(item_bytes), ADD_MS + n, 0) for n in range(self._run)]
        self._puts = bytearray(b"".join(puts))
        self._file_bytes = QueueSettings().default_journal_size_bytes
        self._number = ADD_MS
        self._next_id = 1
        self._begin_file()

    def put(self, count: int) -> None:
        """Write that many puts."""
        while count > 0:
            room = (self._file_bytes - self._file.tell()) // self._record_bytes
            if not room:
                self._end_file()
                self._number += 1
                self._begin_file()
                continue
            several = min(count, room, self._run)
            self._number_puts()
            self._file.write(memoryview(self._puts)[: several * self._record_bytes])
            self._next_id += several
            count -= several

    def _number_puts(self) -> None:
        ids = array("q", range(self._next_id, self._next_id + self._run)).tobytes()
        for place in range(_ID_BYTES):
            self._puts[_ID_AT + place :: self._record_bytes] = ids[place::_ID_BYTES]

    def take(self, count: int) -> None:
        """Write the state of a reader that has taken that many items in total."""
        stem = stem_of(QUEUE)
        with open(self._folder + b"/" + reader_name(stem, DEFAULT_READER), "wb") as file:
            file.write(encode_state(ReaderState(DoneSet(count))))
            file.flush()
            os.fsync(file.fileno())

    def _begin_file(self) -> None:
        path = self._folder + b"/" + writer_name(stem_of(QUEUE), self._number)
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115
        self._file.write(WRITER_MAGIC)

    def _end_file(self) -> None:
        os.fsync(self._file.fileno())
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_file()
