"""The options of a table of journals, and of a stream of an archive. Paths and patterns become folders and files."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from glob import escape, glob, has_magic
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from kestrel.spark.options import PATHS, STARTING_OFFSETS, OptionValues, SourceFailed
from kestrel.tools.formatting import show_path

PARTITION_BYTES: Final = 256 * 1024 * 1024
"""Default maximum of bytes of files that share a task. A task costs Spark at least 40 ms."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The parsed options of a table."""

    paths: tuple[str, ...]
    """Folders, files, or patterns of either."""
    server: str | None = None
    """Server name of all paths; None to derive it from each path."""
    queue: str | None = None
    """Pattern of queue names, or None for all queues."""
    lists_errors: bool = False
    """True if the rows are problems of files, False if they are records."""
    has_payload: bool = True
    partition_bytes: int | None = None
    """Maximum of bytes for a task. None means `PARTITION_BYTES` for files that share a task, and no other limit."""
    parallelism: int = 1
    """Number of tasks that may run at a time."""
    is_failfast: bool = False
    pushes_filters: bool = False
    modified_after_s: float | None = None
    modified_before_s: float | None = None


_NAMES: Final = (
    *PATHS,
    "server",
    "queue",
    "view",
    "payload",
    "partitionBytes",
    "parallelism",
    "mode",
    "filterPushdown",
    "modifiedAfter",
    "modifiedBefore",
)


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Parse Spark's options, whose names are case-insensitive. Raises `SourceFailed`."""
    values = OptionValues.checked(given, _NAMES)
    return SourceOptions(
        paths=_paths(values),
        server=values.get("server"),
        queue=values.get("queue"),
        lists_errors=values.choice("view", "records", "errors") == "errors",
        has_payload=values.boolean("payload", True),
        partition_bytes=_size(values),
        parallelism=values.positive("parallelism", os.cpu_count() or 1),
        is_failfast=values.choice("mode", "PERMISSIVE", "FAILFAST") == "FAILFAST",
        pushes_filters=values.boolean("filterPushdown", False),
        modified_after_s=values.time_s("modifiedAfter"),
        modified_before_s=values.time_s("modifiedBefore"),
    )


def _paths(values: OptionValues) -> tuple[str, ...]:
    try:
        several = json.loads(values.get("paths", "[]"))
    except ValueError:
        several = None
    if not isinstance(several, list) or not all(isinstance(each, str) for each in several):
        raise SourceFailed('give several paths as load(["/data/a", "/data/b"])')
    paths = [*([values["path"]] if "path" in values else []), *several]
    if not paths:
        raise SourceFailed('no path is given: load("/var/spool/kestrel"), or a list of paths or patterns')
    return tuple(paths)


def _size(values: OptionValues) -> int | None:
    if "partitionBytes" not in values:
        return None
    size = values.size("partitionBytes", PARTITION_BYTES)
    if not size:
        raise SourceFailed("partitionBytes must be at least 1")
    return size


MOST_FILES: Final = 1000
"""Default number of files in a batch. A writer file has 16 MiB by default."""

OF_STREAMS: Final = ("index", STARTING_OFFSETS, "maxFiles", "ignoreMissingFiles")

_OF_TABLES: Final = (*PATHS, "server", "queue", "payload", "mode", "partitionBytes", "parallelism")
"""Options with the same meaning as for a table."""


@dataclass(frozen=True, slots=True)
class ArchiveOptions:
    """The parsed options of an archive stream."""

    table: SourceOptions
    index: str
    """Absolute path of the index of files seen."""
    start_ms: float = 0
    """Time of the first items of a new stream (`kestrel.spark.options.OptionValues.start_ms`)."""
    most_files: int = MOST_FILES
    ignores_missing: bool = False


def is_archive_stream(given: Mapping[str, str]) -> bool:
    """Return True if an option occurs that only archive streams have."""
    names = {name.lower() for name in OF_STREAMS}
    return any(name.lower() in names for name in given)


