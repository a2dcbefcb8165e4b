"""The folder that a report is written to. It is never one of queues, nor has it anything else in it."""

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
from kestrel.spark.reports.report_text import MARK, unfinished_summary
from kestrel.tools.files.formats import Format, format_of
from kestrel.tools.formatting import show_text
from kestrel.tools.tool_runner import EX_USAGE, ToolFailed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PAGE: Final = "index.html"
SUMMARY: Final = "summary.json"
TABLES: Final = ("histories", "problems", "queues", "throughput", "depth", "waiting", "redeliveries", "expired")
"""A folder each."""

_OF_A_TABLE: Final = re.compile(r"part-.*\.parquet|_SUCCESS|_temporary|\..*\.crc", re.DOTALL)


class ReportFolder:
    """Methods raise OSError."""

    def __init__(self, path: str) -> None:
        self._path = Path(os.path.realpath(path))
        self.shown = show_text(path)

    @property
    def page(self) -> Path:
        """Where the page is."""
        return self._path / PAGE

    def check(self, read: Iterable[str], *, is_forced: bool) -> None:
        """Raise `ToolFailed` if a report of these folders is not to be written there."""
        for folder in (Path(os.path.realpath(each)) for each in read):
            if self._path.is_relative_to(folder) or folder.is_relative_to(self._path):
                raise ToolFailed(
                    f"{self.shown} is where the queues of {show_text(str(folder))} are: name another folder with --out",
                    EX_USAGE,
                )
        if self._path.exists() and not self._path.is_dir():
            raise ToolFailed(f"{self.shown} is no folder: name another one with --out", EX_USAGE)
        if self._path.is_dir() and any(self._path.iterdir()) and not self._is_a_report() and not is_forced:
            raise ToolFailed(
                f"{self.shown} is not empty, and no report: name another folder, or write into it with --force",
                EX_USAGE,
            )
        self._check_that_nothing_is_lost()

    def _check_that_nothing_is_lost(self) -> None:
        """Whoever forces it did not mean queues, which may be called as tables are."""
        if self._has_queues():
            raise ToolFailed(f"{self.shown} has queues in it: name another folder with --out", EX_USAGE)
        is_a_report = self._is_a_report()
        for name in TABLES:
            table = self._path / name
            if os.path.lexists(table) and not (is_a_report and _is_a_table(table)):
                raise ToolFailed(
                    f"{self.shown} has something called {name} in it that is no table of a report: name another folder"
                    " with --out",
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
        """It is an unfinished report from now on, and a page that was there is none any more."""
        self._path.mkdir(parents=True, exist_ok=True)
        self._put(SUMMARY, _text_of(unfinished_summary()))
        with suppress(FileNotFoundError):
            self.page.unlink()

    def write(self, name: str, table: DataFrame) -> None:
        """Write a table as Parquet, in the place of one that an earlier report had there."""
        table.write.mode("overwrite").parquet(f"file://{self._path / name}")

    def finish(self, page: str, summary: dict[str, Any]) -> None:
        """It is whole."""
        self._put(PAGE, page)
        self._put(SUMMARY, _text_of(summary))

    def _put(self, name: str, text: str) -> None:
        temporary = self._path / f".{name}"
        temporary.unlink(missing_ok=True)
        # Whoever else may write in this folder must not choose with a link what is written.
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
    """Whether all that is there is called as Spark calls it. No file of a queue is."""
    if path.is_symlink() or not path.is_dir():
        return False
    return all(_OF_A_TABLE.fullmatch(each.name) for each in path.iterdir())


def _text_of(summary: dict[str, Any]) -> str:
    return json.dumps(summary, indent=2) + "\n"
