"""kestrel-qpack: makes the journals of a folder small, and says whether files are whole. No server may be at work."""

from __future__ import annotations

import os
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from kestrel.disk.files import Disk
from kestrel.disk.folders import PRIVATE_FOLDER
from kestrel.disk.lock import FolderLock
from kestrel.disk.numbers import FileNumbers
from kestrel.errors import FolderInUse
from kestrel.server.failures import EX_CANNOT_CREATE, EX_TRY_AGAIN
from kestrel.server.reactor import raise_file_limit
from kestrel.tools.arguments import add_queue_option, make_parser
from kestrel.tools.folder import Folder, chosen_queues
from kestrel.tools.found import FoundJournal, FoundScroll
from kestrel.tools.opened import FileRead
from kestrel.tools.output import Output
from kestrel.tools.packing import Inspected, pack_queue
from kestrel.tools.running import EX_FOUND, EX_OK, EX_USAGE, ToolFailed, explained, run, say
from kestrel.tools.scroll_contents import ScrollContents
from kestrel.tools.scroll_reports import ScrollReport, not_packed, state_of
from kestrel.tools.shown import count, show_path, show_queue, spell_queue
from kestrel.tools.summary import damage_json, damage_sentence

TOOL: Final = "kestrel-qpack"

_DESCRIPTION: Final = """\
Replaces all files of each queue by one that holds the same items and nothing else. Stop the server first. Files are
repaired as at a server's start; the new file is compared with the old ones, item by item, before it takes their
place; and wherever this is interrupted, nothing is lost: the server may be started, or this run again. Scrolls are
verified, and not packed: the server erases their files as soon as nobody needs them."""

_EPILOG: Final = """\
examples:
  kestrel-qpack --verify /var/spool/kestrel       reads everything and changes nothing, also while a server is at work
  kestrel-qpack /var/spool/kestrel
  kestrel-qpack --queue work --json /var/spool/kestrel

exit status: 0; 1 when --verify finds damage (an unfinished last record is none), or a queue could not be read or
packed; 2 when the command line makes no sense; 73 when the folder cannot be written; 75 when a server owns it."""


def main(argv: Sequence[str] | None = None, disk: Disk | None = None) -> int:
    """The command. Returns its exit status."""
    arguments = _parser().parse_args(argv)
    return run(TOOL, lambda: _Work(arguments, disk or Disk()).do())


def _parser() -> ArgumentParser:
    parser = make_parser(TOOL, _DESCRIPTION, _EPILOG)
    parser.add_argument("folder", metavar="FOLDER", help="the folder of the journals or scrolls")
    add_queue_option(parser)
    parser.add_argument(
        "--verify", "--dry-run", action="store_true", help="read everything, change nothing, and say what there is"
    )
    parser.add_argument("--json", action="store_true", help="JSON, an object a queue")
    return parser


