"""A note of whose files a sync has failed and which were not written anew since, for the process that comes next.

What such a file holds may be in the memory of the system alone. There it is read as if all were well, and a later
sync of it succeeds and means nothing, by another process as well; whatever is appended then stands behind a hole. So
the next process has to know. The note needs no sync: a power failure takes the system's memory along, and leaves only
what is so.
"""

from __future__ import annotations

from contextlib import suppress

from twisted.logger import Logger

from kestrel.disk.files import Disk
from kestrel.disk.folders import FAILED_SYNCS_FOLDER

log = Logger(__name__)


class FailedSyncs:
    """By name, which must be good as a file's. May be told from any thread."""

    def __init__(self, disk: Disk, folder: bytes) -> None:
        self._disk = disk
        self._folder = folder + b"/" + FAILED_SYNCS_FOLDER
        self._names: set[bytes] = set()

    def load(self) -> None:
        """Know what the last process has left. Raises OSError."""
        with suppress(FileNotFoundError, NotADirectoryError):
            self._names.update(self._disk.list_files(self._folder))

    def __contains__(self, name: bytes) -> bool:
        return name in self._names

    def add(self, name: bytes) -> None:
        """A sync of one of its files has failed. What cannot be noted this process knows all the same."""
        if name in self._names:
            return
        self._names.add(name)
        try:
            self._disk.make_folder(self._folder)
            self._disk.close(self._disk.open_append(self._folder + b"/" + name))
        except OSError as error:
            log.error("It is not noted that a sync of {name!r} has failed: {reason}", name=name, reason=error.strerror)

    def discard(self, name: bytes) -> None:
        """Nothing of it is left that a failed sync should have reached."""
        if name not in self._names:
            return
        self._names.discard(name)
        with suppress(OSError):  # then the next process writes its files anew, for nothing
            self._disk.erase(self._folder + b"/" + name)
