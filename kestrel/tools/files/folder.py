"""A folder of Kestrel's journals, scrolls, or both, and selections from it. A server may be using it."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple, Self, TypeAlias, TypeVar

from kestrel.disk.files import Disk
from kestrel.disk.folders import PRIVATE_FOLDER
from kestrel.disk.lock import FolderLock
from kestrel.errors import FolderInUse
from kestrel.journal import fileset as journals
from kestrel.journal.fileset import JournalFile, QueueFiles, group_by_queue
from kestrel.scroll import fileset as scrolls
from kestrel.scroll.name_encoding import OWN_READER
from kestrel.server.startup_errors import EX_CANNOT_CREATE, EX_TRY_AGAIN
from kestrel.tools.files.formats import Format, Sorter, Strays, format_of
from kestrel.tools.files.scroll_contents import (
    Scroll,
    ScrollQueueFile,
    ScrollSnapshot,
    reader_alone,
    scrolls_in,
    writer_alone,
)
from kestrel.tools.files.snapshot_files import JournalSnapshot, SnapshotFiles
from kestrel.tools.formatting import show_path, show_queue, show_text
from kestrel.tools.tool_runner import BadUsage, ToolFailed, explain_os_error


class FoundJournal(NamedTuple):
    """A queue with a journal in Kestrel's format. `shown` is the text for messages."""

    queue: bytes

    @property
    def shown(self) -> str:
        return f"queue {show_queue(self.queue)}"


class FoundScroll(NamedTuple):
    """A scroll and its selected queues."""

    stem: bytes
    readers: tuple[bytes, ...] | None = None
    """Selected queues, each as `ScrollQueueFile.reader`; None for all."""

    @property
    def shown(self) -> str:
        return f"scroll {show_path(self.stem)}"

    def joined(self, other: Self) -> Self:
        if self.readers is None or other.readers is None:
            return self._replace(readers=None)
        return self._replace(readers=tuple(dict.fromkeys(self.readers + other.readers)))


class FoundFile(NamedTuple):
    """A single file of any name."""

    file_name: bytes

    @property
    def shown(self) -> str:
        return show_path(self.file_name)


Found: TypeAlias = FoundJournal | FoundScroll | FoundFile


def distinct(selections: Iterable[tuple[bytes, Found]]) -> list[tuple[bytes, Found]]:
    """Return selections, each with its folder, with one entry per journal, scroll or file."""
    by_key: dict[tuple[bytes, type, bytes], Found] = {}
    for folder, found in selections:
        key = folder, type(found), found[0]
        before = by_key.get(key)
        if isinstance(before, FoundScroll) and isinstance(found, FoundScroll):
            found = before.joined(found)
        by_key[key] = found
    return [(folder, found) for (folder, _, _), found in by_key.items()]


_ATTEMPTS: Final = 20
_SETTLED_NS: Final = 1_000_000_000
"""Minimum age of a trusted folder modification time. The time is coarse: a later change may have the same one."""

_Files = TypeVar("_Files")
_Opened = TypeVar("_Opened", bound=SnapshotFiles)


