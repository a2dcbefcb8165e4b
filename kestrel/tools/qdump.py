"""kestrel-qdump: what is in a queue's journal, without a server and beside one. It only reads."""

from __future__ import annotations

import base64
import os
import sys
import time
from abc import ABC, abstractmethod
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol

from kestrel.disk.files import Disk
from kestrel.journal.fileset import JournalFile, Kind, parse_file_name
from kestrel.journal.opcodes import Opcode
from kestrel.journal.records import Record
from kestrel.server.reactor import raise_file_limit
from kestrel.tools.arguments import add_queue_option, make_parser
from kestrel.tools.contents import Contents, FileRead
from kestrel.tools.opened import Folder, OpenJournal
from kestrel.tools.output import Output
from kestrel.tools.running import EX_FOUND, EX_OK, EX_USAGE, OutputFailed, ToolFailed, explained, run, say
from kestrel.tools.shown import count, show_data, show_path, show_queue, show_time, spell_queue
from kestrel.tools.summary import Left, damage_sentence, summary_json, summary_lines

TOOL: Final = "kestrel-qdump"

_DESCRIPTION: Final = """\
Shows what is in the journal of a queue: every record, then what is left in the queue. It only reads: nothing is
repaired or cleaned up, and it may run while a server is at work on the same files."""

_EPILOG: Final = """\
examples:
  kestrel-qdump /var/spool/kestrel/work           every record of the queue work, and a summary
  kestrel-qdump -q /var/spool/kestrel             a summary of every queue
  kestrel-qdump -q --queue work --queue mail /var/spool/kestrel
  kestrel-qdump -Q /var/spool/kestrel/work >items what is in the queue, an item a line
  kestrel-qdump --json -d /var/spool/kestrel/work | jq .
  kestrel-qdump --this-file /var/spool/kestrel/.kestrel/damaged/work.1700000000000

exit status: 0; 1 when a file is damaged or cannot be read (an unfinished last record is only a warning); 2 when the
command line makes no sense."""

_ADDING: Final = frozenset({Opcode.ADD, Opcode.ADDX, Opcode.ADD_XID, Opcode.CONTINUE})


