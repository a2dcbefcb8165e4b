"""Notes about failed syncs for the next process.

After a failed sync, data may exist only in the memory of the operating system. Any process can still read it there. A
later sync succeeds without writing it, so records that are appended then follow a hole. The next process therefore has
to know which files had a failed sync and were not rewritten since. A note needs no sync itself: a power failure also
removes the data from memory, and leaves what is on the disk.
"""

from __future__ import annotations

from contextlib import suppress

from twisted.logger import Logger

from kestrel.disk.files import Disk
from kestrel.disk.folders import FAILED_SYNCS_FOLDER

log = Logger(__name__)


class FailedSyncs:
    """The names with files whose sync has failed. Names must be valid file names. Safe to use from any thread."""

    def __init__(self, disk: Disk, folder: bytes) -> None:
        self._disk = disk
        self._folder = folder + b"/" + FAILED_SYNCS_FOLDER
        self._names: set[bytes] = set()

    def load(self) -> None:
        """Load the notes of earlier processes, if there are any. Raises OSError."""
        with suppress(FileNotFoundError, NotADirectoryError):
            self._names.update(self._disk.list_files(self._folder))

    def __contains__(self, name: bytes) -> bool:
        return name in self._names

    def add(self, name: bytes) -> None:
        """Note that a sync of a file of `name` has failed.

        If the note cannot be written, only this process knows about it.
        """
        if name in self._names:
            return
        self._names.add(name)
        try:
            self._disk.make_folder(self._folder)
            self._disk.close(self._disk.open_append(self._folder + b"/" + name))
        except OSError as error:
            log.error("Cannot record that a sync of {name!r} has failed: {reason}", name=name, reason=error.strerror)

    def discard(self, name: bytes) -> None:
        """Remove the note, because no file of `name` holds data from before a failed sync."""
        if name not in self._names:
            return
        self._names.discard(name)
        with suppress(OSError):  # the next process then rewrites the files needlessly
            self._disk.erase(self._folder + b"/" + name)