class _Work:
    """The queues of one folder, one after the other."""

    def __init__(self, arguments: Namespace, disk: Disk) -> None:
        self._disk = disk
        self._path = os.fsencode(arguments.folder).rstrip(b"/") or b"/"
        self._names: list[bytes] = arguments.queues
        self._is_json: bool = arguments.json
        self._is_verifying: bool = arguments.verify
        self._output = Output()
        self._now_ms = int(time.time() * 1000)
        self._status = EX_OK

    def do(self) -> int:
        """Look at the queues, or pack them. Returns the exit status."""
        raise_file_limit()  # all files of a queue are open at once
        if not os.path.isdir(self._path):
            raise ToolFailed(f"there is no folder {show_path(self._path)}: name the one of the journals", EX_USAGE)
        folder = Folder(self._disk, self._path)
        if self._is_verifying or not self._journals(folder):
            self._each(folder, None)
        else:
            with self._owned(folder):
                folder.hold()
                numbers = FileNumbers(lambda: self._now_ms)
                numbers.know(number for files in folder.journals().values() for number in files.numbers())
                self._each(folder, numbers)
        return self._status

    def _journals(self, folder: Folder) -> list[bytes]:
        """The queues that are to be packed."""
        return [found.queue for found in folder.chosen(self._names) if isinstance(found, FoundJournal)]

    @contextmanager
    def _owned(self, folder: Folder) -> Iterator[None]:
        shown = show_path(self._path)
        try:
            self._check_owner(folder)
            self._disk.make_folder(self._path + b"/" + PRIVATE_FOLDER)
            lock = FolderLock(self._path + b"/" + PRIVATE_FOLDER + b"/lock")
        except FolderInUse as error:
            raise ToolFailed(f"{error}: stop it first, or look with --verify", EX_TRY_AGAIN) from error
        except OSError as error:
            raise ToolFailed(f"the folder {shown} cannot be used: {explained(error)}", EX_CANNOT_CREATE) from error
        try:
            yield
        finally:
            lock.release()

    def _check_owner(self, folder: Folder) -> None:
        """A new file belongs to who makes it: the server could not read those of another user."""
        for name in self._journals(folder):
            for file in folder.journals()[name].counting():
                owner = os.stat(self._path + b"/" + file.file_name).st_uid
                if owner != os.geteuid():
                    raise ToolFailed(
                        f"the files in {show_path(self._path)} belong to user {owner}, and the new ones would not: run"
                        f" this as that user (sudo -u '#{owner}' {TOOL} ...)",
                        EX_CANNOT_CREATE,
                    )

    def _each(self, folder: Folder, numbers: FileNumbers | None) -> None:
        chosen = folder.chosen(self._names)
        for found in chosen:
            if isinstance(found, FoundJournal):
                self._journal(folder, found.queue, numbers)
            elif isinstance(found, FoundScroll):
                self._scroll(folder, found)
            self._output.flush()
        if not chosen and (archived := folder.strays().archived()) is not None:
            say(TOOL, f"{show_path(self._path)}: {archived}")
        if self._is_verifying and not self._names:
            for sentence in folder.strays().unread():
                self._complain(sentence)

    def _journal(self, folder: Folder, name: bytes, numbers: FileNumbers | None) -> None:
        try:
            with folder.open_journal(name) as journal:
                before = Inspected(journal, self._now_ms)
            after_bytes = before.packed_bytes
            state = state_of(before.files)
            if numbers is not None:
                state = "unchanged" if before.is_packed else "packed"
                if not before.is_packed:
                    files = folder.journals()[name]
                    after_bytes = pack_queue(self._disk, self._path, files, before, numbers, self._now_ms)
        except OSError as error:
            sentence = "cannot be read" if self._is_verifying else "not packed, and nothing is lost"
            self._failed(spell_queue(name), f"queue {show_queue(name)}: {sentence}: {explained(error)}")
        except ToolFailed as failed:
            self._failed(spell_queue(name), str(failed))
        else:
            self._tell(_as_text(name, state, before, after_bytes), _as_json(name, state, before, after_bytes))
            self._tell_damage(before.files)

    def _scroll(self, folder: Folder, found: FoundScroll) -> None:
        try:
            if not self._is_verifying:
                for text, fields in not_packed(chosen_queues(folder.scroll(found), found)):
                    self._tell(text, fields)
                return
            with folder.open_scroll(found) as scroll:
                contents = ScrollContents(scroll, self._now_ms)
                contents.read()
        except OSError as error:
            self._failed(None, f"{found.shown}: cannot be read: {explained(error)}")
        except ToolFailed as failed:
            self._failed(None, str(failed))
        else:
            for read in contents.queues:
                report = ScrollReport(contents, read)
                self._tell(report.text(), report.json())
                if report.complaint is not None:
                    self._complain(report.complaint)
            self._tell_damage(contents.files)

    def _failed(self, queue: str | None, sentence: str) -> None:
        if self._is_json:
            self._output.object({"queue": queue, "state": "failed", "reason": sentence})
        self._complain(sentence)

    def _complain(self, sentence: str) -> None:
        self._status = EX_FOUND
        self._output.flush()
        say(TOOL, sentence)

    def _tell(self, text: str, fields: dict[str, Any]) -> None:
        if self._is_json:
            self._output.object(fields)
        else:
            self._output.line(text)

    def _tell_damage(self, files: Sequence[FileRead]) -> None:
        self._output.flush()
        for read in files:
            if read.end.problem is not None:
                was_repaired = "" if self._is_verifying else "; what could not be read is in .kestrel/damaged/"
                say(TOOL, damage_sentence(read) + was_repaired)
                if self._is_verifying and read.is_damaged:
                    self._status = EX_FOUND


def _as_json(name: bytes, state: str, before: Inspected, after_bytes: int) -> dict[str, Any]:
    return {
        "queue": spell_queue(name),
        "state": state,
        "items": before.items,
        "files": len(before.files),
        "bytes_before": before.bytes,
        "bytes_after": after_bytes,
        "damage": damage_json(before.files),
    }


def _as_text(name: bytes, state: str, before: Inspected, after_bytes: int) -> str:
    files = f"{count(len(before.files), 'file')}, {before.bytes} -> {count(after_bytes, 'byte')}"
    return f"{show_queue(name)}: {state}: {files}, {count(before.items, 'item')}"


if __name__ == "__main__":
    sys.exit(main())
