"""Command line of kestrel-qdump: show a queue's journal or scroll, read-only, with or without a running server."""

from __future__ import annotations

import base64
import os
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeAlias

from kestrel.disk.files import Disk
from kestrel.server.process import raise_file_limit
from kestrel.tools.arguments import add_queue_option, make_parser, path_name
from kestrel.tools.files.folder import Folder
from kestrel.tools.files.found_files import DistinctFound, Found, FoundFile, FoundJournal, FoundScroll
from kestrel.tools.files.scrolls import ScrollSnapshot
from kestrel.tools.files.snapshot_files import FileReadResult, JournalSnapshot
from kestrel.tools.files.summary import damage_sentence
from kestrel.tools.formatting import show_data, show_path
from kestrel.tools.output import Output
from kestrel.tools.qdump.journal_dump import JournalDump, ShownRecord
from kestrel.tools.qdump.scroll_dump import ScrollDump
from kestrel.tools.tool_runner import (
    EX_FOUND,
    EX_OK,
    EX_USAGE,
    OutputFailed,
    ToolFailed,
    explain_os_error,
    print_error,
    run,
)

TOOL: Final = "kestrel-qdump"

Dump: TypeAlias = JournalDump | ScrollDump

_DESCRIPTION: Final = """\
Show the journal of a queue, or the scroll of a queue and its children: every record, then a summary of each queue's
remaining items. Files are only read, not repaired or cleaned up, also while a server is using them. The format of a
file is detected."""

_EPILOG: Final = """\
examples:
  kestrel-qdump /var/spool/kestrel/work           every record of the queue work, and a summary
  kestrel-qdump -q /var/spool/kestrel             a summary of every queue
  kestrel-qdump -q --queue work --queue mail /var/spool/kestrel
  kestrel-qdump -Q /var/spool/kestrel/work >items the items in the queue, one per line
  kestrel-qdump --json -d /var/spool/kestrel/work | jq .
  kestrel-qdump --this-file /var/spool/kestrel/.kestrel/damaged/work.1700000000000
  kestrel-qdump /var/spool/scrolls/work.read.x    all records of a scroll, and a summary of work+x

exit status: 0; 1 if a file is damaged or cannot be read (an unfinished last record is only a warning); 2 if the
command line is invalid; 130 after Ctrl-C."""


def main(argv: Sequence[str] | None = None, disk: Disk | None = None) -> int:
    """Run the command and return its exit status."""
    parser = _parser()
    return run(TOOL, lambda: _dump_all(parser, parser.parse_args(argv), disk or Disk()))


def _parser() -> ArgumentParser:
    parser = make_parser(TOOL, _DESCRIPTION, _EPILOG)
    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="+",
        type=path_name,
        help="a journal file, to show all files of its queue; a reader file of a scroll, to show its queue; a writer"
        " file, to show all queues of its scroll; or a folder",
    )
    add_queue_option(parser)
    parser.add_argument("--this-file", action="store_true", help="read only these files, whatever their names")
    parser.add_argument("-q", "--quiet", action="store_true", help="print only the summary")
    parser.add_argument("-d", "--data", action="store_true", help="print the data of added items too, escaped")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("-A", "--added", action="store_true", help="print only the raw data of added items, one per line")
    form.add_argument(
        "-Q", "--queued", action="store_true", help="print only the raw data of the items in the queue, one per line"
    )
    form.add_argument("--json", action="store_true", help="print JSON, one object per record, then a summary")
    return parser


def _dump_all(parser: ArgumentParser, arguments: Namespace, disk: Disk) -> int:
    raise_file_limit()  # all files of a queue are open at once
    now_ms = int(time.time() * 1000)
    output = Output()
    form = _form(arguments, output)
    is_summary = arguments.quiet and not (arguments.added or arguments.queued)
    may_show_progress = is_summary or not output.is_terminal  # else the lines of both would be mixed
    status = EX_OK
    for folder, found in _found(parser, arguments, disk):
        try:
            with _open(folder, found) as opened:
                dump = _dump_of(opened, now_ms, may_show_progress=may_show_progress)
                form.show(dump)
        except (BrokenPipeError, OutputFailed):
            raise
        except (OSError, ToolFailed) as error:
            status = EX_FOUND
            output.flush()
            print_error(TOOL, f"{found.shown}: {explain_os_error(error)}" if isinstance(error, OSError) else str(error))
            continue
        output.flush()
        for read in dump.files:
            if read.end.problem is not None:
                print_error(TOOL, damage_sentence(read))
                status = EX_FOUND if read.is_damaged else status
    form.end()
    output.flush()
    return status


# Reading.


