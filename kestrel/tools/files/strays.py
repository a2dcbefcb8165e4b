"""Files of a folder that belong to no queue, and of which a person should be told all the same."""

from __future__ import annotations

from collections.abc import Iterable

from kestrel.disk.files import Disk
from kestrel.journal import fileset as journals
from kestrel.scroll import fileset as scrolls
from kestrel.tools.files.formats import Format, format_of
from kestrel.tools.formatting import count, show_path


class Strays:
    """The files of a folder whose names are no queue's."""

    def __init__(self, disk: Disk, folder: bytes, file_names: Iterable[bytes]) -> None:
        """Of these files of that folder."""
        self._disk = disk
        self._folder = folder
        self._file_names = sorted(name for name in file_names if _is_foreign(name))

    def unread(self) -> list[str]:
        """A sentence for each reader file that no server reads, because of its name."""
        return [
            f"{show_path(name)} is a reader file, and its name is no queue's, so no server reads it: rename it"
            for name in self._file_names
            if b".read." in name and b"~" not in name and self._is_reader(name)
        ]

    def _is_reader(self, name: bytes) -> bool:
        try:
            return format_of(self._disk, self._folder + b"/" + name) is Format.READER
        except OSError:  # it is nobody's: whether it can be read is nobody's concern
            return False

    def archived(self) -> str | None:
        """A sentence for a folder that has no queues, if it has writer files that nobody needs any more."""
        prefix = scrolls.archived_name(b"")
        number = sum(
            name.startswith(prefix) and scrolls.parse_file_name(name.removeprefix(prefix)) is not None
            for name in self._file_names
        )
        return f"no queues; {count(number, 'archived file')}: use --this-file of kestrel-qdump" if number else None


def _is_foreign(name: bytes) -> bool:
    return journals.parse_file_name(name) is None and scrolls.parse_file_name(name) is None