def main(argv: Sequence[str] | None = None, disk: Disk | None = None) -> int:
    """The command. Returns its exit status."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    return run(TOOL, lambda: _dump_all(parser, arguments, disk or Disk()))


def _parser() -> ArgumentParser:
    parser = make_parser(TOOL, _DESCRIPTION, _EPILOG)
    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="+",
        help="a journal file, which stands for all files of its queue; or a folder, for all its queues",
    )
    add_queue_option(parser)
    parser.add_argument("--this-file", action="store_true", help="read these files alone, whatever they are called")
    parser.add_argument("-q", "--quiet", action="store_true", help="the summary alone")
    parser.add_argument("-d", "--data", action="store_true", help="the data of added items as well, escaped")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("-A", "--added", action="store_true", help="the data of added items alone, raw, an item a line")
    form.add_argument(
        "-Q", "--queued", action="store_true", help="the data of the items in the queue alone, raw, an item a line"
    )
    form.add_argument("--json", action="store_true", help="JSON, an object a record, and the summary as the last one")
    return parser


def _dump_all(parser: ArgumentParser, arguments: Namespace, disk: Disk) -> int:
    raise_file_limit()  # all files of a queue are open at once
    now_ms = int(time.time() * 1000)
    output = Output()
    form = _form(arguments, output)
    is_summary = arguments.quiet and not (arguments.added or arguments.queued)
    may_show_progress = is_summary or not output.is_terminal  # else the lines of both would be mixed
    status = EX_OK
    for source in _sources(parser, arguments, disk):
        try:
            with source.open() as journal:
                contents = Contents(journal, now_ms, may_show_progress=may_show_progress)
                form.dump(journal.queue, contents, now_ms)
        except (BrokenPipeError, OutputFailed):
            raise
        except (OSError, ToolFailed) as error:
            status = EX_FOUND
            output.flush()
            say(TOOL, f"{source.shown}: {explained(error)}" if isinstance(error, OSError) else str(error))
            continue
        output.flush()
        for read in contents.files:
            if read.end.problem is not None:
                say(TOOL, damage_sentence(read))
                status = EX_FOUND if read.is_damaged else status
    form.end()
    output.flush()
    return status


# What is read.


class _Source(NamedTuple):
    """A queue of a folder, or of it one file alone."""

    folder: Folder
    queue: bytes
    only: JournalFile | None = None

    @property
    def shown(self) -> str:
        """For a sentence."""
        return f"queue {show_queue(self.queue)}" if self.only is None else show_path(self.only.file_name)

    def open(self) -> OpenJournal:
        """Its files."""
        if self.only is None:
            return self.folder.open(self.queue)
        return OpenJournal(self.folder.disk, self.folder.path, self.queue, [self.only])


def _sources(parser: ArgumentParser, arguments: Namespace, disk: Disk) -> Iterator[_Source]:
    """What the paths stand for. Two paths that are files of one queue stand for it once."""
    found: dict[tuple[bytes, bytes, bytes | None], _Source] = {}
    folders: dict[bytes, Folder] = {}
    for text in arguments.paths:
        path = os.fsencode(text)
        is_folder = os.path.isdir(path)
        folder_path, name = (path, b"") if is_folder else os.path.split(path)
        folder = folders.setdefault(folder_path, Folder(disk, folder_path or b"."))
        if is_folder and arguments.this_file:
            parser.error(f"--this-file wants a file, and {text} is a folder")
        if not is_folder and arguments.queues:
            parser.error(f"--queue wants a folder, and {text} is none")
        if not os.path.isdir(folder.path):
            raise ToolFailed(f"there is no folder {show_path(folder.path)}: name one that has journals", EX_USAGE)
        for source in _sources_at(folder, name, arguments):
            only = source.only.file_name if source.only else None
            found.setdefault((folder.path, source.queue, only), source)
    yield from found.values()


def _sources_at(folder: Folder, name: bytes, arguments: Namespace) -> Iterator[_Source]:
    if not name:
        for queue in folder.chosen(arguments.queues):
            yield _Source(folder, queue)
        return
    file = parse_file_name(name)
    if arguments.this_file:
        path = folder.path + b"/" + name
        if not os.path.isfile(path):
            raise ToolFailed(f"there is no file {show_path(path)}: name one that is there", EX_USAGE)
        file = file or JournalFile(name, Kind.CURRENT, 0, name)
        yield _Source(folder, file.queue, file)
        return
    if file is None:
        raise ToolFailed(
            f"{show_path(name)} is not the name of a journal file; with --this-file it is read all the same", EX_USAGE
        )
    if file.queue not in folder.queues():
        missing = show_path(os.path.join(folder.path, name))
        raise ToolFailed(f"there is no {missing}: {show_path(folder.path)} {folder.shown()}", EX_USAGE)
    yield _Source(folder, file.queue)


# What is shown.


class _Form(Protocol):
    """A form of output."""

    def dump(self, queue: bytes, contents: Contents, now_ms: int) -> None:
        """Show one queue."""

    def end(self) -> None:
        """All queues have been shown."""


def _form(arguments: Namespace, output: Output) -> _Form:
    if arguments.added:
        return _Added(output)
    if arguments.queued:
        return _Queued(output)
    return (_Json if arguments.json else _Text)(output, is_quiet=arguments.quiet, has_data=arguments.data)


class _Added:
    """-A: the data of all items that were ever added."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def dump(self, queue: bytes, contents: Contents, now_ms: int) -> None:
        for _, _, record in contents.records(are_done=False):
            if _adds(record):
                self._output.raw(record.data)

    def end(self) -> None:
        pass


