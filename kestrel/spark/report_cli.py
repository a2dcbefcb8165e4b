"""kestrel-report: what happened to the queues of some folders, as tables, as a page with pictures, in a few lines."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from kestrel.disk.files import Disk
from kestrel.spark.failures import SourceFailed
from kestrel.spark.reports.intervals import checked_interval_ms
from kestrel.spark.reports.report_data import InputSummary, ReportData
from kestrel.spark.reports.report_folder import ReportFolder
from kestrel.spark.startup import check_installed, start_spark
from kestrel.spark.stderr_capture import capture_stderr
from kestrel.spark.table.files import files_of
from kestrel.spark.table.locations import JournalLocation, absolute_path, find_locations
from kestrel.tools.arguments import duration_ms, make_parser, path_name, positive
from kestrel.tools.output import Output
from kestrel.tools.tool_runner import EX_OK, EX_USAGE, ToolFailed, print_error, run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOOL: Final = "kestrel-report"

_DESCRIPTION: Final = """\
Says what happened to the queues in some folders: how many items were added and removed when, how deep the queues were,
how long items waited, how often they came back, which queues are the biggest, the oldest and the busiest. It writes
index.html with pictures, tables as Parquet, and summary.json, and prints a summary. It reads journals and scrolls, also
while servers are at work, and changes nothing there. A FOLDER may be a pattern, as in '/data/*/spool': then what stands
in the place of the * is the server's name. Folders, and that of the report, must be the same for all workers."""

_EPILOG: Final = """\
examples:
  kestrel-report /var/spool/kestrel
  kestrel-report '/data/*/spool' --out monday --interval 10m
  kestrel-report /var/spool/kestrel --queue 'orders*' --max-items orders=10000
  kestrel-report '/data/*/spool' --master spark://head:7077 --out /data/report
  kestrel-report /var/spool/kestrel --now 2026-01-31T12:00:00 --json | jq .fleet.waiting

exit status: 0, also when files have problems, which the report lists; 1 when it cannot be made; 2 when the command line
makes no sense, or Spark is not installed (pip install 'kestrel-mq[spark]', and Java); 130 after Ctrl-C."""

_MILLISECONDS: Final = re.compile(r"[0-9]{1,14}")
_LATEST_MS: Final = 2**44 - 1

