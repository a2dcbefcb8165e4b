"""Command line of kestrel-qdump: show a queue's journal or scroll, read-only, with or without a running server."""

from __future__ import annotations

import base64
import os
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Any, Final

from kestrel.disk.files import Disk
from kestrel.server.process import raise_file_limit
from kestrel.tools.arguments import add_queue_option, argument, flag, make_parser, one_of, path_name
from kestrel.tools.dumps import JournalDump, ScrollDump
from kestrel.tools.files.folder import Folder, Found, FoundFile, FoundScroll, distinct
from kestrel.tools.files.snapshot_files import FileReadResult, JournalSnapshot, damage_sentence
from kestrel.tools.formatting import show_data, show_path
from kestrel.tools.progress import ByteProgress, Progress, no_progress
from kestrel.tools.tool_runner import (
    EX_FOUND,
    EX_OK,
    BadUsage,
    Output,
    OutputFailed,
    ToolFailed,
    explain_os_error,
    print_error,
    run,
)

TOOL: Final = "kestrel-qdump"

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
    return make_parser(
        TOOL,
        _DESCRIPTION,
        _EPILOG,
        argument(
            "paths",
            metavar="PATH",
            nargs="+",
            type=path_name,
            help="a journal file, to show all files of its queue; a reader file of a scroll, to show its queue; a"
            " writer file, to show all queues of its scroll; or a folder",
        ),
        add_queue_option,
        flag("--this-file", "read only these files, whatever their names"),
        flag("-q", "--quiet", "print only the summary"),
        flag("-d", "--data", "print the data of added items too, escaped"),
        one_of(
            flag("-A", "--added", "print only the raw data of added items, one per line"),
            flag("-Q", "--queued", "print only the raw data of the items in the queue, one per line"),
            flag("--json", "print JSON, one object per record, then a summary"),
        ),
    )


def _dump_all(parser: ArgumentParser, arguments: Namespace, disk: Disk) -> int:
    raise_file_limit()  # all files of a queue are open at once
    now_ms = int(time.time() * 1000)
    output = Output()
    is_summary = arguments.quiet and not (arguments.added or arguments.queued)
    # On a terminal the lines of both would be mixed.
    progress: Progress = ByteProgress if is_summary or not output.is_terminal else no_progress
    summaries: dict[str, list[dict[str, Any]]] = {"summary": []}
    status = EX_OK
    for folder, found in _found(parser, arguments, disk):
        try:
            with folder.open(found) as opened:
                dump: JournalDump | ScrollDump
                if isinstance(opened, JournalSnapshot):
                    dump = JournalDump(opened, now_ms, progress)
                else:
                    dump = ScrollDump(opened, now_ms, progress)
                _print_dump(dump, arguments, output)
        except (BrokenPipeError, OutputFailed):
            raise
        except (OSError, ToolFailed) as error:
            status = EX_FOUND
            output.flush()
            print_error(TOOL, f"{found.shown}: {explain_os_error(error)}" if isinstance(error, OSError) else str(error))
            continue
        if arguments.json:
            for about, objects in dump.summary_json().items():
                summaries.setdefault(about, []).extend(objects)
        output.flush()
        for read in dump.files:
            if read.end.problem is not None:
                print_error(TOOL, damage_sentence(read))
                status = EX_FOUND if read.is_damaged else status
    if arguments.json:
        output.object(summaries)
    output.flush()
    return status


def _found(parser: ArgumentParser, arguments: Namespace, disk: Disk) -> list[tuple[Folder, Found]]:
    """Return the journals, scrolls and files that the paths select. A queue that several paths select occurs once."""
    folders: dict[bytes, Folder] = {}
    selections: list[tuple[bytes, Found]] = []
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
            raise BadUsage(f"there is no folder {show_path(folder.path)}: name one that has journals")
        chosen = folder.chosen(arguments.queues) if is_folder else [_found_at(folder, name, arguments)]
        selections += ((folder_path, found) for found in chosen)
        if is_folder and not chosen and (archived := folder.strays().archived()) is not None:
            print_error(TOOL, f"{show_path(path)}: {archived}")
        if is_folder and not arguments.queues:
            for sentence in folder.strays().unread():
                print_error(TOOL, sentence)
    return [(folders[folder_path], found) for folder_path, found in distinct(selections)]


def _found_at(folder: Folder, name: bytes, arguments: Namespace) -> Found:
    if arguments.this_file:
        path = folder.path + b"/" + name
        if not os.path.isfile(path):
            raise BadUsage(f"there is no file {show_path(path)}: name one that exists")
        return FoundFile(name)
    found = folder.found_at(name)
    if arguments.queued and isinstance(found, FoundScroll) and found.readers is None:
        queues = folder.scrolls()[found.stem].queues
        if len(queues) > 1:
            files = ", ".join(show_path(queue.file_name or b"") for queue in queues[:10])
            raise BadUsage(
                f"{show_path(name)} is for {len(queues)} queues: name the reader file of one ({files}), or the"
                " folder, for all of them"
            )
    return found


def _print_dump(dump: JournalDump | ScrollDump, arguments: Namespace, output: Output) -> None:
    """Print the items or records of one journal or scroll, and the summary in the text form."""
    if arguments.added or arguments.queued:
        for item in dump.added() if arguments.added else dump.queued():
            output.raw(item)
        return
    file: FileReadResult | None = None
    for read, offset, record in dump.records():
        if arguments.quiet:
            continue
        data = record.data if arguments.data else None
        fields, texts = record.fields()
        if arguments.json:
            place = {**dump.place_json(read), "offset": offset, "record": record.name, "bytes": record.size}
            fields = place | fields
            if data is not None:
                fields["data"] = base64.b64encode(data).decode("ascii")
            output.object(fields)
            continue
        if read is not file:
            file = read
            output.line(f"file {show_path(read.file_name)}")
        shown = "" if data is None else f"  {show_data(data)}"
        output.line(f"{offset:>12}  {record.name:<20}  {', '.join(texts)}{shown}".rstrip())
    if not arguments.json:
        output.lines(dump.summary_lines())


if __name__ == "__main__":
    sys.exit(main())
