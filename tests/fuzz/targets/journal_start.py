"""Starts of a server with a journal file of any bytes."""

from __future__ import annotations

from pathlib import Path

from twisted.python.failure import Failure

from kestrel.errors import KestrelError
from kestrel.scroll.records import WRITER_MAGIC
from tests.fuzz import journal_inputs
from tests.fuzz.scratch_folder import scratch_folder
from tests.fuzz.target import Target
from tests.journal.restarts import Journal, check_recovery, files_of
from tests.torture.damage import Unsynced


def check(data: bytes) -> None:
    """Check that no byte and no good record is lost, and that a second start finds the state that the first one left.

    A file that begins like a scroll must be refused and stay unchanged.
    """
    with scratch_folder() as folder:
        if data.startswith(WRITER_MAGIC):
            _check_refusal(folder, data)
            return
        check_recovery(folder, data, Unsynced())
        left = files_of(folder)
        journal = Journal(folder, Unsynced())
        items = journal.items()
        journal.put(b"new")
        assert journal.items() == [*items, (b"new", 1, 0)]
        journal.close()
        assert all(contents.startswith(left[name]) for name, contents in files_of(folder).items() if name in left)


def _check_refusal(folder: Path, data: bytes) -> None:
    folder.mkdir()
    (folder / "work").write_bytes(data)
    journal = Journal(folder, Unsynced())
    failure = journal.loaded[b"work"]
    assert isinstance(failure, Failure) and isinstance(failure.value, KestrelError)
    journal.close()
    assert files_of(folder)["work"] == data


TARGET = Target(check, lambda: journal_inputs.WORDS, journal_inputs.repaired, max_bytes=1024)
