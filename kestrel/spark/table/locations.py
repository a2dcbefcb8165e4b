"""Where journals are: what paths and patterns of paths stand for, and whose the files there are."""

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
"""A character that would be a wildcard."""


class JournalLocation(NamedTuple):
    """A folder of queues, or one file alone."""

    server: str
    folder: bytes
    """An absolute path."""
    file_name: bytes | None = None
    """None for the whole folder."""

    @property
    def shown_folder(self) -> str:
        """Its path as text."""
        return show_path(self.folder)


def find_locations(paths: Sequence[str], server: str | None) -> list[JournalLocation]:
    """What the paths stand for; what several of them stand for, also through links, is there once, as the first says.

    Without a name for the server, a pattern's first part that is one has it: in ``/data/*/spool``, what stands in the
    place of the ``*``. Any other folder is its own name. A path that is there as it stands is no pattern.
    Raises `SourceFailed`.
    """
    places: dict[tuple[bytes, bytes | None], JournalLocation] = {}
    for text in paths:
        pattern = absolute_path(_local(text))
        is_pattern = has_magic(pattern) and not os.path.lexists(pattern)
        matches = sorted(filter(_is_readable, glob(pattern))) if is_pattern else [pattern]
        if not matches:
            raise SourceFailed(f"nothing is called {text}: name a folder of journals that every worker can see")
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
    """That path or pattern, absolute. What the working folder is called is no part of a pattern."""
    absolute = os.path.abspath(path)
    if os.path.isabs(path) or os.path.lexists(absolute):
        return absolute
    return os.path.normpath(os.path.join(escape(os.getcwd()), path))


def _is_readable(path: str) -> bool:
    return os.path.isdir(path) or os.path.isfile(path)


def _matched(pattern: str, folder: str) -> str | None:
    """What stands in the place of the pattern's first part that is one; None where that is a file's name."""
    for asked, found in zip(Path(pattern).parts, Path(folder).parts, strict=False):
        if has_magic(_ESCAPED.sub("", asked)):
            return show_path(os.fsencode(found))
    return None


def _local(text: str) -> str:
    """A path, or a URI of one."""
    match = _SCHEME.fullmatch(text)
    if match is None:
        return text
    scheme, host, path = match.groups()
    if scheme.lower() != "file" or (host or "//") not in ("//", "//localhost") or path is None:
        raise SourceFailed(f"{text}: journals are read from folders that every worker can see, not from {scheme}:")
    return os.fsdecode(unquote_to_bytes(path))