class Folder:
    """A folder of queues that a server may be using."""

    def __init__(self, disk: Disk, path: bytes) -> None:
        self.disk = disk
        self.path = path
        self._sorter = Sorter(disk, path)
        self._listed_ns: int | None = None
        self._journals: dict[bytes, QueueFiles] = {}
        self._scrolls: dict[bytes, Scroll] = {}
        self._strays = Strays(disk, path, ())
        self._is_held = False

    def hold(self) -> None:
        """List the folder once more, and never again. The caller guarantees that it does not change from now on."""
        self._listed_ns = None
        self._list()
        self._is_held = True

    def journals(self) -> dict[bytes, QueueFiles]:
        """Return the files of each queue with a journal in Kestrel's format, by queue name. Raise OSError."""
        self._list()
        return self._journals

    def scrolls(self) -> dict[bytes, Scroll]:
        """Return the scrolls by stem. Raise OSError."""
        self._list()
        return self._scrolls

    def queue_names(self) -> set[bytes]:
        """Return the names of all queues of the journals and scrolls that are known. Raise OSError."""
        of_scrolls = (queue.name for scroll in self.scrolls().values() for queue in scroll.queues)
        return {*self.journals(), *(name for name in of_scrolls if name is not None)}

    def strays(self) -> Strays:
        """Return the files that belong to no queue and may need a report. Raise OSError."""
        self._list()
        return self._strays

    def _list(self) -> None:
        """List the folder again if it may have changed."""
        if self._is_held:
            return
        changed_ns = self.disk.changed_ns(self.path)
        if changed_ns != self._listed_ns:
            file_names = self.disk.list_files(self.path)
            of_journals, of_scrolls = self._sorter.sort(file_names)
            self._strays = Strays(self.disk, self.path, file_names)
            groups = group_by_queue(of_journals)
            self._journals = {name: groups[name] for name in sorted(groups) if groups[name].has_items}
            self._scrolls = scrolls_in(self.disk, self.path, of_scrolls)
            self._listed_ns = changed_ns if time.time_ns() - changed_ns > _SETTLED_NS else None

    def chosen(self, names: Sequence[bytes]) -> list[Found]:
        """Return the journals and scrolls of the named queues, or all. Raise `ToolFailed` if one does not exist."""
        by_name: dict[bytes, list[Found]] = {}
        for name in self.journals():
            by_name.setdefault(name, []).append(FoundJournal(name))
        for stem, scroll in self.scrolls().items():
            if not names:
                by_name.setdefault(scroll.name or stem, []).append(FoundScroll(stem))
                continue
            for queue in scroll.queues:
                if queue.name is not None:
                    by_name.setdefault(queue.name, []).append(FoundScroll(stem, (queue.reader,)))
        for name in names:
            if name not in by_name:
                raise BadUsage(self._has_no(name))
        selections = ((self.path, found) for name in names or sorted(by_name) for found in by_name[name])
        return [found for _, found in distinct(selections)]

    def found_at(self, file_name: bytes) -> Found:
        """Return the journal or scroll that a file of that name belongs to, even if the file no longer exists.

        A reader file, and the name of a queue in a scroll, select only that queue. Raise `ToolFailed` if nothing fits.
        """
        journal_file, scroll_file = journals.parse_file_name(file_name), scrolls.parse_file_name(file_name)
        if scroll_file is not None and scroll_file.stem in self.scrolls():
            scroll = self._scrolls[scroll_file.stem]
            reader = scroll_file.part or OWN_READER
            if scroll_file.kind is not scrolls.ScrollFileKind.READER:
                is_a_journals = journal_file is not None and journal_file.queue in self._journals
                if file_name in scroll.writers or not is_a_journals:
                    return FoundScroll(scroll.stem)
            elif reader in [queue.reader for queue in scroll.queues]:
                return FoundScroll(scroll.stem, (reader,))
        if journal_file is not None:
            if journal_file.queue in self.journals():
                return FoundJournal(journal_file.queue)
            for scroll in self.scrolls().values():
                for queue in scroll.queues:
                    if queue.name == journal_file.queue:
                        return FoundScroll(scroll.stem, (queue.reader,))
        shown = show_path(file_name)
        if journal_file is None and scroll_file is None:
            raise BadUsage(f"{shown} is not the name of a journal file; use --this-file to read it anyway")
        missing = show_path(os.path.join(self.path, file_name))
        raise BadUsage(f"there is no {missing}: {show_path(self.path)} {self.shown()}")

    def _has_no(self, name: bytes) -> str:
        return f"there is no queue {show_queue(name)} in {show_path(self.path)}: it {self.shown()}"

    def shown(self) -> str:
        """Return a phrase that lists the folder's queues, such as ``has mail, work``."""
        there = list(map(show_queue, sorted(self.queue_names())))
        more = f" and {len(there) - 10} more" if len(there) > 10 else ""
        return f"has {', '.join(there[:10])}{more}" if there else "has no queues; name another folder"

    def open(self, found: Found) -> JournalSnapshot | ScrollSnapshot:
        """Open what a selection names, as it is at one moment. Raise `ToolFailed` or OSError."""
        if isinstance(found, FoundJournal):
            return self.open_journal(found.queue)
        return self.open_scroll(found) if isinstance(found, FoundScroll) else self._open_file(found.file_name)

    def open_journal(self, queue: bytes) -> JournalSnapshot:
        """Open all live journal files of a queue as they are at one moment. Raise `ToolFailed` or OSError."""

        def live_files() -> list[JournalFile]:
            files = self.journals().get(queue)
            if files is None:
                raise ToolFailed(self._has_no(queue))
            return files.live_files()

        return _at_one_moment(live_files, lambda files: JournalSnapshot(self.disk, self.path, queue, files))

    def open_scroll(self, found: FoundScroll) -> ScrollSnapshot:
        """Open all files of a scroll as they are at one moment. Raise `ToolFailed` or OSError."""
        return _at_one_moment(
            lambda: self.scroll(found),
            lambda scroll: ScrollSnapshot(self.disk, self.path, scroll, chosen_queues(scroll, found)),
        )

    def scroll(self, found: FoundScroll) -> Scroll:
        """Return the current files of a scroll. Raise `ToolFailed` if it no longer exists, or OSError."""
        scroll = self.scrolls().get(found.stem)
        if scroll is None:
            raise ToolFailed(f"the {found.shown} no longer exists: its queues were deleted")
        return scroll

    def _open_file(self, name: bytes) -> JournalSnapshot | ScrollSnapshot:
        """Open a single file in the format that its first bytes show."""
        match format_of(self.disk, self.path + b"/" + name):
            case Format.WRITER:
                return writer_alone(self.disk, self.path, name)
            case Format.READER:
                return reader_alone(self.disk, self.path, name)
            case Format.JOURNAL:
                file = journals.parse_file_name(name) or JournalFile(name, journals.JournalFileKind.CURRENT, 0, name)
                return JournalSnapshot(self.disk, self.path, file.queue, [file])
        raise ToolFailed(f"{show_path(name)} is neither a journal file of Kestrel nor a file of a scroll")


