"""The interface of a dump of one journal or scroll, which both formats implement."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from kestrel.tools.files.snapshot_files import FileReadResult


class ShownRecord(Protocol):
    """A record of either format."""

    @property
    def name(self) -> str:
        """Name of the record in the format."""

    @property
    def size(self) -> int:
        """Size of the record in the file, in bytes."""


_Record = TypeVar("_Record", bound=ShownRecord)


class Dump(ABC, Generic[_Record]):
    """The open files of one journal or scroll, to be read once. All methods may raise OSError.

    Read them in one of three ways: `records` or `read` and then the summary, or `added`, or `queued`.
    """

    @property
    @abstractmethod
    def files(self) -> Sequence[FileReadResult]:
        """Files that have been read."""

    @abstractmethod
    def records(self) -> Iterator[tuple[FileReadResult, int, _Record]]:
        """Yield every record with its file and offset."""

    @abstractmethod
    def read(self) -> None:
        """Read all records, for the summary."""

    @abstractmethod
    def fields(self, record: _Record) -> Iterator[str]:
        """Yield the fields of a record as text."""

    @abstractmethod
    def fields_json(self, record: _Record) -> dict[str, Any]:
        """Return the fields of a record as a JSON object."""

    @abstractmethod
    def place_json(self, file: FileReadResult) -> dict[str, Any]:
        """Return the name of a file, and its queue or scroll, as a JSON object."""

    @abstractmethod
    def data_of(self, record: _Record) -> bytes | None:
        """Return the data of the item that a record adds, or None if it adds none."""

    @abstractmethod
    def summary_lines(self) -> Iterator[str]:
        """Yield the summary as text lines, after all records have been read."""

    @abstractmethod
    def summary_json(self) -> Mapping[str, list[dict[str, Any]]]:
        """Return the summary as lists of JSON objects by subject, after all records have been read."""

    @abstractmethod
    def added(self) -> Iterator[bytes]:
        """Yield the data of all added items that the files still hold."""

    @abstractmethod
    def queued(self) -> Iterator[bytes]:
        """Yield the data of the items that are in the queue."""
