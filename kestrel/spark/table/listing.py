"""A listing of a folder that a running server may change. Each journal's files are those of one moment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple, TypeAlias

from kestrel.disk.files import Disk
from kestrel.scroll import fileset as scrolls
from kestrel.spark.failures import SourceFailed
from kestrel.spark.table.locations import JournalLocation
from kestrel.spark.table.planned_file import JOURNAL, SCROLL, FileKind, FileOrigin, PlannedFile, snapshot_file
from kestrel.tools.files.folder import Folder
from kestrel.tools.files.scrolls import Scroll, scrolls_in
from kestrel.tools.formatting import show_path, spell_queue

ARCHIVE_PREFIX: Final = scrolls.archived_name(b"")

_ATTEMPTS: Final = 20


class ListedFile(NamedTuple):
    """A file of a journal as described by its name."""

    file_name: bytes
    kind: FileKind
    queue: str
    reader: bytes = b""


class _ListedGroup(NamedTuple):
    """The files of one journal or scroll in a listing of their folder."""

    format: str
    journal: str
    parts: tuple[ListedFile, ...]


_Key: TypeAlias = tuple[str, bytes]
"""Format, and queue name or stem."""


class _StableGroup(NamedTuple):
    """The planned files of a journal whose names were the same before and after their inspection."""

    group: _ListedGroup
    files: list[PlannedFile]


def list_folder(disk: Disk, place: JournalLocation) -> list[PlannedFile]:
    """Return the live files of a folder, without archived ones. Raises `SourceFailed` or OSError.

    A queue that is made or deleted meanwhile may be missing or included.
    """
    return _at_one_moment(disk, place, _groups)


def list_archive(disk: Disk, place: JournalLocation) -> list[PlannedFile]:
    """Return the archived writer files in a folder. Raises `SourceFailed` or OSError."""
    return _at_one_moment(disk, place, _archived)


def _at_one_moment(
    disk: Disk, place: JournalLocation, listed: Callable[[Disk, bytes], dict[_Key, _ListedGroup]]
) -> list[PlannedFile]:
    """Return the files of all journals in a folder. The files of each journal are those of one moment.

    Lists the folder, inspects the files, and lists it again. This is repeated for journals whose file names changed in
    between. Raises `SourceFailed` after `_ATTEMPTS` attempts.

    A journal that first appears after the second listing causes no further attempt, and may be missing from the result.
    """
    settled: dict[_Key, _StableGroup] = {}
    groups = listed(disk, place.folder)
    wanted = set(groups)
    for attempt in range(_ATTEMPTS):
        for key, group in groups.items():
            if key not in settled and (files := _looked_at(disk, place, group)) is not None:
                settled[key] = _StableGroup(group, files)
        groups = listed(disk, place.folder)
        settled = {key: each for key, each in settled.items() if groups.get(key) == each.group}
        if attempt == 0:
            wanted |= set(groups)  # a listing may miss a file during its rename
        if wanted & set(groups) <= set(settled):
            return [file for each in settled.values() for file in each.files]
    names = ", ".join(sorted(groups[key].journal for key in wanted & set(groups) - set(settled)))
    raise SourceFailed(f"{place.shown_folder}: the files of {names} are being renamed all the time; try again")


def _groups(disk: Disk, path: bytes) -> dict[_Key, _ListedGroup]:
    folder = Folder(disk, path)
    groups: dict[_Key, _ListedGroup] = {}
    for name, files in folder.journals().items():
        queue = spell_queue(name)
        parts = tuple(ListedFile(file.file_name, FileKind(file.kind.value), queue) for file in files.live_files())
        groups[JOURNAL, name] = _ListedGroup(JOURNAL, queue, parts)
    for stem, scroll in folder.scrolls().items():
        groups[SCROLL, stem] = _ListedGroup(SCROLL, _scroll_name(scroll), (*_writers(scroll), *_readers(scroll)))
    return groups


def _archived(disk: Disk, path: bytes) -> dict[_Key, _ListedGroup]:
    return archived(disk, path, disk.list_files(path))


def archived(disk: Disk, path: bytes, file_names: Iterable[bytes]) -> dict[_Key, _ListedGroup]:
    """Group the names of archived files by scroll, and skip all other names. Raises OSError.

    A file that is still being copied to the archive has another name.
    """
    names = [name.removeprefix(ARCHIVE_PREFIX) for name in file_names if name.startswith(ARCHIVE_PREFIX)]
    groups: dict[_Key, _ListedGroup] = {}
    for stem, scroll in scrolls_in(disk, path, names).items():
        parts = tuple(
            ListedFile(ARCHIVE_PREFIX + part.file_name, FileKind.ARCHIVED, part.queue) for part in _writers(scroll)
        )
        groups[SCROLL, stem] = _ListedGroup(SCROLL, _scroll_name(scroll), parts)
    return groups


def _scroll_name(scroll: Scroll) -> str:
    return show_path(scroll.stem) if scroll.name is None else spell_queue(scroll.name)


def _writers(scroll: Scroll) -> Iterator[ListedFile]:
    for name in scroll.writers:
        yield ListedFile(name, FileKind.WRITER, _scroll_name(scroll))


def _readers(scroll: Scroll) -> Iterator[ListedFile]:
    for queue in scroll.queues:
        if queue.file_name is not None:
            name = show_path(queue.file_name) if queue.name is None else spell_queue(queue.name)
            yield ListedFile(queue.file_name, FileKind.READER, name, queue.reader)


def _looked_at(disk: Disk, place: JournalLocation, group: _ListedGroup) -> list[PlannedFile] | None:
    """Return the inspected files, or None if one of them has disappeared."""
    try:
        return [plan_file(disk, place, group.format, group.journal, part) for part in group.parts]
    except FileNotFoundError:
        return None


def plan_file(disk: Disk, place: JournalLocation, form: str, journal: str, part: ListedFile) -> PlannedFile:
    """Return the plan for a listed file, with its current size, identity and modification time.

    `form` is `JOURNAL` or `SCROLL`, and `journal` is the displayed name of the journal that the file `part` belongs to.
    Raises FileNotFoundError if the file no longer exists.
    """
    look = snapshot_file(disk, place.folder + b"/" + part.file_name)
    return PlannedFile(
        owner=FileOrigin(place.server, place.shown_folder, form, journal, part.queue, show_path(part.file_name)),
        folder=place.folder,
        file_name=part.file_name,
        kind=part.kind,
        size=look.size,
        identity=look.identity,
        modified_s=look.modified_s,
        order=None if part.reader else 0,
        reader=part.reader,
    )
