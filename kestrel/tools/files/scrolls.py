"""The scrolls of a folder, with the files and queues of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kestrel.disk.files import Disk
from kestrel.disk.reader import FileReader
from kestrel.scroll.fileset import group_by_stem, parse_file_name
from kestrel.scroll.name_encoding import DEFAULT_READER, OWN_READER, EscapedNames, QueueLocation, queue_name_of
from kestrel.scroll.reader_file import read_state
from kestrel.tools.files.snapshot_files import SnapshotFiles
from kestrel.tools.formatting import show_path, show_queue


class ScrollQueueFile(NamedTuple):
    """A queue that reads a scroll."""

    name: bytes | None
    """Queue name; None if only its hash is known, or the file name does not spell a valid name."""
    reader: bytes
    """Name of the reader in a TARGETS record."""
    file_name: bytes | None
    """Name of the reader file; None if there is none, so that all items remain."""
    stem: bytes
    """Prefix of the names of the scroll's files."""

    @property
    def shown(self) -> str:
        return f"queue {self.shown_name}" if self.name is not None else f"queue of {self.shown_name}"

    @property
    def shown_name(self) -> str:
        """Queue name if it is known, else the file name or the scroll's stem."""
        return show_path(self.file_name or self.stem) if self.name is None else show_queue(self.name)

    @property
    def why_unknown(self) -> str:
        """Reason why the name is not known, for a queue without one."""
        is_hashed = b"::" in (self.file_name or self.stem)
        return ".kestrel/names/ does not have it" if is_hashed else "no queue's name is spelled like that"


class Scroll(NamedTuple):
    """The files of one scroll at one moment, and the queues that read them."""

    stem: bytes
    name: bytes | None
    """Name of the parent queue; None if it is unknown, as in `ScrollQueueFile`."""
    writers: tuple[bytes, ...]
    """Names of the writer files, in the order of their numbers."""
    queues: tuple[ScrollQueueFile, ...]

    @property
    def shown(self) -> str:
        return f"scroll {show_path(self.stem) if self.name is None else show_queue(self.name)}"

    @property
    def file_names(self) -> list[bytes]:
        """Names of all files, writer files first, so that items done after that are still found in them."""
        return [*self.writers, *(queue.file_name for queue in self.queues if queue.file_name is not None)]


class ScrollSnapshot(SnapshotFiles):
    """The open files of a scroll. `chosen` are its selected queues."""

    def __init__(
        self,
        disk: Disk,
        folder: bytes,
        scroll: Scroll,
        chosen: Sequence[ScrollQueueFile],
        *,
        is_file_alone: bool = False,
    ) -> None:
        super().__init__(disk, folder, scroll.file_names)
        self.scroll = scroll
        self.chosen = chosen
        self.is_file_alone = is_file_alone
        """True if only a single file is open, so that no queues or no items are known."""


def scrolls_in(disk: Disk, folder: bytes, file_names: Iterable[bytes]) -> dict[bytes, Scroll]:
    """Return the scrolls that consist of these files, by stem. Temporary files alone make no scroll. Raise OSError."""
    names = EscapedNames(disk, folder)
    scrolls: dict[bytes, Scroll] = {}
    for stem, files in group_by_stem(file_names).items():
        parent = names.name_of(stem)
        readers = dict(files.readers)
        if OWN_READER in readers and DEFAULT_READER in readers:
            readers.pop(OWN_READER if _is_deleted(disk, folder + b"/" + readers[OWN_READER]) else DEFAULT_READER)
        queues = [_queue_file(names, stem, parent, part, name) for part, name in sorted(readers.items())]
        if not queues and files.writers:
            queues.append(ScrollQueueFile(parent, OWN_READER, None, stem))
        if queues:
            writers = tuple(file.file_name for file in files.writers)
            scrolls[stem] = Scroll(stem, parent, writers, tuple(queues))
    return scrolls


def _is_deleted(disk: Disk, reader_path: bytes) -> bool:
    try:
        with FileReader(disk, reader_path) as reader:
            state, _ = read_state(reader)
    except OSError:  # opening it later will report the error
        return not disk.is_there(reader_path)
    return state.is_deleted


def _queue_file(
    names: EscapedNames, stem: bytes, parent: bytes | None, part: bytes, file_name: bytes
) -> ScrollQueueFile:
    name = parent
    if parent is not None and part not in (DEFAULT_READER, OWN_READER):
        child = names.name_of(part)
        name = None if child is None else queue_name_of(QueueLocation(parent, child))
    return ScrollQueueFile(name, part or OWN_READER, file_name, stem)


def writer_alone(disk: Disk, folder: bytes, file_name: bytes) -> ScrollSnapshot:
    """Open a single writer file of any name. Raise OSError."""
    stem, name, _ = parse_scroll_file_name(disk, folder, file_name)
    return ScrollSnapshot(disk, folder, Scroll(stem, name, (file_name,), ()), (), is_file_alone=True)


def reader_alone(disk: Disk, folder: bytes, file_name: bytes) -> ScrollSnapshot:
    """Open a single reader file of any name. Raise OSError."""
    stem, parent, queue = parse_scroll_file_name(disk, folder, file_name)
    return ScrollSnapshot(disk, folder, Scroll(stem, parent, (), (queue,)), (queue,), is_file_alone=True)


def parse_scroll_file_name(disk: Disk, folder: bytes, file_name: bytes) -> tuple[bytes, bytes | None, ScrollQueueFile]:
    """Return the stem and the name of the scroll that a file name refers to, and the queue."""
    file = parse_file_name(file_name)
    if file is None:
        return file_name, None, ScrollQueueFile(None, OWN_READER, file_name, file_name)
    names = EscapedNames(disk, folder)
    parent = names.name_of(file.stem)
    return file.stem, parent, _queue_file(names, file.stem, parent, file.part, file_name)
