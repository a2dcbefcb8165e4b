"""The source and target folders of a conversion, as the command line names them."""

from __future__ import annotations

import errno
import json
import os
from argparse import ArgumentTypeError
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Final, NamedTuple, Self

from attrs import asdict, define

from kestrel.disk.files import AtomicFile, Disk
from kestrel.disk.folders import PRIVATE_FOLDER
from kestrel.disk.lock import FolderLock
from kestrel.errors import FolderInUse
from kestrel.scroll.name_encoding import NAMES_FOLDER
from kestrel.server.startup_errors import EX_CANNOT_CREATE, EX_TRY_AGAIN
from kestrel.storage.folder_resources import kind_of
from kestrel.tools.convert.sources import SOURCES, ConversionSource, FolderSums
from kestrel.tools.files.folder import Folder, locked_folder
from kestrel.tools.formatting import show_path, show_text
from kestrel.tools.tool_runner import BadUsage, ToolFailed, explain_os_error

_KINDS: Final = {"journal": "journals", "scroll": "scrolls"}


class ConversionFolder(NamedTuple):
    """A folder and its kind, which is the name of its storage. Methods raise `ToolFailed` and OSError."""

    kind: str
    path: bytes
    """Absolute path with symbolic links resolved."""
    shown: str
    """Argument of the command line, for messages."""

    @classmethod
    def parse(cls, text: str) -> Self:
        kind, _, folder = text.partition(":")
        if kind not in SOURCES or not folder:
            raise ArgumentTypeError(
                f"{text!r} names no kind and folder: write it as in journal:/var/spool/kestrel or scroll:/srv/kestrel"
            )
        return cls(kind, os.path.realpath(os.fsencode(folder)), show_text(text))

    @property
    def full(self) -> str:
        """Kind and path, as they are stored for a later run."""
        return f"{self.kind}:{show_path(self.path)}"

    def owned(self, disk: Disk) -> AbstractContextManager[None]:
        """Return a context that locks the folder against servers. A read-only file system needs no lock."""
        return locked_folder(disk, self.path, "stop it first", may_be_read_only=True)

    def open(self, disk: Disk, now_ms: int) -> ConversionSource:
        """Return the folder's queues as they are now. Raise `ToolFailed` if it is not of this kind.

        `now_ms` is the add time of items whose record has none.
        """
        folder = Folder(disk, self.path)
        folder.hold()
        shown = show_path(self.path)
        noted = kind_of(disk, self.path)
        if noted is not None and noted != self.kind:
            raise BadUsage(f"the folder {shown} is of the kind {noted}: name it {noted}:{shown}")
        journals, scrolls = bool(folder.journals()), bool(folder.scrolls())
        if journals and scrolls:
            raise ToolFailed(
                f"the folder {shown} has journals and scrolls, and a server serves one kind: move the files of the"
                " other kind out of it"
            )
        are_there, are_others = (journals, scrolls) if self.kind == "journal" else (scrolls, journals)
        if are_others or not (are_there or noted):
            raise BadUsage(f"the folder {shown} has no {_KINDS[self.kind]}; it {folder.shown()}")
        return SOURCES[self.kind](folder, now_ms)

    def check_free(self) -> None:
        """Raise `ToolFailed` unless the folder does not exist, or is empty and can be replaced."""
        path, shown = self.path, show_path(self.path)
        if os.path.lexists(path) and not os.path.isdir(path):
            raise BadUsage(f"{shown} exists and is not a folder: name another target")
        if os.path.ismount(path):
            raise BadUsage(f"{shown} is a mount point: name a folder in it that does not exist yet")
        if os.path.isdir(path) and os.listdir(path):
            raise BadUsage(f"the folder {shown} exists and is not empty: name another target")


def check_folders(source: ConversionFolder, target: ConversionFolder, staging: bytes) -> None:
    """Raise `ToolFailed` if the paths or kinds of the folders rule out a conversion by way of `staging`."""
    if not os.path.isdir(source.path):
        raise BadUsage(f"there is no folder {show_path(source.path)}: name the folder of the queues")
    if source.path == target.path:
        raise BadUsage("both are the same folder: name another target")
    if source.kind == target.kind:
        raise BadUsage(f"both are {_KINDS[source.kind]}: copy the folder, or name one of the other kind")
    if os.path.commonpath([source.path, target.path]) in (source.path, target.path):
        raise BadUsage("one of the two folders is in the other: name another target")
    if os.path.commonpath([source.path, staging]) == staging:
        shown = show_path(staging)
        raise BadUsage(f"the target would be made in {shown}, where the source is: rename that")
    parent = os.path.dirname(target.path)
    if not os.path.isdir(parent):
        raise BadUsage(f"there is no folder {show_path(parent)} for the target: make it first")


_SUFFIX: Final = b".converting"
_VERSION: Final = 1
_MOST_BYTES: Final = 1 << 30
_ENTRIES: Final = frozenset({b"state", b"state.new", b"done", b"lock", b"queues"})
"""Names in a staging folder. Release 1.0.0 counted finished families in `done`."""
_NOT_EMPTY: Final = (errno.ENOTEMPTY, errno.EEXIST)
_CONVERTED: Final = PRIVATE_FOLDER + b"/converted"
_FOLDERS: Final = (NAMES_FOLDER, PRIVATE_FOLDER, b"")
"""Folders within the new folder, innermost first."""


