"""Files of a folder that belong to no queue but should be reported."""

from __future__ import annotations

from collections.abc import Iterable

from kestrel.disk.files import Disk
from kestrel.journal import fileset as journals
from kestrel.scroll import fileset as scrolls
from kestrel.tools.files.formats import Format, format_of
from kestrel.tools.formatting import count, show_path


class Strays:
    """The files of a folder whose names belong to no queue."""

    def __init__(self, disk: Disk, folder: bytes, file_names: Iterable[bytes]) -> None:
        self._disk = disk
        self._folder = folder
        self._file_names = sorted(name for name in file_names if _is_foreign(name))

    def unread(self) -> list[str]:
        """Return a sentence for each reader file that no server reads because of its name."""
        return [
            f"{show_path(name)} is a reader file, but no queue has that name, so no server reads it: rename it"
            for name in self._file_names
            if b".read." in name and b"~" not in name and self._is_reader(name)
        ]

    def _is_reader(self, name: bytes) -> bool:
        try:
            return format_of(self._disk, self._folder + b"/" + name) is Format.READER
        except OSError:  # the file belongs to no queue: a read error does not matter
            return False

    def archived(self) -> str | None:
        """Return a sentence for a folder without queues that has archived writer files, or None without them."""
        prefix = scrolls.archived_name(b"")
        number = sum(
            name.startswith(prefix) and scrolls.parse_file_name(name.removeprefix(prefix)) is not None
            for name in self._file_names
        )
        return f"no queues; {count(number, 'archived file')}: use --this-file of kestrel-qdump" if number else None


def _is_foreign(name: bytes) -> bool:
    return journals.parse_file_name(name) is None and scrolls.parse_file_name(name) is None
