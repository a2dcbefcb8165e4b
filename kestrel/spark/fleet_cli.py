"""The command kestrel-fleet: verify, pack, export and import the queues of many folders in parallel with Spark."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from kestrel.spark.startup import MASTER, run_command, use_spark
from kestrel.spark.table.options import find_locations
from kestrel.tools.arguments import add_queue_option, make_parser, path_name
from kestrel.tools.formatting import count, show_text
from kestrel.tools.tool_runner import EX_FOUND, EX_OK, EX_USAGE, Output, ToolFailed, print_error

TOOL: Final = "kestrel-fleet"

_DESCRIPTION: Final = """\
Manages the queues of many servers at once. It verifies and packs their files, exports items and imports them into new
queues, like the tools for a single folder. Spark runs one task for each processor, or the tasks of a cluster. A FOLDER
holds journals or scrolls. It may be a pattern such as '/data/*/spool': the part that matches the * is then the server's
name. All workers must see the folders under the same paths."""

_EPILOG: Final = """\
examples:
  kestrel-fleet verify '/data/*/spool'
  kestrel-fleet verify --json /var/spool/kestrel | jq 'select(.state != "ok")'
  kestrel-fleet pack '/data/*/spool'
  kestrel-fleet export '/data/*/spool' --out items --format parquet
  kestrel-fleet import items --into /srv/new --server web1
  kestrel-fleet verify --master spark://head:7077 '/data/*/spool'

exit status: 0; 1 when damage is found (an unfinished last record is not damage), or something could not be read or
done; 2 when the arguments are invalid, or Spark is not installed (pip install 'kestrel-mq[spark]', and Java); 73 when a
folder cannot be written; 75 when a server owns one; 130 after Ctrl-C. Of several statuses the highest counts."""

_VERIFY: Final = """\
Reads all files of the queues, one task for each queue. Reports whether they are whole, and how many bytes packing would
free. Changes nothing, so servers may be running. The report is the same as that of kestrel-qpack --verify."""

_PACK: Final = """\
Replaces all files of each queue by one file that holds only the current items, one task for each folder, as
kestrel-qpack does. No server may be running on the folder. A folder that a server owns is reported, and the other
folders are packed. Run this command, and the workers, as the user that the servers run as."""

_EXPORT: Final = """\
Writes the items of all queues to files of Parquet or JSON lines, one task for each queue. It writes either the items
that a server would have after a restart, or all items that were ever added and are still in the files. These are the
items of kestrel-qdump -Q and -A. Changes nothing, so servers may be running. The columns are server, folder, queue,
position, add_time, expiry_time, errors and data. In JSON data is text, or base64 if the item is not valid UTF-8."""

_IMPORT: Final = """\
Makes queues from exported items, or from other files with the columns queue and data, and optionally position,
add_time, expiry_time, errors and server. Each queue becomes one journal file. No server may be running on the folder,
which is created if needed. Either all queues are made, or none."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with `argv` and return its exit status."""

    def work() -> int:
        arguments = _parser().parse_args(argv)
        return _COMMANDS[arguments.command](arguments, Output())

    return run_command(TOOL, work)


