"""What kestrel-qdump shows of one journal or scroll: the face that both formats have."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from kestrel.tools.files.snapshot_files import FileReadResult


class ShownRecord(Protocol):
    """A record of either format."""

    @property
    def name(self) -> str:
        """What the format calls it."""

    @property
    def size(self) -> int:
        """How many bytes of the file it takes."""


_Record = TypeVar("_Record", bound=ShownRecord)


class Dump(ABC, Generic[_Record]):
    """The files of one journal or scroll, open to be read once, in one of three ways. All may raise OSError."""

    @property
    @abstractmethod
    def files(self) -> Sequence[FileReadResult]:
        """Those that have been read."""

    # One way: `records` to their end, or `read`, and then the summary.

    @abstractmethod
    def records(self) -> Iterator[tuple[FileReadResult, int, _Record]]:
        """Every record with its file and offset."""

    @abstractmethod
    def read(self) -> None:
        """Read them for the summary alone."""

    @abstractmethod
    def fields(self, record: _Record) -> Iterator[str]:
        """What a record says, for a person."""

    @abstractmethod
    def fields_json(self, record: _Record) -> dict[str, Any]:
        """The same for a program."""

    @abstractmethod
    def place_json(self, file: FileReadResult) -> dict[str, Any]:
        """Whose file that is, for a program."""

    @abstractmethod
    def data_of(self, record: _Record) -> bytes | None:
        """The item that it adds; None if it adds none."""

    @abstractmethod
    def summary_lines(self) -> Iterator[str]:
        """What it comes to, for a person."""

    @abstractmethod
    def summary_json(self) -> Mapping[str, list[dict[str, Any]]]:
        """The same for a program: lists of objects, by what they are about."""

    # The others.

    @abstractmethod
    def added(self) -> Iterator[bytes]:
        """The data of all items that were ever added and are still in the files."""

    @abstractmethod
    def queued(self) -> Iterator[bytes]:
        """The data of the items that are in the queue."""