_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_LEAST_PARTITIONS: Final = 4
_PARTITION_BYTES: Final = 16 * 1024 * 1024
"""Of journals, for each partition more."""


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns its exit status."""
    return run(TOOL, lambda: _work(_parser().parse_args(argv), Output()))


def _parser() -> ArgumentParser:
    parser = make_parser(TOOL, _DESCRIPTION, _EPILOG)
    parser.add_argument(
        "folders", metavar="FOLDER", nargs="+", type=_folder, help="a folder of journals or scrolls, or a pattern"
    )
    parser.add_argument(
        "--out", metavar="FOLDER", type=_out, default="report", help="where the report is written (default: report)"
    )
    parser.add_argument("--force", action="store_true", help="write into a folder that has other things in it as well")
    parser.add_argument("--server", metavar="NAME", type=_text, help="the name of the server of all these folders")
    parser.add_argument("--queue", metavar="PATTERN", type=_text, help="queues with such names alone, as in 'orders*'")
    parser.add_argument(
        "--interval",
        metavar="DURATION",
        type=_interval_ms,
        help="of what is shown over time, such as 1m (default: what suits the time range)",
    )
    parser.add_argument(
        "--max-items",
        metavar="QUEUE=N",
        type=_limit,
        action="append",
        default=[],
        help="the queue's maxItems, to tell what may have been discarded; may be given several times",
    )
    parser.add_argument(
        "--now",
        metavar="TIME",
        type=_time_ms,
        help="when the journals were read, such as 2026-01-31T12:00:00, in UTC, or ms since 1970 (default: now)",
    )
    parser.add_argument(
        "--master",
        metavar="URL",
        help="the Spark that does the work, such as spark://head:7077 (default: this machine, local[*])",
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    return parser


def _work(arguments: Namespace, output: Output) -> int:
    check_installed()
    _check_drawn()
    now_ms = arguments.now if arguments.now is not None else int(time.time() * 1000)
    folder = ReportFolder(arguments.out)
    try:
        places = find_locations(arguments.folders, arguments.server)
        folder.check((os.fsdecode(place.folder) for place in places), is_forced=arguments.force)
        read = _look(places, arguments.queue)
        report = _made(arguments, read, now_ms, folder)
    except SourceFailed as failed:
        raise ToolFailed(str(failed), EX_USAGE) from failed
    from kestrel.spark.reports.page import page
    from kestrel.spark.reports.report_text import as_json, format_lines

    folder.finish(page(report), as_json(report))
    if arguments.json:
        output.object(as_json(report))
    else:
        for line in format_lines(report):
            output.line(line)
        output.line(f"the report is {folder.page}")
    output.flush()
    if report.problem_count:
        files = "1 file has a problem" if report.problem_count == 1 else f"{report.problem_count} files have problems"
        print_error(TOOL, f"{files}: what could be read of it is in the report, which lists {folder.shown}/problems")
    return EX_OK


def _look(places: Sequence[JournalLocation], queue: str | None) -> InputSummary:
    """What there is to read."""
    files = files_of(Disk(), places, queue)
    return InputSummary(
        servers=sorted({place.server for place in places}),
        folders=sorted({place.shown_folder for place in places}),
        files=len(files),
        bytes=sum(file.size for file in files),
    )


def _made(arguments: Namespace, read: InputSummary, now_ms: int, folder: ReportFolder) -> ReportData:
    from kestrel.spark.history.histories import histories
    from kestrel.spark.job_progress import JobProgress
    from kestrel.spark.reports.tables import ReportRequest, write_report

    with ExitStack() as stack:
        with capture_stderr():
            spark = stack.enter_context(start_spark(TOOL, arguments.master))
        folder.begin()  # not before: else a report that was there is lost when Spark cannot be started
        stack.enter_context(_partitions(spark, read.bytes))
        stack.enter_context(JobProgress(spark, "reporting"))
        records = _table(spark, arguments, payload="false")
        items = histories(records, dict(arguments.max_items) or None, arguments.queue)
        problems = _table(spark, arguments, view="errors")
        return write_report(items, problems, read, ReportRequest(now_ms, arguments.interval), folder.write)


@contextmanager
def _partitions(spark: SparkSession, size: int) -> Iterator[None]:
    """Spark's 200 are for much more than most folders hold: each is a task, and so a file of each table."""
    before = spark.conf.get(_PARTITIONS)
    spark.conf.set(_PARTITIONS, str(_LEAST_PARTITIONS + size // _PARTITION_BYTES))
    try:
        yield
    finally:
        spark.conf.set(_PARTITIONS, before or "200")


def _table(spark: SparkSession, arguments: Namespace, **options: str) -> DataFrame:
    named = {"server": arguments.server, "queue": arguments.queue}
    options |= {key: value for key, value in named.items() if value is not None}
    return spark.read.format("kestrel").options(**options).load(arguments.folders)


def _check_drawn() -> None:
    """Raise `ToolFailed` unless there is what makes the page."""
    missing = [name for name in ("matplotlib", "jinja2") if importlib.util.find_spec(name) is None]
    if missing:
        raise ToolFailed(f"{' and '.join(missing)} not installed: pip install 'kestrel-mq[spark]'", EX_USAGE)


# Arguments.


def _text(argument: str) -> str:
    try:
        argument.encode()
    except UnicodeEncodeError:
        raise ArgumentTypeError("Spark takes names that are UTF-8: rename it, or make a link to it") from None
    return argument


def _out(text: str) -> str:
    return path_name(_text(text))


def _folder(text: str) -> str:
    """A whole path: Spark may be at work in another folder than this one. A URI is one."""
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
        raise ArgumentTypeError(f"{text!r} names no queue and its limit: write it as in orders=10000")
    return queue, positive(limit)


def _time_ms(text: str) -> int:
    if _MILLISECONDS.fullmatch(text):
        time_ms = int(text)
    else:
        try:
            moment = datetime.fromisoformat(text)
            time_ms = int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
        except (ValueError, OverflowError):
            raise ArgumentTypeError(f"{text!r} is no time: write it as in 2026-01-31T12:00:00") from None
    if not 0 <= time_ms <= _LATEST_MS:
        raise ArgumentTypeError(f"{text!r} is no time since 1970 that a journal could have")
    return time_ms


if __name__ == "__main__":
    sys.exit(main())