@contextmanager
def locked_folder(disk: Disk, path: bytes, way_out: str, *, may_be_read_only: bool = False) -> Iterator[None]:
    """Lock a folder of queues against servers while the context lasts. Raise `ToolFailed` if that fails.

    `way_out` is the advice if a server owns it. A read-only file system needs no lock if it `may_be_read_only`.
    """
    private = path + b"/" + PRIVATE_FOLDER
    lock = None
    try:
        disk.make_folder(private)
        lock = FolderLock(private + b"/lock")
    except FolderInUse as error:
        raise ToolFailed(f"{show_text(str(error))}: {way_out}", EX_TRY_AGAIN) from error
    except OSError as error:
        if not (may_be_read_only and error.errno == errno.EROFS):
            sentence = f"the folder {show_path(path)} cannot be used: {explain_os_error(error)}"
            raise ToolFailed(sentence, EX_CANNOT_CREATE) from error
    try:
        yield
    finally:
        if lock is not None:
            lock.release()


def check_owner(folder: bytes, file_names: Iterable[bytes], tool: str) -> None:
    """Raise `ToolFailed` if a file belongs to another user: the server could not read the new files."""
    for name in file_names:
        try:
            owner = os.stat(folder + b"/" + name).st_uid
        except FileNotFoundError:  # a running server has erased it
            continue
        if owner != os.geteuid():
            raise ToolFailed(
                f"the files in {show_path(folder)} belong to user {owner}, and the new ones would not: run this"
                f" as that user (sudo -u '#{owner}' {tool} ...)",
                EX_CANNOT_CREATE,
            )


def chosen_queues(scroll: Scroll, found: FoundScroll) -> Sequence[ScrollQueueFile]:
    """Return the queues of a scroll that `found` selects, in its order. Raise `ToolFailed` if one was deleted."""
    if found.readers is None:
        return scroll.queues
    there = {queue.reader: queue for queue in scroll.queues}
    for reader in found.readers:
        if reader not in there:
            shown = f"{show_path(scroll.stem)}.read.{show_path(reader)}"
            raise ToolFailed(f"{shown} no longer exists: its queue was deleted")
    return [there[reader] for reader in found.readers]


def _at_one_moment(find: Callable[[], _Files], open_all: Callable[[_Files], _Opened]) -> _Opened:
    for _ in range(_ATTEMPTS):
        files = find()
        try:
            opened = open_all(files)
        except FileNotFoundError:
            continue
        if find() == files:
            return opened
        with opened:
            pass
    raise ToolFailed("the files were renamed at each attempt to open them; run this again in a moment")