class _Queued:
    """-Q: the data of the items that are there."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def dump(self, queue: bytes, contents: Contents, now_ms: int) -> None:
        contents.replay()
        for item in contents.items():
            self._output.raw(item.data)

    def end(self) -> None:
        pass


class _Listing(ABC):
    """Records, if they are wanted, and a summary."""

    def __init__(self, output: Output, *, is_quiet: bool, has_data: bool) -> None:
        self._output = output
        self._is_quiet = is_quiet
        self._has_data = has_data

    def dump(self, queue: bytes, contents: Contents, now_ms: int) -> None:
        for read, offset, record in contents.records():
            if not self._is_quiet:
                self._record(queue, read, offset, record)
        left = Left(contents.open_reads, now_ms)
        for item in contents.items():
            left.add(item)
        self._summary(queue, contents.files, left)

    @abstractmethod
    def _record(self, queue: bytes, read: FileRead, offset: int, record: Record) -> None:
        """Show a record."""

    @abstractmethod
    def _summary(self, queue: bytes, files: Sequence[FileRead], left: Left) -> None:
        """Show what a queue comes to, or keep it for the end."""

    @abstractmethod
    def end(self) -> None:
        """There are no more queues."""


class _Text(_Listing):
    """For a person."""

    _file: FileRead | None = None

    def _record(self, queue: bytes, read: FileRead, offset: int, record: Record) -> None:
        if read is not self._file:
            self._file = read
            self._output.line(f"file {show_path(read.file.file_name)}")
        fields = ", ".join(_fields(record))
        data = f"  {show_data(record.data)}" if self._has_data and _adds(record) else ""
        self._output.line(f"{offset:>12}  {record.name:<20}  {fields}{data}".rstrip())

    def _summary(self, queue: bytes, files: Sequence[FileRead], left: Left) -> None:
        for line in summary_lines(queue, files, left):
            self._output.line(line)

    def end(self) -> None:
        pass


class _Json(_Listing):
    """For a program."""

    def __init__(self, output: Output, *, is_quiet: bool, has_data: bool) -> None:
        super().__init__(output, is_quiet=is_quiet, has_data=has_data)
        self._queues: list[dict[str, Any]] = []

    def _record(self, queue: bytes, read: FileRead, offset: int, record: Record) -> None:
        fields: dict[str, Any] = {
            "queue": spell_queue(queue),
            "file": show_path(read.file.file_name),
            "offset": offset,
            "record": record.name,
            "bytes": record.size,
        }
        if _has_xid(record):
            fields["xid"] = record.xid
        if record.opcode is Opcode.UNREMOVE:
            fields["errors"] = record.errors
        if record.restates is not None:
            fields["restates"] = record.restates
        if _adds(record):
            fields |= {"data_bytes": len(record.data), "add_ms": record.add_ms, "expiry_ms": record.expiry_ms or None}
            if self._has_data:
                fields["data"] = base64.b64encode(record.data).decode("ascii")
        self._output.object(fields)

    def _summary(self, queue: bytes, files: Sequence[FileRead], left: Left) -> None:
        self._queues.append(summary_json(queue, files, left))

    def end(self) -> None:
        self._output.object({"summary": self._queues})


def _adds(record: Record) -> bool:
    return record.opcode in _ADDING and record.restates is None


def _has_xid(record: Record) -> bool:
    return record.opcode not in (Opcode.ADD, Opcode.ADDX, Opcode.REMOVE, Opcode.REMOVE_TENTATIVE)


def _fields(record: Record) -> Iterator[str]:
    if _has_xid(record):
        yield f"xid {record.xid}"
    if record.opcode is Opcode.UNREMOVE:
        yield "one error more" if record.errors is None else count(record.errors, "error")
    if record.restates is not None:
        yield f"restates {count(record.restates, 'open read')}"
    if _adds(record):
        yield count(len(record.data), "byte")
        if record.add_ms is not None:
            yield f"added {show_time(record.add_ms)}"
        yield f"expires {show_time(record.expiry_ms)}" if record.expiry_ms else "no expiry"


if __name__ == "__main__":
    sys.exit(main())