@define
class ConversionState:
    """The stored state of a conversion."""

    source: str
    target: str
    files: str
    """Digest that changes with the source's files."""
    now_ms: int
    """Add time of items whose record has none, and number of the first new numbered file."""
    sums: FolderSums | None = None
    """Sums of the source; None until it has been read."""
    source_bytes: int = 0
    is_verified: bool = False
    """True once the new folder was found equal to the source."""

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object that `from_json` reads."""
        sums = None if self.sums is None else self.sums.as_json()
        return {**asdict(self, recurse=False), "version": _VERSION, "sums": sums}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Return the state that `as_json` stored.

        Raises ValueError for another version, KeyError or TypeError for other keys, and TypeError for malformed sums.
        The types of the other values are not checked.
        """
        if value.pop("version") != _VERSION:
            raise ValueError
        sums = value.pop("sums")
        return cls(**value, sums=None if sums is None else FolderSums.from_json(sums))


class Staging:
    """The staging folder of one target. Methods raise OSError and `ToolFailed`. Change it only within `owned`."""

    def __init__(self, disk: Disk, target: bytes) -> None:
        self._disk = disk
        self._target = target
        self.path = target + _SUFFIX
        self.queues = self.path + b"/queues"
        """Path of the new folder until it is published."""
        self._state = AtomicFile(disk, self.path + b"/state")
        self._converted = AtomicFile(disk, target + b"/" + _CONVERTED)

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Create the folder if needed, and lock it against other conversions while the context lasts."""
        lock = self._own()
        try:
            yield
        finally:
            lock.release()

    def _own(self) -> FolderLock:
        shown = show_path(self.path)
        if os.path.lexists(self.path) and not self._is_ours():
            raise BadUsage(f"{shown} exists, and no earlier run made it: rename it, or name another target")
        try:
            self._disk.make_folder(self.path)
            return FolderLock(self.path + b"/lock")
        except FolderInUse as error:
            raise ToolFailed("another conversion to the same target is running: wait for it", EX_TRY_AGAIN) from error
        except PermissionError as error:
            raise ToolFailed(
                f"user {os.geteuid()} cannot create {shown}, which becomes the target: name a target in a folder that"
                " this user can write to",
                EX_CANNOT_CREATE,
            ) from error
        except OSError as error:
            raise ToolFailed(
                f"the folder {shown} cannot be created: {explain_os_error(error)}", EX_CANNOT_CREATE
            ) from error

    def _is_ours(self) -> bool:
        """Return whether an earlier run made the folder. A run creates the lock before other files."""
        if os.path.islink(self.path) or not os.path.isdir(self.path):
            return False
        names = os.listdir(self.path)
        return _ENTRIES.issuperset(names) and (b"lock" in names or not names)

    def state(self) -> ConversionState | None:
        """Return the state that an earlier run stored, or None."""
        return _noted(self._state)

    def note(self, state: ConversionState) -> None:
        """Store the state durably, for `state` to return."""
        self._state.write(json.dumps(state.as_json()).encode("ascii"))

    def published(self) -> ConversionState | None:
        """Return the state of an earlier run that published the target but did not clean up, or None."""
        state = _noted(self._converted)
        if state is not None:
            return state
        state = self.state()
        if state is None or not state.is_verified or self._disk.is_there(self.queues):
            return None
        return state if os.path.isdir(self._target) and os.listdir(self._target) else None

    def publish(self) -> None:
        """Rename the new folder to the target, atomically. Raise `ToolFailed` if the target is not empty."""
        parent = os.path.dirname(self._target)
        try:
            self._disk.rename(self.queues, self._target)
        except OSError as error:
            if error.errno in _NOT_EMPTY:
                raise ToolFailed(
                    f"{show_path(self._target)} is no longer empty: empty it, and run this again"
                ) from error
            raise
        self._disk.sync_folder(parent)

    def erase(self) -> None:
        """Erase everything except the lock. The state is erased first, since the rest is not used without it."""
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
        """Erase the staging folder. The target holds the state until that is done."""
        with suppress(FileNotFoundError):  # an earlier run has already moved it
            self._disk.rename(self.path + b"/state", self._target + b"/" + _CONVERTED)
        self._erase_notes(b"done", b"state.new", b"lock")
        try:
            self._disk.erase_folder(self.path)
        except OSError as error:
            if error.errno not in _NOT_EMPTY:  # not empty if another conversion has created its lock in it
                raise
        self._disk.erase(self._target + b"/" + _CONVERTED)

    def _erase_notes(self, *names: bytes) -> None:
        for name in names:
            self._disk.erase(self.path + b"/" + name)


def _noted(file: AtomicFile) -> ConversionState | None:
    try:
        return ConversionState.from_json(json.loads(file.read(_MOST_BYTES)))
    except (FileNotFoundError, NotADirectoryError, PermissionError, ValueError, TypeError, KeyError, AttributeError):
        return None
