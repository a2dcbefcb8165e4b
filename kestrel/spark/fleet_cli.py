"""kestrel-fleet: verifies, packs, exports and imports the queues of many folders at a time, with Spark."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from kestrel.tools.arguments import add_queue_option, make_parser, path_name
from kestrel.tools.formatting import count, show_text
from kestrel.tools.output import Output
from kestrel.tools.tool_runner import EX_FOUND, EX_OK, EX_USAGE, ToolFailed, print_error, run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOOL: Final = "kestrel-fleet"

_DESCRIPTION: Final = """\
Looks after the queues of many servers at once: verifies their files, packs them, and moves items out of them and into
new ones, as the tools for one folder do, in as many tasks at a time as there are processors, or on a cluster of
Spark. A FOLDER is one of journals or scrolls, or a pattern of such, as in '/data/*/spool': then what stands in the
place of the * is the server's name. All workers must see the folders under the same paths."""

_EPILOG: Final = """\
examples:
  kestrel-fleet verify '/data/*/spool'
  kestrel-fleet verify --json /var/spool/kestrel | jq 'select(.state != "ok")'
  kestrel-fleet pack '/data/*/spool'
  kestrel-fleet export '/data/*/spool' --out items --format parquet
  kestrel-fleet import items --into /srv/new --server web1
  kestrel-fleet verify --master spark://head:7077 '/data/*/spool'

exit status: 0; 1 when damage is found (an unfinished last record is none), or something could not be read or done; 2
when the command line makes no sense, or Spark is not installed (pip install 'kestrel-mq[spark]', and Java); 73 when a
folder cannot be written; 75 when a server owns one; 130 after Ctrl-C. Of several folders it is the highest."""

_VERIFY: Final = """\
Reads all files of the queues, each queue in a task, and says whether they are whole, and what packing would free.
Nothing is changed, so that servers may be at work. It says what kestrel-qpack --verify says of each folder."""

_PACK: Final = """\
Replaces all files of each queue by one that holds the same items and nothing else, each folder in a task, as
kestrel-qpack does: no server may be at work there. A folder that a server owns is reported, and the others go on. Run
it, and the workers, as the user that the servers run as."""

_EXPORT: Final = """\
Writes the items of all queues to files of Parquet, or of JSON, an item a line, each queue in a task: those that are
queued, as a server would have them after a restart, or all that were ever added and are still in the files. They are
the items of kestrel-qdump -Q and -A. Nothing is changed, so that servers may be at work. The columns are server,
folder, queue, position, add_ms, expiry_ms, errors and data; in JSON data is text, and where the item is no UTF-8 there
is base64 in its place."""

