"""The folder of a report. It contains no queues and no other files."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kestrel.disk.files import Disk
from kestrel.disk.folders import PRIVATE_FOLDER
from kestrel.journal import fileset as journals
from kestrel.scroll import fileset as scrolls
from kestrel.spark.report.report_text import MARK, unfinished_summary
from kestrel.tools.files.formats import Format, format_of
from kestrel.tools.formatting import show_text
from kestrel.tools.tool_runner import EX_USAGE, ToolFailed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PAGE: Final = "index.html"
SUMMARY: Final = "summary.json"
TABLES: Final = (
    *("histories", "problems", "queues", "rankings", "throughput", "depth", "waiting", "redeliveries", "expired"),
)
"""Names of the views that a report stores as Parquet."""

_OF_A_TABLE: Final = re.compile(r"part-.*\.parquet|_SUCCESS|_temporary|\..*\.crc", re.DOTALL)


class ReportFolder:
    """The target folder of a report. Methods raise OSError."""

    def __init__(self, path: str) -> None:
        self._path = Path(os.path.realpath(path))
        self.shown = show_text(path)

    @property
    def page(self) -> Path:
        return self._path / PAGE

    def check(self, read: Iterable[str], *, is_forced: bool) -> None:
        """Raise `ToolFailed` if a report on the folders `read` must not be written here.

        `is_forced` allows a folder that has other files, but not one that has queues.
        """
        for folder in (Path(os.path.realpath(each)) for each in read):
            if self._path.is_relative_to(folder) or folder.is_relative_to(self._path):
                raise ToolFailed(
                    f"{self.shown} overlaps the queue folder {show_text(str(folder))}: name another folder with --out",
                    EX_USAGE,
                )
        if self._path.exists() and not self._path.is_dir():
            raise ToolFailed(f"{self.shown} is not a folder: name another one with --out", EX_USAGE)
        if self._path.is_dir() and any(self._path.iterdir()) and not self._is_a_report() and not is_forced:
            raise ToolFailed(
                f"{self.shown} is not empty and not a report: name another folder, or write into it with --force",
                EX_USAGE,
            )
        self._check_that_nothing_is_lost()

    def _check_that_nothing_is_lost(self) -> None:
        """Raise `ToolFailed` if the folder has queues, or an entry with a table's name that is not a report's table.

        This also holds with ``--force``: table names may also be queue names.
        """
        if self._has_queues():
            raise ToolFailed(f"{self.shown} has queues in it: name another folder with --out", EX_USAGE)
        is_a_report = self._is_a_report()
        for name in TABLES:
            table = self._path / name
            if os.path.lexists(table) and not (is_a_report and _is_a_table(table)):
                raise ToolFailed(
                    f"{self.shown} contains {name}, which is not a table of a report: name another folder with --out",
                    EX_USAGE,
                )

    def _has_queues(self) -> bool:
        folder = os.fsencode(self._path)
        if not os.path.isdir(folder):
            return False
        if os.path.lexists(folder + b"/" + PRIVATE_FOLDER):
            return True
        disk = Disk()
        return any(
            (journals.parse_file_name(name) or scrolls.parse_file_name(name)) is not None
            and format_of(disk, folder + b"/" + name) is not Format.NEITHER
            for name in disk.list_files(folder)
        )

    def begin(self) -> None:
        """Mark the report as unfinished and delete an older page."""
        self._path.mkdir(parents=True, exist_ok=True)
        self._put(SUMMARY, _text_of(unfinished_summary()))
        with suppress(FileNotFoundError):
            self.page.unlink()

    def write(self, table: DataFrame, name: str) -> DataFrame:
        """Write a table as Parquet, replacing that of an earlier report, and return the written table."""
        uri = f"file://{self._path / name}"
        table.write.mode("overwrite").parquet(uri)
        return table.sparkSession.read.schema(table.schema).parquet(uri)

    def finish(self, page: str, summary: dict[str, Any]) -> None:
        """Write the page and mark the report as finished."""
        self._put(PAGE, page)
        self._put(SUMMARY, _text_of(summary))

    def _put(self, name: str, text: str) -> None:
        temporary = self._path / f".{name}"
        temporary.unlink(missing_ok=True)
        # Another user with access to this folder must not redirect the write with a link.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        temporary.replace(self._path / name)

    def _is_a_report(self) -> bool:
        try:
            summary = json.loads((self._path / SUMMARY).read_text("utf-8"))
        except (OSError, ValueError):
            return False
        return isinstance(summary, dict) and MARK in summary


def _is_a_table(path: Path) -> bool:
    """Return True if all file names are those of Spark's output, which no file of a queue has."""
    if path.is_symlink() or not path.is_dir():
        return False
    return all(_OF_A_TABLE.fullmatch(each.name) for each in path.iterdir())


def _text_of(summary: dict[str, Any]) -> str:
    return json.dumps(summary, indent=2) + "\n"
