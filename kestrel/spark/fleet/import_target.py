"""The target folder of an import, locked during the import. All new queues appear together, or none."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from kestrel.disk.files import Disk
from kestrel.disk.folders import PRIVATE_FOLDER
from kestrel.disk.lock import FolderLock
from kestrel.errors import FolderInUse
from kestrel.journal.fileset import JournalFileKind, current_name, parse_file_name, temporary_name
from kestrel.journal.records import ADDX_HEADER_BYTES
from kestrel.server.startup_errors import EX_CANNOT_CREATE, EX_TRY_AGAIN
from kestrel.storage.folder_resources import kind_of
from kestrel.tools.convert.targets import JournalTarget
from kestrel.tools.files.folder import Folder
from kestrel.tools.formatting import count, show_path, show_queue, show_size, show_text
from kestrel.tools.tool_runner import EX_USAGE, ToolFailed, explain_os_error

_MOST_SHOWN: Final = 10


class ImportTarget:
    """A folder of journals that receives imported queues. Methods raise `ToolFailed` and OSError."""

    def __init__(self, disk: Disk, path: bytes, number: int) -> None:
        self._disk = disk
        self.path = path
        self._target = JournalTarget(disk, path, number)

    def check(self, queues: Iterable[bytes] = ()) -> None:
        """Check that the path is free, or is a folder of this user that has no scrolls and none of these queues."""
        path, shown = self.path, show_path(self.path)
        if not os.path.lexists(path):
            return
        if not os.path.isdir(path):
            raise ToolFailed(f"{shown} exists and is not a folder: name another one", EX_USAGE)
        owner = os.stat(path).st_uid
        if owner != os.geteuid():
            raise ToolFailed(
                f"the folder {shown} belongs to user {owner}, and the new files would not: run this as that user"
                f" (sudo -u '#{owner}' kestrel-fleet ...)",
                EX_CANNOT_CREATE,
            )
        folder = Folder(self._disk, path)
        noted = kind_of(self._disk, path)
        if noted not in (None, JournalTarget.kind) or folder.scrolls():
            raise ToolFailed(
                f"the folder {shown} has the format {noted or 'scroll'}: import into a new folder, and convert that"
                " (kestrel-convert journal:NEW scroll:OTHER)",
                EX_USAGE,
            )
        there = sorted(folder.journals().keys() & set(queues))
        if there:
            raise ToolFailed(
                f"the folder {shown} has {_some(there)} already: import into another folder, or choose others with"
                " --queue, or delete what is there with its server",
                EX_USAGE,
            )

    def check_room(self, items: int, data_bytes: int) -> None:
        """Check that the disk has room for this number of items and bytes of data."""
        needed, free = data_bytes + items * ADDX_HEADER_BYTES, self._disk.free_bytes(self.path)
        if needed > free:
            raise ToolFailed(
                f"the folder {show_path(self.path)} needs {show_size(needed)} more, and its disk has"
                f" {show_size(free)}: make room, or name a folder on another disk",
                EX_CANNOT_CREATE,
            )

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Create and lock the folder for the context, and delete the temporary files of an interrupted import."""
        try:
            for path in (self.path, self.path + b"/" + PRIVATE_FOLDER):
                self._disk.make_folder(path)
            lock = FolderLock(self.path + b"/" + PRIVATE_FOLDER + b"/lock")
        except FolderInUse as error:
            sentence = f"{show_text(str(error))}: stop it first, or import into another folder"
            raise ToolFailed(sentence, EX_TRY_AGAIN) from error
        except OSError as error:
            sentence = f"the folder {show_path(self.path)} cannot be used: {explain_os_error(error)}"
            raise ToolFailed(sentence, EX_CANNOT_CREATE) from error
        try:
            self._target.make()
            self.erase_temporary()
            yield
        finally:
            lock.release()

    def erase_temporary(self) -> None:
        """Delete unpublished files, which belong to no queue."""
        for name in self._disk.list_files(self.path):
            file = parse_file_name(name)
            if file is not None and file.kind is JournalFileKind.TEMPORARY:
                self._disk.erase(self.path + b"/" + name)

    def publish(self, files: Sequence[tuple[bytes, int]]) -> None:
        """Rename the temporary files, which must be complete and durable, to those of the queues.

        `files` has the name of each queue and the number of its temporary file. None of the queues may exist before. If
        this raises, none exists afterwards, or the error names those that do.
        """
        disk, path = self._disk, self.path
        for queue, number in files:
            if not disk.is_there(path + b"/" + temporary_name(queue, number)):
                raise ToolFailed(
                    f"the workers wrote to a folder {show_path(path)} that this machine does not see: name a folder"
                    " that all of them share"
                )
        self._target.sync()
        begun: list[bytes] = []
        try:
            for queue, number in files:
                begun.append(queue)
                disk.rename(path + b"/" + temporary_name(queue, number), path + b"/" + current_name(queue))
            self._target.sync()
        except BaseException as error:
            self._take_back(begun, error)
            raise

    def _take_back(self, queues: Sequence[bytes], error: BaseException) -> None:
        """Delete these new queues; the folder is still locked. Raises `ToolFailed` with the queues that remain."""
        left = []
        for queue in queues:
            path = self.path + b"/" + current_name(queue)
            try:
                self._disk.erase(path)
            except OSError:
                if self._disk.is_there(path):
                    left.append(queue)
        if left:
            why = explain_os_error(error) if isinstance(error, OSError) else str(error) or type(error).__name__
            raise ToolFailed(
                f"the import failed halfway ({why}), and the folder {show_path(self.path)} still has {_some(left)}"
                " of it: delete the queues with a server, and import again"
            ) from error
        with suppress(OSError):
            self._target.sync()


def _some(names: Sequence[bytes]) -> str:
    shown = ", ".join(show_queue(name) for name in names[:_MOST_SHOWN])
    more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
    return f"{'the queue' if len(names) == 1 else count(len(names), 'queue')} {shown}{more}"
