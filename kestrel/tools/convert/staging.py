"""The folder beside the target in which the new folder is made: what an earlier run left there, and when it counts.

``TARGET.converting`` has the new folder in ``queues``, which becomes TARGET when it is whole, and beside it what is to
be known when a run goes on: ``state`` (where the items come from, what was found there), ``done`` (a byte for each
family that is written, in their order) and ``lock``. At the very end ``state`` goes to the target's private folder, as
``converted``, and is erased last of all: so it is known to the end that the target is ours, and whole.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from kestrel.disk.files import Disk
from kestrel.disk.folders import PRIVATE_FOLDER
from kestrel.disk.lock import FolderLock
from kestrel.disk.whole_file import WholeFile
from kestrel.errors import FolderInUse
from kestrel.scroll.name_encoding import NAMES_FOLDER
from kestrel.server.startup_errors import EX_CANNOT_CREATE, EX_TRY_AGAIN
from kestrel.tools.convert.families import FolderSums
from kestrel.tools.formatting import show_path
from kestrel.tools.tool_runner import EX_USAGE, ToolFailed, explain_os_error

_SUFFIX: Final = b".converting"
_VERSION: Final = 1
_MOST_BYTES: Final = 1 << 30
_ENTRIES: Final = frozenset({b"state", b"state.new", b"done", b"lock", b"queues"})
_NOT_EMPTY: Final = (errno.ENOTEMPTY, errno.EEXIST)
_CONVERTED: Final = PRIVATE_FOLDER + b"/converted"
_FOLDERS: Final = (NAMES_FOLDER, PRIVATE_FOLDER, b"")
"""Those in the new folder, the innermost first."""


class ConversionState:
    """What is known of a conversion. `files` tells one state of the source's files from another."""

    def __init__(self, source: str, target: str, files: str, now_ms: int) -> None:
        self.source = source
        self.target = target
        self.files = files
        self.now_ms = now_ms
        """The add time of items whose record has none, and the number of the first new file that has one."""
        self.sums: FolderSums | None = None
        """What the source holds; None until it has been read."""
        self.source_bytes = 0
        self.is_verified = False
        """Whether the new folder was compared with that."""

    def as_json(self) -> dict[str, Any]:
        """For the file; `from_json` reads it."""
        sums = None if self.sums is None else self.sums.as_json()
        return {**vars(self), "version": _VERSION, "sums": sums}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ConversionState:
        """What `as_json` gave. Raises ValueError, TypeError or KeyError at anything else."""
        if value["version"] != _VERSION:
            raise ValueError
        state = cls(value["source"], value["target"], value["files"], value["now_ms"])
        state.sums = None if value["sums"] is None else FolderSums.from_json(value["sums"])
        state.source_bytes = value["source_bytes"]
        state.is_verified = value["is_verified"]
        return state


class Staging:
    """The folder beside one target. Methods raise OSError and `ToolFailed`; who changes it has it `owned`."""

    def __init__(self, disk: Disk, target: bytes) -> None:
        self._disk = disk
        self._target = target
        self.path = target + _SUFFIX
        self.queues = self.path + b"/queues"
        """Where the new folder is made."""
        self._state = WholeFile(disk, self.path + b"/state")
        self._converted = WholeFile(disk, target + b"/" + _CONVERTED)

    @contextmanager
    def owned(self) -> Iterator[None]:
        """The folder is there, and no other conversion has it as long as the context lasts."""
        lock = self._own()
        try:
            yield
        finally:
            lock.release()

    def _own(self) -> FolderLock:
        shown = show_path(self.path)
        if os.path.lexists(self.path) and not self._is_ours():
            raise ToolFailed(
                f"{shown} is in the way, and not of an earlier run: rename it, or name another target", EX_USAGE
            )
        try:
            self._disk.make_folder(self.path)
            return FolderLock(self.path + b"/lock")
        except FolderInUse as error:
            raise ToolFailed("another conversion to the same target is at work: wait for it", EX_TRY_AGAIN) from error
        except PermissionError as error:
            raise ToolFailed(
                f"user {os.geteuid()} cannot make {shown}, which becomes the target: name a target in a folder in which"
                " that user may make one",
                EX_CANNOT_CREATE,
            ) from error
        except OSError as error:
            raise ToolFailed(
                f"the folder {shown} cannot be made: {explain_os_error(error)}", EX_CANNOT_CREATE
            ) from error

    def _is_ours(self) -> bool:
        """Whether an earlier run has made it. The lock comes first."""
        if os.path.islink(self.path) or not os.path.isdir(self.path):
            return False
        names = os.listdir(self.path)
        return _ENTRIES.issuperset(names) and (b"lock" in names or not names)

    def state(self) -> ConversionState | None:
        """What an earlier run noted; None if there was none, or it did not come so far."""
        return _noted(self._state)

    def note(self, state: ConversionState) -> None:
        """Let `state` know that, also after a power failure."""
        self._state.write(json.dumps(state.as_json()).encode("ascii"))

    @property
    def families_done(self) -> int:
        """How many families are written. A power failure may forget some."""
        path = self.path + b"/done"
        return self._disk.length(path) if self._disk.is_there(path) else 0

    def family_is_done(self) -> None:
        """One family more is written."""
        descriptor = self._disk.open_append(self.path + b"/done")
        try:
            self._disk.write(descriptor, b".")
        finally:
            self._disk.close(descriptor)

    def published(self) -> ConversionState | None:
        """What has become the target, where only the rest of this folder is left, or nothing but a note; else None."""
        state = _noted(self._converted)
        if state is not None:
            return state
        state = self.state()
        if state is None or not state.is_verified or self._disk.is_there(self.queues):
            return None
        return state if os.path.isdir(self._target) and os.listdir(self._target) else None

    def publish(self) -> None:
        """Let the new folder become the target, at once."""
        parent = os.path.dirname(self._target)
        try:
            self._disk.rename(self.queues, self._target)
        except OSError as error:
            if error.errno in _NOT_EMPTY:
                raise ToolFailed(
                    f"somebody has put something into {show_path(self._target)} meanwhile: empty it, and run this again"
                ) from error
            raise
        self._disk.sync_folder(parent)

    def erase(self) -> None:
        """Erase all that is here, but for the lock. The state goes first: nobody trusts the rest without it."""
        disk = self._disk
        self._erase_notes(b"state", b"state.new", b"done")
        disk.sync_folder(self.path)
        for folder in _FOLDERS:
            path = self.queues + b"/" + folder if folder else self.queues
            if disk.is_there(path):
                for name in disk.list_files(path):
                    disk.erase(path + b"/" + name)
                disk.erase_folder(path)

    def end(self) -> None:
        """Erase the folder itself, of which nothing else is left. The target has the state as long as that takes."""
        with suppress(FileNotFoundError):  # an earlier run has come so far
            self._disk.rename(self.path + b"/state", self._target + b"/" + _CONVERTED)
        self._erase_notes(b"done", b"state.new", b"lock")
        try:
            self._disk.erase_folder(self.path)
        except OSError as error:
            if error.errno not in _NOT_EMPTY:  # as when another one has come, and has its lock in it
                raise
        self._disk.erase(self._target + b"/" + _CONVERTED)

    def _erase_notes(self, *names: bytes) -> None:
        for name in names:
            self._disk.erase(self.path + b"/" + name)


def _noted(file: WholeFile) -> ConversionState | None:
    try:
        return ConversionState.from_json(json.loads(file.read(_MOST_BYTES)))
    except (FileNotFoundError, NotADirectoryError, PermissionError, ValueError, TypeError, KeyError):
        return None