def _parser() -> ArgumentParser:
    parser = make_parser(TOOL, _DESCRIPTION, _EPILOG)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, title="commands")

    def command(name: str, brief: str, description: str, examples: str) -> ArgumentParser:
        added = commands.add_parser(
            name,
            help=brief,
            description=description,
            epilog=f"examples:\n{examples}",
            formatter_class=RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        MASTER(added)
        return added

    verify = command("verify", "read all files and report damage", _VERIFY, "  kestrel-fleet verify '/data/*/spool'")
    pack = command(
        "pack", "make one small file of each queue", _PACK, "  kestrel-fleet pack --queue work '/data/*/spool'"
    )
    export = command(
        "export",
        "write items to Parquet or JSON lines",
        _EXPORT,
        "  kestrel-fleet export '/data/*/spool' --out items --format parquet\n"
        "  kestrel-fleet export /var/spool/kestrel --out added --format jsonl --added --queue work",
    )
    for each in (verify, pack, export):
        each.add_argument(
            "folders", metavar="FOLDER", nargs="+", type=path_name, help="a folder of journals or scrolls, or a pattern"
        )
        each.add_argument("--server", metavar="NAME", help="the name of the server of all these folders")
        add_queue_option(each)
    export.add_argument("--out", metavar="DIR", required=True, type=path_name, help="a new folder for the items")
    export.add_argument("--format", choices=("parquet", "jsonl"), required=True, help="the file format")
    which = export.add_mutually_exclusive_group()
    which.add_argument("--queued", action="store_true", help="only the items that are in the queues (default)")
    which.add_argument("--added", action="store_true", help="all items that were ever added")

    importing = command(
        "import",
        "make queues of items in a folder of journals",
        _IMPORT,
        "  kestrel-fleet import items --into /srv/new\n"
        "  kestrel-fleet import items --into /srv/new --server web1 --queue work",
    )
    importing.add_argument("items", metavar="IN", type=path_name, help="a folder or file of exported items")
    importing.add_argument(
        "--into", metavar="FOLDER", required=True, type=path_name, help="the folder of the new queues"
    )
    importing.add_argument("--server", metavar="NAME", help="only the items of this server")
    importing.add_argument(
        "--format", choices=("parquet", "jsonl"), help="the file format (default: from the names of the files)"
    )
    add_queue_option(importing)
    for each in (verify, pack, importing):
        each.add_argument("--json", action="store_true", help="print JSON, one object for each queue")
    return parser


def _maintain(arguments: Namespace, output: Output) -> int:
    """Verify or pack, and print the results."""
    is_packing = arguments.command == "pack"
    find_locations(arguments.folders, arguments.server)  # before Spark is started
    with use_spark(TOOL, arguments.master, "packing" if is_packing else "verifying") as spark:
        from kestrel.spark.fleet.pack import pack
        from kestrel.spark.fleet.verify import OutcomeRow, format_outcomes, verify

        work = pack if is_packing else verify
        table = work(spark, arguments.folders, server=arguments.server, queues=arguments.queues)
        rows = [OutcomeRow(row.asDict(recursive=True)) for row in table.collect()]
    reports = sorted(rows, key=lambda report: report.place)
    if arguments.json:
        for report in reports:
            if (fields := report.json()) is not None:
                output.object(fields)
    else:
        output.lines(format_outcomes(reports))
    output.flush()
    for report in reports:
        for sentence in report.remarks:
            print_error(TOOL, sentence if report.folder in sentence else f"{report.folder}: {sentence}")
    return max((report.status for report in reports), default=EX_OK)


def _export(arguments: Namespace, output: Output) -> int:
    find_locations(arguments.folders, arguments.server)  # before Spark is started
    out: str = arguments.out
    if os.path.lexists(out):
        raise ToolFailed(f"{show_text(out)} already exists: name another folder for the items", EX_USAGE)
    with use_spark(TOOL, arguments.master, "exporting") as spark:
        from kestrel.spark.fleet.export import ExportFormat, ItemSelection, export

        done = export(
            spark,
            arguments.folders,
            out,
            form=ExportFormat(arguments.format),
            which=ItemSelection.ADDED if arguments.added else ItemSelection.QUEUED,
            server=arguments.server,
            queues=arguments.queues,
        )
    if len(done.servers) > 1:
        output.lines(done.lines())
        output.line("")
    output.line(f"{count(done.items, 'item')} in {show_text(out)}")
    output.flush()
    for remark in done.remarks:
        print_error(TOOL, remark.sentence)
    return EX_FOUND if any(remark.is_complaint for remark in done.remarks) else EX_OK


def _import(arguments: Namespace, output: Output) -> int:
    with use_spark(TOOL, arguments.master, "importing") as spark:
        from kestrel.spark.fleet.export import ExportFormat
        from kestrel.spark.fleet.importing import import_items, read_items

        form = None if arguments.format is None else ExportFormat(arguments.format)
        items = read_items(spark, arguments.items, form)
        made = import_items(spark, items, arguments.into, server=arguments.server, queues=arguments.queues)
    if arguments.json:
        for each in made:
            output.object(each._asdict())
    else:
        items_made = count(sum(each.items for each in made), "item")
        output.line(f"{items_made} in {count(len(made), 'queue')} of {show_text(arguments.into)}")
    output.flush()
    return EX_OK


_COMMANDS: Final[Mapping[str, Callable[[Namespace, Output], int]]] = {
    "verify": _maintain,
    "pack": _maintain,
    "export": _export,
    "import": _import,
}


if __name__ == "__main__":
    sys.exit(main())
