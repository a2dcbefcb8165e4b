"""A queue's files, all opened at one moment: a server may rename and erase them, and they are read all the same."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Final, Self

from kestrel.disk.files import Disk
from kestrel.disk.reader import FileReader
from kestrel.journal.fileset import JournalFile, QueueFiles, group_by_queue
from kestrel.tools.progress import Progress
from kestrel.tools.running import EX_FOUND, EX_USAGE, ToolFailed
from kestrel.tools.shown import show_path, show_queue

_ATTEMPTS: Final = 20
_SETTLED_NS: Final = 1_000_000_000
"""A folder's time is coarse: two changes may bear the same one, but not if so much has passed since."""


class WatchedReader(FileReader):
    """A journal file whose reading is told to a progress."""

    def __init__(self, disk: Disk, path: bytes, progress: Progress | None = None) -> None:
        super().__init__(disk, path)
        self._path = path
        self.progress = progress

    def read(self, offset: int, size: int) -> bytes:
        """The bytes there."""
        data = super().read(offset, size)
        if self.progress is not None:
            self.progress.reached(self._path, offset + len(data))
        return data


class OpenJournal:
    """Files of one queue, in replay order, open until the context ends. They are read to where they end now."""

    def __init__(self, disk: Disk, folder: bytes, queue: bytes, files: Sequence[JournalFile]) -> None:
        self.disk = disk
        self.folder = folder
        self.queue = queue
        self.files = files
        self.readers: dict[bytes, WatchedReader] = {}
        """By file name."""
        with ExitStack() as stack:
            for file in files:
                reader = WatchedReader(disk, folder + b"/" + file.file_name)
                self.readers[file.file_name] = stack.enter_context(reader)
            self._stack = stack.pop_all()

    @property
    def size(self) -> int:
        """All files together, in bytes."""
        return sum(reader.size for reader in self.readers.values())

    def watch(self, progress: Progress | None) -> None:
        """Tell this progress what is read from now on."""
        for reader in self.readers.values():
            reader.progress = progress

    def open_file(self, file_name: bytes) -> AbstractContextManager[FileReader]:
        """One of the files; it stays open (`kestrel.storage.journal_replayed.OpenFile`)."""
        return nullcontext(self.readers[file_name])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


class Folder:
    """A folder of journals, which a server may be at work in."""

    def __init__(self, disk: Disk, path: bytes) -> None:
        self.disk = disk
        self.path = path
        self._listed_ns: int | None = None
        self._queues: dict[bytes, QueueFiles] = {}
        self._is_held = False

    def hold(self) -> None:
        """Nobody else changes the folder from now on: it is listed once more, and then no more."""
        self._listed_ns = None
        self.queues()
        self._is_held = True

    def queues(self) -> dict[bytes, QueueFiles]:
        """The queues there are now, by name. Raises OSError."""
        if self._is_held:
            return self._queues
        changed_ns = self.disk.changed_ns(self.path)
        if changed_ns != self._listed_ns:
            groups = group_by_queue(self.disk.list_files(self.path))
            self._queues = {name: groups[name] for name in sorted(groups) if groups[name].has_items}
            self._listed_ns = changed_ns if time.time_ns() - changed_ns > _SETTLED_NS else None
        return self._queues

    def chosen(self, names: Sequence[bytes]) -> list[bytes]:
        """The queues of these names, or all. Raises `ToolFailed` when one is not there."""
        queues = self.queues()
        for name in names:
            if name not in queues:
                raise self._has_no(name, EX_USAGE)
        return list(dict.fromkeys(names)) if names else list(queues)

    def _has_no(self, name: bytes, status: int = EX_FOUND) -> ToolFailed:
        return ToolFailed(f"there is no queue {show_queue(name)} in {show_path(self.path)}: it {self.shown()}", status)

    def shown(self) -> str:
        """What it has, for a sentence."""
        there = [show_queue(each) for each in self.queues()]
        more = f" and {len(there) - 10} more" if len(there) > 10 else ""
        return f"has {', '.join(there[:10])}{more}" if there else "has no queues; name another folder"

    def open(self, name: bytes) -> OpenJournal:
        """All files of that queue that count, as they are at one moment. Raises `ToolFailed` or OSError."""
        for _ in range(_ATTEMPTS):
            files = self._counting(name)
            try:
                journal = OpenJournal(self.disk, self.path, name, files)
            except FileNotFoundError:
                continue
            if self._counting(name) == files:
                return journal
            with journal:
                pass
        raise ToolFailed(f"queue {show_queue(name)}: its files are renamed all the time; run this again in a moment")

    def _counting(self, name: bytes) -> list[JournalFile]:
        files = self.queues().get(name)
        if files is None:
            raise self._has_no(name)
        return files.counting()