def _found(parser: ArgumentParser, arguments: Namespace, disk: Disk) -> Iterator[tuple[Folder, Found]]:
    """Return the journals, scrolls and files that the paths select. A queue that several paths select occurs once."""
    folders: dict[bytes, Folder] = {}
    once = DistinctFound()
    for text in arguments.paths:
        path = os.fsencode(text)
        is_folder = os.path.isdir(path)
        folder_path, name = (path, b"") if is_folder else os.path.split(path)
        folder = folders.setdefault(folder_path, Folder(disk, folder_path or b"."))
        if is_folder and arguments.this_file:
            parser.error(f"--this-file needs a file, and {text} is a folder")
        if not is_folder and arguments.queues:
            parser.error(f"--queue needs a folder, and {text} is not one")
        if not os.path.isdir(folder.path):
            raise ToolFailed(f"there is no folder {show_path(folder.path)}: name one that has journals", EX_USAGE)
        chosen = folder.chosen(arguments.queues) if is_folder else [_found_at(folder, name, arguments)]
        for found in chosen:
            once.add(folder_path, found)
        if is_folder and not chosen and (archived := folder.strays().archived()) is not None:
            print_error(TOOL, f"{show_path(path)}: {archived}")
        if is_folder and not arguments.queues:
            for sentence in folder.strays().unread():
                print_error(TOOL, sentence)
    return ((folders[folder_path], found) for folder_path, found in once.each())


def _found_at(folder: Folder, name: bytes, arguments: Namespace) -> Found:
    if arguments.this_file:
        path = folder.path + b"/" + name
        if not os.path.isfile(path):
            raise ToolFailed(f"there is no file {show_path(path)}: name one that exists", EX_USAGE)
        return FoundFile(name)
    found = folder.found_at(name)
    if arguments.queued and isinstance(found, FoundScroll) and found.readers is None:
        queues = folder.scrolls()[found.stem].queues
        if len(queues) > 1:
            files = ", ".join(show_path(queue.file_name or b"") for queue in queues[:10])
            raise ToolFailed(
                f"{show_path(name)} is for {len(queues)} queues: name the reader file of one ({files}), or the"
                " folder, for all of them",
                EX_USAGE,
            )
    return found


def _open(folder: Folder, found: Found) -> JournalSnapshot | ScrollSnapshot:
    if isinstance(found, FoundJournal):
        return folder.open_journal(found.queue)
    return folder.open_scroll(found) if isinstance(found, FoundScroll) else folder.open_file(found.file_name)


def _dump_of(opened: JournalSnapshot | ScrollSnapshot, now_ms: int, *, may_show_progress: bool) -> Dump:
    if isinstance(opened, JournalSnapshot):
        return JournalDump(opened, now_ms, may_show_progress=may_show_progress)
    return ScrollDump(opened, now_ms, may_show_progress=may_show_progress)


# Output.


def _form(arguments: Namespace, output: Output) -> _Form:
    if arguments.added:
        return _RawData(output, lambda dump: dump.added())
    if arguments.queued:
        return _RawData(output, lambda dump: dump.queued())
    return (_Json if arguments.json else _Text)(output, is_quiet=arguments.quiet, has_data=arguments.data)


class _RawData:
    """The output of ``-A`` and ``-Q``: the raw data of items."""

    def __init__(self, output: Output, items: Callable[[Dump], Iterator[bytes]]) -> None:
        self._output = output
        self._items = items

    def show(self, dump: Dump) -> None:
        for data in self._items(dump):
            self._output.raw(data)

    def end(self) -> None:
        pass


class _Text:
    """The text format: all records, unless quiet, and a summary."""

    def __init__(self, output: Output, *, is_quiet: bool, has_data: bool) -> None:
        self._output = output
        self._is_quiet = is_quiet
        self._has_data = has_data
        self._file: FileReadResult | None = None

    def show(self, dump: Dump) -> None:
        """Print one journal or scroll."""
        if self._is_quiet:
            dump.read()
        else:
            for read, offset, record in dump.records():
                self._record(dump, read, offset, record)
        self._summary(dump)

    def _record(self, dump: Dump, read: FileReadResult, offset: int, record: ShownRecord) -> None:
        if read is not self._file:
            self._file = read
            self._output.line(f"file {show_path(read.file_name)}")
        shown = f"  {show_data(record.data)}" if self._has_data and record.data is not None else ""
        self._output.line(f"{offset:>12}  {record.name:<20}  {', '.join(record.fields())}{shown}".rstrip())

    def _summary(self, dump: Dump) -> None:
        self._output.lines(dump.summary_lines())

    def end(self) -> None:
        """Print the end of the output, after the last journal or scroll."""


class _Json(_Text):
    """The JSON format: one object per record, then one with all summaries."""

    def __init__(self, output: Output, *, is_quiet: bool, has_data: bool) -> None:
        super().__init__(output, is_quiet=is_quiet, has_data=has_data)
        self._summaries: dict[str, list[dict[str, Any]]] = {"summary": []}

    def _record(self, dump: Dump, read: FileReadResult, offset: int, record: ShownRecord) -> None:
        place = {**dump.place_json(read), "offset": offset, "record": record.name, "bytes": record.size}
        fields = place | record.fields_json()
        if self._has_data and record.data is not None:
            fields["data"] = base64.b64encode(record.data).decode("ascii")
        self._output.object(fields)

    def _summary(self, dump: Dump) -> None:
        for about, objects in dump.summary_json().items():
            self._summaries.setdefault(about, []).extend(objects)

    def end(self) -> None:
        self._output.object(self._summaries)


_Form: TypeAlias = _RawData | _Text
"""An output format."""


if __name__ == "__main__":
    sys.exit(main())
