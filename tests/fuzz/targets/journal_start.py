"""Starts of a server over a journal file of any bytes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from twisted.python.failure import Failure

from kestrel.errors import KestrelError
from kestrel.scroll.records import WRITER_MAGIC
from tests.fuzz import journals
from tests.fuzz.folders import QuickDisk, a_folder
from tests.fuzz.target import Target
from tests.journal.handwritten import addx
from tests.journal.restarts import Journal, check_recovery, files_of


def check(data: bytes) -> None:
    """No byte is lost and no good record, and the second start finds what the first one left.

    What begins as a scroll's file is a queue that is not served, and stays as it is.
    """
    with a_folder() as folder:
        if data.startswith(WRITER_MAGIC):
            _check_refusal(folder, data)
            return
        check_recovery(folder, data, QuickDisk())
        left = files_of(folder)
        journal = Journal(folder, QuickDisk())
        items = journal.items()
        journal.put(b"new")
        assert journal.items() == [*items, (b"new", 1, 0)]
        journal.close()
        assert all(contents.startswith(left[name]) for name, contents in files_of(folder).items() if name in left)


def _check_refusal(folder: Path, data: bytes) -> None:
    folder.mkdir()
    (folder / "work").write_bytes(data)
    journal = Journal(folder, QuickDisk())
    failure = journal.loaded[b"work"]
    assert isinstance(failure, Failure) and isinstance(failure.value, KestrelError)
    journal.close()
    assert files_of(folder)["work"] == data


def seeds() -> Mapping[str, bytes]:
    return journals.seeds() | {"scroll": WRITER_MAGIC + addx(b"a")}


TARGET = Target(check, seeds, lambda: journals.WORDS, journals.mended, most_bytes=1024)
