"""Selection and order of the files to read from folders in which servers may be running."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Final, NamedTuple, TypeAlias

from kestrel.disk.files import Disk
from kestrel.disk.reader import FileReader
from kestrel.journal import fileset as journals
from kestrel.scroll import fileset as scrolls
from kestrel.scroll.records import LARGEST_ID
from kestrel.scroll.writer_index import first_id_in
from kestrel.spark.options import SourceFailed
from kestrel.spark.table.options import JournalLocation
from kestrel.spark.table.planned_file import JOURNAL, SCROLL, FileKind, FileOrigin, PlannedFile, snapshot_file
from kestrel.tools.files.folder import Folder
from kestrel.tools.files.formats import Format, format_of
from kestrel.tools.files.scroll_contents import Scroll, parse_scroll_file_name, scrolls_in
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
    settled: dict[_Key, tuple[_ListedGroup, list[PlannedFile]]] = {}
    groups = listed(disk, place.folder)
    wanted = set(groups)
    for attempt in range(_ATTEMPTS):
        for key, group in groups.items():
            if key not in settled and (files := _looked_at(disk, place, group)) is not None:
                settled[key] = group, files
        groups = listed(disk, place.folder)
        settled = {key: each for key, each in settled.items() if groups.get(key) == each[0]}
        if attempt == 0:
            wanted |= set(groups)  # a listing may miss a file during its rename
        if wanted & set(groups) <= set(settled):
            return [file for _, files in settled.values() for file in files]
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
        number=look.number,
        sample=look.sample,
        modified_s=look.modified_s,
        reader=part.reader,
    )


def files_of(disk: Disk, places: Sequence[JournalLocation], queue: str | None = None) -> list[PlannedFile]:
    """Return the files to read without duplicates; with `queue`, a pattern, only those of matching queues.

    The files of a journal are in the order in which a server reads them. Raises `SourceFailed` or OSError.
    """
    folders = [place for place in places if place.file_name is None]
    files = [file for place in folders for file in list_folder(disk, place)]
    files += [_alone(disk, place) for place in places if place.file_name is not None]
    # Servers move files to the archive, so archives are listed last and no file is missed.
    files += [file for place in folders for file in list_archive(disk, place)]
    each_once: dict[bytes, PlannedFile] = {}
    for file in files:
        each_once.setdefault(file.path, file)
    files = list(_archived_once(list(each_once.values())))
    return list(_ordered(disk, files if queue is None else _wanted(files, queue)))


def _is_archived(file: PlannedFile) -> bool:
    return file.file_name.startswith(ARCHIVE_PREFIX)


def _archived_once(files: list[PlannedFile]) -> Iterator[PlannedFile]:
    """Yield the files without those that also have a copy in the archive; the server is about to erase them.

    The full name of a scroll with a too long file name is stored only beside the live files, so it is copied to the
    archived ones.
    """
    archived = {
        (file.owner.server, file.file_name.removeprefix(ARCHIVE_PREFIX)) for file in files if _is_archived(file)
    }
    names: dict[tuple[str, bytes], str] = {}
    for file in files:
        if file.is_scroll and not _is_archived(file):
            names[file.owner.server, _stem(file.file_name)] = file.owner.journal
    for file in files:
        if _is_archived(file):
            known = (file.owner.server, _stem(file.file_name.removeprefix(ARCHIVE_PREFIX)))
            name = names.get(known, file.owner.journal)
            yield replace(file, owner=replace(file.owner, journal=name, queue=name))
        elif not file.is_scroll or (file.owner.server, file.file_name) not in archived:
            yield file


def _stem(file_name: bytes) -> bytes:
    file = scrolls.parse_file_name(file_name)
    return file_name if file is None else file.stem


def _wanted(files: Iterable[PlannedFile], queue: str) -> list[PlannedFile]:
    """Return the files of matching queues, and all files of a scroll with such a queue, which are read together.

    An archive without live files has no readers, so it counts for any child of its parent queue.
    """
    files = list(files)
    journals_of = {file: (file.owner.server, file.owner.format, file.owner.journal) for file in files}
    have_readers = {journals_of[file] for file in files if file.is_reader}
    wanted = {
        journal
        for file, journal in journals_of.items()
        if fnmatchcase(file.owner.queue, queue)
        or (file.is_scroll and journal not in have_readers and queue.startswith(file.owner.journal + "+"))
    }
    return [file for file in files if journals_of[file] in wanted]


# Single files.


def _alone(disk: Disk, place: JournalLocation) -> PlannedFile:
    """Return a single file with the format of its first bytes, whatever its name. Raises `SourceFailed`."""
    name = place.file_name or b""
    form = format_of(disk, place.folder + b"/" + name)
    if form is Format.NEITHER:
        shown = show_path(place.folder + b"/" + name)
        raise SourceFailed(f"{shown} is neither a journal file of Kestrel nor a file of a scroll: leave it out")
    if form is Format.JOURNAL:
        file = journals.parse_file_name(name)
        queue = show_path(name) if file is None else spell_queue(file.queue)
        return plan_file(disk, place, JOURNAL, queue, ListedFile(name, FileKind.ALONE, queue))
    _, parent, reader = parse_scroll_file_name(disk, place.folder, name.removeprefix(ARCHIVE_PREFIX))
    journal = show_path(reader.stem) if parent is None else spell_queue(parent)
    if form is Format.WRITER:
        return plan_file(disk, place, SCROLL, journal, ListedFile(name, FileKind.ALONE, journal))
    shown = show_path(name) if reader.name is None else spell_queue(reader.name)
    return plan_file(disk, place, SCROLL, journal, ListedFile(name, FileKind.ALONE, shown, reader.reader))


# The order of the files of a journal.


def _ordered(disk: Disk, files: Iterable[PlannedFile]) -> Iterator[PlannedFile]:
    groups: defaultdict[tuple[str, str, str], list[PlannedFile]] = defaultdict(list)
    for file in files:
        groups[file.owner.server, file.owner.format, file.owner.journal].append(file)
    for (server, form, journal), group in groups.items():
        folders = {file.owner.folder for file in group if not _is_archived(file)}
        if len(folders) > 1:
            raise SourceFailed(
                f"queue {journal} of server {server} is in {' and in '.join(sorted(folders))}: read them separately,"
                ' each with its own option("server", ...)'
            )
        yield from (file for file in group if file.is_reader)
        writers = [file for file in group if not file.is_reader]
        if form == SCROLL:
            writers.sort(key=lambda file: _first_id(disk, file))
        else:
            writers.sort(key=_place_alone)
        for order, file in enumerate(writers):
            yield replace(file, order=order)


def _place_alone(file: PlannedFile) -> tuple[int, int]:
    """Return a sort key: files of a folder keep their order, then single rotated files by number, then current ones."""
    if file.kind is not FileKind.ALONE:
        return 0, 0
    name = journals.parse_file_name(file.file_name)
    if name is None:
        return 3, 0
    return (2 if name.kind is journals.JournalFileKind.CURRENT else 1), name.number


def _first_id(disk: Disk, file: PlannedFile) -> int:
    """Return the first id of a writer file, its sort key; files without items or unreadable ones sort last."""
    try:
        with FileReader(disk, file.path) as reader:
            return first_id_in(reader)
    except OSError:  # the reading task reports it
        return LARGEST_ID + 1
