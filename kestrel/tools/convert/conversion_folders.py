"""The source and target folders of a conversion, as the command line names them."""

from __future__ import annotations

import errno
import os
from argparse import ArgumentTypeError
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple, Self

from kestrel.disk.files import Disk
from kestrel.disk.folders import PRIVATE_FOLDER
from kestrel.disk.lock import FolderLock
from kestrel.errors import FolderInUse
from kestrel.server.startup_errors import EX_CANNOT_CREATE, EX_TRY_AGAIN
from kestrel.storage.folder_resources import kind_of
from kestrel.tools.convert.sources import SOURCES, ConversionSource
from kestrel.tools.files.folder import Folder
from kestrel.tools.formatting import show_path, show_text
from kestrel.tools.tool_runner import EX_USAGE, ToolFailed, explain_os_error

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
        """Parse ``journal:FOLDER`` or ``scroll:FOLDER``."""
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

    @contextmanager
    def owned(self, disk: Disk) -> Iterator[None]:
        """Lock the folder against servers while the context lasts. A read-only file system needs no lock."""
        private = self.path + b"/" + PRIVATE_FOLDER
        lock = None
        try:
            disk.make_folder(private)
            lock = FolderLock(private + b"/lock")
        except FolderInUse as error:
            raise ToolFailed(f"{error}: stop it first", EX_TRY_AGAIN) from error
        except OSError as error:
            if error.errno != errno.EROFS:
                sentence = f"the folder {show_path(self.path)} cannot be used: {explain_os_error(error)}"
                raise ToolFailed(sentence, EX_CANNOT_CREATE) from error
        try:
            yield
        finally:
            if lock is not None:
                lock.release()

    def open(self, disk: Disk, now_ms: int) -> ConversionSource:
        """Return the folder's queues as they are now. Raise `ToolFailed` if it is not of this kind.

        `now_ms` is the add time of items whose record has none.
        """
        folder = Folder(disk, self.path)
        folder.hold()
        shown = show_path(self.path)
        noted = kind_of(disk, self.path)
        if noted is not None and noted != self.kind:
            raise ToolFailed(f"the folder {shown} is of the kind {noted}: name it {noted}:{shown}", EX_USAGE)
        journals, scrolls = bool(folder.journals()), bool(folder.scrolls())
        if journals and scrolls:
            raise ToolFailed(
                f"the folder {shown} has journals and scrolls, and a server serves one kind: move the files of the"
                " other kind out of it"
            )
        are_there, are_others = (journals, scrolls) if self.kind == "journal" else (scrolls, journals)
        if are_others or not (are_there or noted):
            raise ToolFailed(f"the folder {shown} has no {_KINDS[self.kind]}; it {folder.shown()}", EX_USAGE)
        return SOURCES[self.kind](folder, now_ms)

    def check_owner(self, source: ConversionSource, tool: str) -> None:
        """Raise `ToolFailed` if a source file belongs to another user: the server could not read the new files."""
        for name in source.file_names:
            try:
                owner = os.stat(self.path + b"/" + name).st_uid
            except FileNotFoundError:  # a running server has erased it
                continue
            if owner != os.geteuid():
                raise ToolFailed(
                    f"the files in {show_path(self.path)} belong to user {owner}, and the new ones would not: run this"
                    f" as that user (sudo -u '#{owner}' {tool} ...)",
                    EX_CANNOT_CREATE,
                )

    def check_free(self) -> None:
        """Raise `ToolFailed` unless the folder does not exist, or is empty and can be replaced."""
        path, shown = self.path, show_path(self.path)
        if os.path.lexists(path) and not os.path.isdir(path):
            raise ToolFailed(f"{shown} exists and is not a folder: name another target", EX_USAGE)
        if os.path.ismount(path):
            raise ToolFailed(f"{shown} is a mount point: name a folder in it that does not exist yet", EX_USAGE)
        if os.path.isdir(path) and os.listdir(path):
            raise ToolFailed(f"the folder {shown} exists and is not empty: name another target", EX_USAGE)


def check_folders(source: ConversionFolder, target: ConversionFolder, staging: bytes) -> None:
    """Raise `ToolFailed` if the paths or kinds of the folders rule out a conversion by way of `staging`."""
    if not os.path.isdir(source.path):
        raise ToolFailed(f"there is no folder {show_path(source.path)}: name the folder of the queues", EX_USAGE)
    if source.path == target.path:
        raise ToolFailed("both are the same folder: name another target", EX_USAGE)
    if source.kind == target.kind:
        raise ToolFailed(f"both are {_KINDS[source.kind]}: copy the folder, or name one of the other kind", EX_USAGE)
    if os.path.commonpath([source.path, target.path]) in (source.path, target.path):
        raise ToolFailed("one of the two folders is in the other: name another target", EX_USAGE)
    if os.path.commonpath([source.path, staging]) == staging:
        shown = show_path(staging)
        raise ToolFailed(f"the target would be made in {shown}, where the source is: rename that", EX_USAGE)
    parent = os.path.dirname(target.path)
    if not os.path.isdir(parent):
        raise ToolFailed(f"there is no folder {show_path(parent)} for the target: make it first", EX_USAGE)
