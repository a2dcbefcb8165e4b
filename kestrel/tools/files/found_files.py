"""What a path or a name stands for: a queue's journal, a scroll or some queues of it, or one file alone."""

from __future__ import annotations

from typing import NamedTuple, Self, TypeAlias

from kestrel.tools.formatting import show_path, show_queue


class FoundJournal(NamedTuple):
    """A queue that has a journal of its own, in Kestrel's format."""

    queue: bytes

    @property
    def shown(self) -> str:
        """For a sentence."""
        return f"queue {show_queue(self.queue)}"


class FoundScroll(NamedTuple):
    """A scroll, and which of its queues are asked for."""

    stem: bytes
    readers: tuple[bytes, ...] | None = None
    """As `kestrel.tools.files.scrolls.ScrollQueueFile.reader`; None for all."""

    @property
    def shown(self) -> str:
        """For a sentence."""
        return f"scroll {show_path(self.stem)}"

    def joined(self, other: Self) -> Self:
        """The queues of both, which are of one scroll."""
        if self.readers is None or other.readers is None:
            return self._replace(readers=None)
        return self._replace(readers=tuple(dict.fromkeys(self.readers + other.readers)))


class FoundFile(NamedTuple):
    """One file by itself, whatever it is called."""

    file_name: bytes

    @property
    def shown(self) -> str:
        """For a sentence."""
        return show_path(self.file_name)


Found: TypeAlias = FoundJournal | FoundScroll | FoundFile


class DistinctFound:
    """What was found, in order; what is of the same journal, scroll or file is there once."""

    def __init__(self) -> None:
        self._found: dict[tuple[bytes, type, bytes], Found] = {}

    def add(self, folder: bytes, found: Found) -> None:
        """One more, of that folder."""
        key = folder, type(found), found[0]
        before = self._found.get(key)
        if isinstance(before, FoundScroll) and isinstance(found, FoundScroll):
            found = before.joined(found)
        self._found[key] = found

    def each(self) -> list[tuple[bytes, Found]]:
        """All, with their folders."""
        return [(folder, found) for (folder, _, _), found in self._found.items()]
