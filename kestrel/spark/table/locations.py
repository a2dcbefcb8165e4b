"""Resolution of paths and patterns to folders or files of journals, with their server names."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from glob import escape, glob, has_magic
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from kestrel.spark.failures import SourceFailed
from kestrel.tools.formatting import show_path

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
        """The folder's path as text."""
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