def parse_archive_options(given: Mapping[str, str]) -> ArchiveOptions:
    """Parse Spark's options, whose names are case-insensitive. Raises `SourceFailed`."""
    values = OptionValues.checked(given, (*_OF_TABLES, *OF_STREAMS))
    table = parse_options({name: value for name, value in values.items() if name in _OF_TABLES})
    index = values.get("index")
    if index is None:
        raise SourceFailed(
            "a stream of an archive needs an index of the files seen:"
            ' option("index", "/srv/checkpoints/audit.index"), a separate file beside the checkpoint'
        )
    if not os.path.isabs(index):
        raise SourceFailed(f"index must be an absolute path such as /srv/checkpoints/audit.index, not {index!r}")
    return ArchiveOptions(
        table=table,
        index=index,
        start_ms=values.start_ms(),
        most_files=values.positive("maxFiles", MOST_FILES),
        ignores_missing=values.boolean("ignoreMissingFiles", False),
    )


_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(//[^/]*)?(/.*)?")

_ESCAPED: Final = re.compile(r"\[[*?[]\]")
"""A wildcard character that `glob.escape` has escaped."""


class JournalLocation(NamedTuple):
    """A folder of queues, or a single file."""

    server: str
    folder: bytes
    """An absolute path."""
    file_name: bytes | None = None
    """Name of the single file, or None for the whole folder."""

    @property
    def shown_folder(self) -> str:
        return show_path(self.folder)


def find_locations(paths: Sequence[str], server: str | None) -> list[JournalLocation]:
    """Return the folders and files that the paths and patterns match, without duplicates, also through links.

    Without `server`, the server name is the part of the path that matches the pattern's first part with a wildcard: in
    ``/data/*/spool``, the part at the ``*``. Otherwise it is the folder's path. An existing path is not taken as a
    pattern. Raises `SourceFailed`.
    """
    places: dict[tuple[bytes, bytes | None], JournalLocation] = {}
    for text in paths:
        pattern = absolute_path(_local(text))
        is_pattern = has_magic(pattern) and not os.path.lexists(pattern)
        matches = sorted(filter(_is_readable, glob(pattern))) if is_pattern else [pattern]
        if not matches:
            raise SourceFailed(f"nothing matches {text}: name a folder of journals that every worker can see")
        for path in matches:
            if not _is_readable(path):
                raise SourceFailed(f"there is no {path}: name a folder of journals that every worker can see")
            is_folder = os.path.isdir(path)
            folder = path if is_folder else os.path.dirname(path)
            name = server or (_matched(pattern, folder) if is_pattern else None) or show_path(os.fsencode(folder))
            place = JournalLocation(
                name, os.fsencode(folder), None if is_folder else os.fsencode(os.path.basename(path))
            )
            places.setdefault((os.path.realpath(place.folder), place.file_name), place)
    return list(places.values())


def absolute_path(path: str) -> str:
    """Return the path or pattern as an absolute one; wildcard characters of the working folder are escaped."""
    absolute = os.path.abspath(path)
    if os.path.isabs(path) or os.path.lexists(absolute):
        return absolute
    return os.path.normpath(os.path.join(escape(os.getcwd()), path))


def _is_readable(path: str) -> bool:
    return os.path.isdir(path) or os.path.isfile(path)


def _matched(pattern: str, folder: str) -> str | None:
    """Return the part of the path at the pattern's first wildcard part, or None if that is the file name."""
    for asked, found in zip(Path(pattern).parts, Path(folder).parts, strict=False):
        if has_magic(_ESCAPED.sub("", asked)):
            return show_path(os.fsencode(found))
    return None


def _local(text: str) -> str:
    """Return the path of a ``file:`` URI; return a plain path unchanged. Raises `SourceFailed` for other URIs."""
    match = _SCHEME.fullmatch(text)
    if match is None:
        return text
    scheme, host, path = match.groups()
    if scheme.lower() != "file" or (host or "//") not in ("//", "//localhost") or path is None:
        raise SourceFailed(f"{text}: journals are read from folders that every worker can see, not from {scheme}:")
    return os.fsdecode(unquote_to_bytes(path))
