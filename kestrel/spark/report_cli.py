"""The command kestrel-report: write tables, an HTML page with charts, and a summary of the queues of some folders."""

from __future__ import annotations

import os
import re
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Sequence
from typing import Final

from kestrel.disk.files import Disk
from kestrel.spark.options import SourceFailed, parse_time_s
from kestrel.spark.report.report_data import InputSummary, ReportData, checked_interval_ms
from kestrel.spark.report.report_folder import ReportFolder
from kestrel.spark.startup import MASTER, check_installed, run_command, use_spark
from kestrel.spark.table.files import files_of
from kestrel.spark.table.options import absolute_path, find_locations
from kestrel.spark.table.planned_file import PlannedFile
from kestrel.tools.arguments import argument, duration_ms, flag, make_parser, option, path_name, positive
from kestrel.tools.tool_runner import EX_OK, Output, print_error

TOOL: Final = "kestrel-report"

_DESCRIPTION: Final = """\
Reports what happened to the queues in some folders: how many items were added and removed over time, how deep the
queues were, how long items waited, how often they were redelivered, and which queues are the biggest, the oldest and
the busiest. It writes index.html with charts, tables as Parquet, and summary.json, and prints a summary. It reads
journals and scrolls and changes nothing, so servers may be running. A FOLDER may be a pattern such as '/data/*/spool':
the part that matches the * is then the server's name. All workers must see the folders, and the report's folder, under
the same paths."""

_EPILOG: Final = """\
examples:
  kestrel-report /var/spool/kestrel
  kestrel-report '/data/*/spool' --out monday --interval 10m
  kestrel-report /var/spool/kestrel --queue 'orders*' --max-items orders=10000
  kestrel-report '/data/*/spool' --master spark://head:7077 --out /data/report
  kestrel-report /var/spool/kestrel --now 2026-01-31T12:00:00 --json | jq .fleet.waiting

exit status: 0, also when files have problems, which the report lists; 1 when the report cannot be made; 2 when the
arguments are invalid, or Spark is not installed (pip install 'kestrel-mq[spark]', and Java); 130 after Ctrl-C."""

_MILLISECONDS: Final = re.compile(r"[0-9]{1,14}")
_LATEST_MS: Final = 2**44 - 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with `argv` and return its exit status."""
    return run_command(TOOL, lambda: _work(_parser().parse_args(argv), Output()))


def _parser() -> ArgumentParser:
    parser = make_parser(TOOL, _DESCRIPTION, _EPILOG)
    folders = "a folder of journals or scrolls, or a pattern"
    interval = "the interval of charts and tables over time, such as 1m (default: from the time range)"
    limits = "the queue's maxItems, to count items that may have been discarded; may be repeated"
    now = "when the journals were read, such as 2026-01-31T12:00:00, in UTC, or ms since 1970 (default: now)"
    for add in (
        argument("folders", metavar="FOLDER", nargs="+", type=_folder, help=folders),
        option("--out", "FOLDER", _out, "the folder of the report", default="report"),
        flag("--force", "write into a folder that contains other files"),
        option("--server", "NAME", _text, "the name of the server of all these folders"),
        option("--queue", "PATTERN", _text, "only queues whose names match, as in 'orders*'"),
        option("--interval", "DURATION", _interval_ms, interval),
        argument("--max-items", metavar="QUEUE=N", type=_limit, action="append", default=[], help=limits),
        option("--now", "TIME", _time_ms, now),
        MASTER,
        flag("--json", "print the summary as JSON"),
    ):
        add(parser)
    return parser


def _work(arguments: Namespace, output: Output) -> int:
    check_installed("matplotlib", "jinja2")
    now_ms = arguments.now if arguments.now is not None else int(time.time() * 1000)
    folder = ReportFolder(arguments.out)
    places = find_locations(arguments.folders, arguments.server)
    folder.check((os.fsdecode(place.folder) for place in places), is_forced=arguments.force)
    planned = files_of(Disk(), places, arguments.queue)
    read = InputSummary(
        servers=sorted({place.server for place in places}),
        folders=sorted({place.shown_folder for place in places}),
        files=len(planned),
        bytes=sum(file.size for file in planned),
    )
    report = _made(arguments, planned, read, now_ms, folder)
    from kestrel.spark.report.page import page
    from kestrel.spark.report.report_text import as_json, format_lines

    folder.finish(page(report), as_json(report))
    if arguments.json:
        output.object(as_json(report))
    else:
        output.lines(format_lines(report))
        output.line(f"the report is {folder.page}")
    output.flush()
    if report.problem_count:
        files = "1 file has a problem" if report.problem_count == 1 else f"{report.problem_count} files have problems"
        print_error(TOOL, f"{files}: the report has only the readable records; see {folder.shown}/problems")
    return EX_OK


def _made(
    arguments: Namespace, files: Sequence[PlannedFile], read: InputSummary, now_ms: int, folder: ReportFolder
) -> ReportData:
    with use_spark(TOOL, arguments.master, "reporting") as spark:
        from kestrel.spark.report.report_writer import write_report
        from kestrel.spark.report.views import drop_views, register_views

        folder.begin()  # after Spark has started, so that a failed start keeps the old report
        limits = dict(arguments.max_items) or None
        register_views(spark, files, now_ms, arguments.interval, queue=arguments.queue, max_items=limits)
        try:
            return write_report(spark, read, now_ms, arguments.interval, folder.write)
        finally:
            drop_views(spark)


# Arguments.


def _text(argument: str) -> str:
    try:
        argument.encode()
    except UnicodeEncodeError:
        raise ArgumentTypeError("Spark accepts only UTF-8 names: rename it, or make a link to it") from None
    return argument


def _out(text: str) -> str:
    return path_name(_text(text))


def _folder(text: str) -> str:
    """Return an absolute path, because Spark may run in another folder; a URI is returned unchanged."""
    path = _out(text)
    return path if "://" in path or path.startswith("file:") else absolute_path(path)


def _interval_ms(text: str) -> int:
    try:
        return checked_interval_ms(duration_ms(text))
    except SourceFailed as error:
        raise ArgumentTypeError(str(error)) from None


def _limit(text: str) -> tuple[str, int]:
    queue, _, limit = _text(text).rpartition("=")
    if not queue:
        raise ArgumentTypeError(f"{text!r} is not a queue and its limit: write it as in orders=10000")
    return queue, positive(limit)


def _time_ms(text: str) -> int:
    if _MILLISECONDS.fullmatch(text):
        time_ms = int(text)
    else:
        try:
            time_ms = int(parse_time_s(text) * 1000)
        except (ValueError, OverflowError):
            raise ArgumentTypeError(f"{text!r} is not a time: write it as in 2026-01-31T12:00:00") from None
    if not 0 <= time_ms <= _LATEST_MS:
        raise ArgumentTypeError(f"{text!r} is outside the range of times in a journal, which begins in 1970")
    return time_ms


if __name__ == "__main__":
    sys.exit(main())