_IMPORT: Final = """\
Makes queues of items that were exported, or that something else has made with the columns queue and data, and if it
likes position, add_ms, expiry_ms, errors and server: a journal file each, in a folder that no server has running and
that is made if need be. All queues are there when it ends well, and else none."""


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns its exit status."""
    return run(TOOL, lambda: _do(_parser().parse_args(argv)))


def _do(arguments: Namespace) -> int:
    return _COMMANDS[arguments.command](arguments, Output())


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
        added.add_argument(
            "--master",
            metavar="URL",
            help="the Spark that does the work, such as spark://head:7077 (default: this machine, local[*])",
        )
        return added

    verify = command(
        "verify", "read everything, and say what is damaged", _VERIFY, "  kestrel-fleet verify '/data/*/spool'"
    )
    pack = command(
        "pack", "one small file for each queue", _PACK, "  kestrel-fleet pack --queue work '/data/*/spool'"
    )
    export = command(
        "export",
        "items to Parquet or JSON lines",
        _EXPORT,
        "  kestrel-fleet export '/data/*/spool' --out items --format parquet\n"
        "  kestrel-fleet export /var/spool/kestrel --out added --format jsonl --added --queue work",
    )
    for each in (verify, pack, export):
        each.add_argument(
            "folders",
            metavar="FOLDER",
            nargs="+",
            type=path_name,
            help="a folder of journals or scrolls, or a pattern",
        )
        each.add_argument("--server", metavar="NAME", help="the name of the server of all these folders")
        add_queue_option(each)
    for each in (verify, pack):
        each.add_argument("--json", action="store_true", help="JSON, an object a queue")
    export.add_argument("--out", metavar="DIR", required=True, type=path_name, help="a folder that is not there yet")
    export.add_argument("--format", choices=("parquet", "jsonl"), required=True, help="how items are written")
    which = export.add_mutually_exclusive_group()
    which.add_argument("--queued", action="store_true", help="the items that are in the queues (this is the default)")
    which.add_argument("--added", action="store_true", help="all items that were ever added")

    importing = command(
        "import",
        "items to a folder of journals",
        _IMPORT,
        "  kestrel-fleet import items --into /srv/new\n"
        "  kestrel-fleet import items --into /srv/new --server web1 --queue work",
    )
    importing.add_argument(
        "items", metavar="IN", type=path_name, help="a folder of items that were exported, or a file of them"
    )
    importing.add_argument(
        "--into", metavar="FOLDER", required=True, type=path_name, help="the folder of the new queues"
    )
    importing.add_argument("--server", metavar="NAME", help="the items of this server alone")
    importing.add_argument(
        "--format",
        choices=("parquet", "jsonl"),
        help="how items are written (default: as the names of the files end)",
    )
    importing.add_argument("--json", action="store_true", help="JSON, an object a queue")
    add_queue_option(importing)
    return parser


@contextmanager
def _spark(arguments: Namespace, doing: str) -> Iterator[SparkSession]:
    """Spark, and a line of progress while it works."""
    from kestrel.spark.startup import check_installed, start_spark

    check_installed()
    from kestrel.spark.failures import SourceFailed
    from kestrel.spark.job_progress import JobProgress
    from kestrel.spark.stderr_capture import capture_stderr

    with ExitStack() as stack:
        with capture_stderr():
            spark = stack.enter_context(start_spark(TOOL, arguments.master))
        try:
            with JobProgress(spark, doing):
                yield spark
        except SourceFailed as failed:
            raise ToolFailed(str(failed), EX_USAGE) from failed


def _check_folders(arguments: Namespace) -> None:
    """What is wrong with the folders is said at once, and not when Spark runs."""
    from kestrel.spark.failures import SourceFailed
    from kestrel.spark.table.locations import find_locations

    try:
        find_locations(arguments.folders, arguments.server)
    except SourceFailed as failed:
        raise ToolFailed(str(failed), EX_USAGE) from failed


def _verify(arguments: Namespace, output: Output) -> int:
    def table(spark: SparkSession) -> DataFrame:
        from kestrel.spark.fleet.verify import verify

        return verify(spark, arguments.folders, server=arguments.server, queues=arguments.queues)

    return _reports(arguments, output, "verifying", table)


def _pack(arguments: Namespace, output: Output) -> int:
    def table(spark: SparkSession) -> DataFrame:
        from kestrel.spark.fleet.pack import pack

        return pack(spark, arguments.folders, server=arguments.server, queues=arguments.queues)

    return _reports(arguments, output, "packing", table)


def _reports(
    arguments: Namespace, output: Output, doing: str, table: Callable[[SparkSession], DataFrame]
) -> int:
    _check_folders(arguments)
    with _spark(arguments, doing) as spark:
        from kestrel.spark.fleet.outcome_rows import OutcomeRow, format_outcomes

        rows = [OutcomeRow(row.asDict(recursive=True)) for row in table(spark).collect()]
    reports = sorted(rows, key=lambda report: report.place)
    if arguments.json:
        for report in reports:
            if (fields := report.json()) is not None:
                output.object(fields)
    else:
        for line in format_outcomes(reports):
            output.line(line)
    output.flush()
    for report in reports:
        for sentence in report.remarks:
            print_error(TOOL, sentence if report.folder in sentence else f"{report.folder}: {sentence}")
    return max((report.status for report in reports), default=EX_OK)


def _export(arguments: Namespace, output: Output) -> int:
    _check_folders(arguments)
    out: str = arguments.out
    if os.path.lexists(out):
        raise ToolFailed(f"{show_text(out)} is there already: name another folder for the items", EX_USAGE)
    with _spark(arguments, "exporting") as spark:
        from kestrel.spark.fleet.export import ExportFormat, export
        from kestrel.spark.fleet.items import ItemSelection

        done = export(
            spark,
            arguments.folders,
            out,
            form=ExportFormat(arguments.format),
            which=ItemSelection.ADDED if arguments.added else ItemSelection.QUEUED,
            server=arguments.server,
            queues=arguments.queues,
        )
    output.line(f"{count(done.items, 'item')} in {show_text(out)}")
    output.flush()
    for remark in done.remarks:
        print_error(TOOL, remark.sentence)
    return EX_FOUND if any(remark.is_complaint for remark in done.remarks) else EX_OK


def _import(arguments: Namespace, output: Output) -> int:
    with _spark(arguments, "importing") as spark:
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
    "verify": _verify,
    "pack": _pack,
    "export": _export,
    "import": _import,
}


if __name__ == "__main__":
    sys.exit(main())
