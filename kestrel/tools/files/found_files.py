"""The files that a path or name selects: a queue's journal, a scroll or some of its queues, or a single file."""

from __future__ import annotations

from typing import NamedTuple, Self, TypeAlias

from kestrel.tools.formatting import show_path, show_queue


class FoundJournal(NamedTuple):
    """A queue with a journal in Kestrel's format."""

    queue: bytes

    @property
    def shown(self) -> str:
        """Text for messages."""
        return f"queue {show_queue(self.queue)}"


class FoundScroll(NamedTuple):
    """A scroll and its selected queues."""

    stem: bytes
    readers: tuple[bytes, ...] | None = None
    """Selected queues, each as `kestrel.tools.files.scrolls.ScrollQueueFile.reader`; None for all."""

    @property
    def shown(self) -> str:
        """Text for messages."""
        return f"scroll {show_path(self.stem)}"

    def joined(self, other: Self) -> Self:
        """Return a selection with the queues of both, which select from one scroll."""
        if self.readers is None or other.readers is None:
            return self._replace(readers=None)
        return self._replace(readers=tuple(dict.fromkeys(self.readers + other.readers)))


class FoundFile(NamedTuple):
    """A single file of any name."""

    file_name: bytes

    @property
    def shown(self) -> str:
        """File name, as it is shown in messages."""
        return show_path(self.file_name)


Found: TypeAlias = FoundJournal | FoundScroll | FoundFile


class DistinctFound:
    """An ordered collection of selections, with one entry per journal, scroll or file."""

    def __init__(self) -> None:
        self._found: dict[tuple[bytes, type, bytes], Found] = {}

    def add(self, folder: bytes, found: Found) -> None:
        """Add a selection of a folder, joining it with an earlier one of the same scroll."""
        key = folder, type(found), found[0]
        before = self._found.get(key)
        if isinstance(before, FoundScroll) and isinstance(found, FoundScroll):
            found = before.joined(found)
        self._found[key] = found

    def each(self) -> list[tuple[bytes, Found]]:
        """Return all selections with their folders."""
        return [(folder, found) for (folder, _, _), found in self._found.items()]
