"""Import of items into a folder of journals: one task writes each queue, and all are published together."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from glob import glob, has_magic
from typing import Any, Final, NamedTuple

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kestrel.disk.files import Disk
from kestrel.errors import BadQueueName
from kestrel.journal.records import MAX_DATA_BYTES
from kestrel.names import check_queue_name
from kestrel.spark.columns import EXPORTED_TEXTS
from kestrel.spark.fleet.export import ExportFormat, whole_path
from kestrel.spark.fleet.import_target import WRITTEN, ImportTarget, ImportWriter
from kestrel.spark.options import SourceFailed
from kestrel.spark.task_map import max_tasks
from kestrel.tools.convert.targets import JournalTarget
from kestrel.tools.formatting import count, show_text
from kestrel.tools.tool_runner import EX_USAGE, ToolFailed

_MOST_ERRORS: Final = 2**31 - 1
_NEEDED: Final[dict[str, T.DataType]] = {"queue": T.StringType()}
_OPTIONAL: Final[dict[str, T.DataType]] = {
    "server": T.StringType(),
    "folder": T.StringType(),
    "position": T.LongType(),
    "errors": T.IntegerType(),
}
_TIMES: Final = {"add_time": "add_ms", "expiry_time": "expiry_ms"}
"""Columns of timestamps, and their names in exports of version 1.0, which have ms since 1970."""
_WHOLE: Final = (T.LongType, T.IntegerType, T.ShortType, T.ByteType)
_ORDER: Final = ("position", "add_ms")


_BAD: Final = T.StructField("_corrupt_record", T.StringType())
"""Spark's column for invalid lines. If a job failed for one, Spark would print the line, with the item's data."""


class ImportedQueue(NamedTuple):
    """A queue that an import has made."""

    queue: str
    """Name as its file spells it."""
    items: int
    bytes: int
    """Length of its journal file."""


def read_items(spark: SparkSession, path: str, form: ExportFormat | None = None) -> DataFrame:
    """Return a table of items for `import_items`, from files that were exported or made elsewhere.

    Without `form`, the endings of the file names decide. An invalid line becomes a row that `import_items` refuses.
    Raises `SourceFailed`.
    """
    for folder in glob(path) if has_magic(path) else [path]:
        _check_whole(folder)
    form = form or _form_of(path)
    try:
        if form is ExportFormat.PARQUET:
            return spark.read.parquet(whole_path(path))
        old_times = [T.StructField(name, T.LongType()) for name in _TIMES.values()]
        columns = T.StructType([*EXPORTED_TEXTS, *old_times, _BAD])
        reader = spark.read.schema(columns).option("maxStringLen", MAX_DATA_BYTES)
        reader = reader.option("mode", "PERMISSIVE").option("columnNameOfCorruptRecord", _BAD.name)
        return reader.json(whole_path(path))
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            raise SourceFailed(f"there is no {path}: name a folder of exported items") from None
        raise SourceFailed(f"{path} cannot be read as {form.value}: name a folder that has only items") from error


def _check_whole(path: str) -> None:
    """Raise `SourceFailed` if a folder of parts lacks ``_SUCCESS`` or has ``_temporary``: Spark did not finish it."""
    names = os.listdir(path) if os.path.isdir(path) else []
    has_parts = any(name.startswith("part-") for name in names)
    if "_temporary" in names or (has_parts and "_SUCCESS" not in names):
        raise SourceFailed(
            f"{path} is incomplete: its writer was interrupted (there is no _SUCCESS, or there is"
            f" _temporary): export it again, or import the existing parts as {path}/part-*"
        )


def _form_of(path: str) -> ExportFormat:
    if not (os.path.lexists(path) or "://" in path or has_magic(path)):
        raise SourceFailed(f"there is no {path}: name a folder of exported items")
    names = os.listdir(path) if os.path.isdir(path) else [path]
    if any(name.endswith(".parquet") for name in names):
        return ExportFormat.PARQUET
    if any(name.endswith((".json", ".jsonl", ".json.gz", ".jsonl.gz")) for name in names):
        return ExportFormat.JSON_LINES
    raise SourceFailed(f"{path} has neither .parquet nor .json files: say what they are with --format")


def import_items(
    spark: SparkSession,
    items: DataFrame,
    into: str,
    *,
    server: str | None = None,
    queues: Sequence[bytes] = (),
    now_ms: int | None = None,
) -> list[ImportedQueue]:
    """Make queues from these items in the folder `into`, which is created if needed. No server may be running there.

    The table has the columns queue and data (or text data and base64), and optionally server, folder, position,
    add_time, expiry_time and errors. Instead of times it may have add_ms and expiry_ms, in ms since 1970. Items are
    sorted by position, or by add time; without both columns their order is undefined. With `server` only its items are
    imported, and with `queues` only these queues. `now_ms` is the time, and the add time of items without one. On
    return all queues exist. If this raises `SourceFailed`, `ToolFailed` or OSError, none exists, or the error names
    those that do.
    """
    now = int(time.time() * 1000) if now_ms is None else now_ms
    target = ImportTarget(Disk(), os.path.abspath(os.fsencode(into)), now)
    target.check()
    if os.path.isdir(target.path):
        with target.owned():  # fail early if a server owns the folder
            pass
    table = _normal(items, now)
    if server is not None:
        table = table.where(F.col("is_bad") | (F.col("server") == server))
    if queues:
        table = table.where(F.col("is_bad") | F.col("queue").isin([name.decode("latin-1") for name in queues]))
    seen = table.groupBy("queue", "server", "folder").agg(*_survey()).collect()
    names = check_survey([row.asDict() for row in seen])
    fronts = _fronts(table) if any(row["most_errors"] for row in seen) else {}
    with target.owned():
        target.check(names)
        target.check_room(sum(row["items"] for row in seen), sum(row["data_bytes"] or 0 for row in seen))
        writing = ImportWriter(target.path, now, now, fronts)
        try:
            written = _write(spark, table, len(names), writing)
            target.publish(_checked(written, {row["queue"]: row["items"] for row in seen}))
        finally:
            with suppress(OSError):  # the next import erases the temporary files
                target.erase_temporary()
    return [ImportedQueue(row["queue"], row["items"], row["bytes"]) for row in written]


def _normal(items: DataFrame, now_ms: int) -> DataFrame:
    """Return the items with all columns and their defaults. Raises `SourceFailed`."""
    kinds = check_columns(items.schema)
    defaults: Mapping[str, object] = {"server": "", "folder": "", "errors": 0}
    columns: list[Column] = []
    for name, kind in {**_NEEDED, **_OPTIONAL}.items():
        column = F.col(name) if name in kinds else F.lit(None)
        column = column.cast(kind)
        if name in defaults:
            column = F.coalesce(column, F.lit(defaults[name]).cast(kind))
        columns.append(column.alias(name))
    for (name, name_ms), default_ms in zip(_TIMES.items(), (now_ms, 0), strict=True):
        given = [F.unix_millis(name)] if name in kinds else []
        given += [F.col(name_ms).cast(T.LongType())] if name_ms in kinds else []
        columns.append(F.coalesce(*given, F.lit(default_ms).cast(T.LongType())).alias(name_ms))
    data = F.col("data").cast(T.BinaryType())
    if "base64" in kinds:
        data = F.coalesce(data, F.try_to_binary(F.col("base64"), F.lit("base64")))  # to_binary's error shows the item
    is_bad = F.col(_BAD.name).isNotNull() if _BAD.name in kinds else F.lit(False)
    return items.select(*columns, data.alias("data"), is_bad.alias("is_bad"))


def check_columns(schema: T.StructType) -> Mapping[str, T.DataType]:
    """Return the types of the columns by name. Raises `SourceFailed` for a wrong type, or without queue or data.

    No type is converted implicitly: a number as a timestamp has other units, and bytes may not be valid text.
    """
    kinds = {field.name: field.dataType for field in schema}
    for name in ("queue", "data"):
        if name not in kinds:
            raise SourceFailed(f"the items have no column {name}: they have {', '.join(kinds)}")
    known: dict[str, tuple[type[T.DataType], ...]] = {
        **{name: (T.StringType,) if kind == T.StringType() else _WHOLE for name, kind in (_NEEDED | _OPTIONAL).items()},
        **dict.fromkeys(_TIMES, (T.TimestampType,)),
        **dict.fromkeys(_TIMES.values(), _WHOLE),
        "data": (T.BinaryType, T.StringType),
        "base64": (T.StringType,),
    }
    for name, allowed in known.items():
        if name in kinds and not isinstance(kinds[name], (*allowed, T.NullType)):
            wanted = " or ".join(kind.typeName() for kind in allowed)
            raise SourceFailed(f"the column {name} is {kinds[name].simpleString()}: make it {wanted}")
    return kinds


def _survey() -> list[Column]:
    """Return the aggregates for `check_survey`, to be grouped by queue, server and folder."""
    size = F.octet_length("data")
    return [
        F.count(F.lit(1)).alias("items"),
        F.sum(size).alias("data_bytes"),
        F.max(size).alias("largest"),
        F.count_if(F.col("data").isNull()).alias("without_data"),
        F.min("errors").alias("least_errors"),
        F.max("errors").alias("most_errors"),
        F.count_if("is_bad").alias("bad"),
        F.max(F.struct("position", "add_ms", "expiry_ms")).alias("read"),  # makes Spark parse these columns
    ]


def check_survey(seen: Sequence[Mapping[str, Any]]) -> list[bytes]:
    """Return the names of the queues. Raises `ToolFailed` if one cannot be made.

    `seen` has the figures of each queue in each server and folder.
    """
    if not seen:
        raise ToolFailed("there are no items to import", EX_USAGE)
    if bad := sum(row["bad"] for row in seen):
        raise ToolFailed(
            f"{count(bad, 'line')} of the items cannot be read as JSON, or a column has a wrong type: nothing is"
            " imported; remove or correct these lines",
            EX_USAGE,
        )
    owners: dict[str, str] = {}
    names = []
    for row in seen:
        spelled = row["queue"]
        if spelled is None:
            raise ToolFailed("there are items without a queue: give them one, or leave them out", EX_USAGE)
        shown = show_text(spelled)
        name = _name_of(spelled)
        owner = f"server {row['server']}, folder {row['folder']}"
        if spelled in owners:
            raise ToolFailed(
                f"the queue {shown} is of {show_text(owners[spelled])} and of {show_text(owner)}: choose one with"
                " --server, and import the others into other folders",
                EX_USAGE,
            )
        owners[spelled] = owner
        names.append(name)
        if row["without_data"]:
            raise ToolFailed(f"queue {shown}: {row['without_data']} of its items have no data", EX_USAGE)
        if row["largest"] > JournalTarget.max_data_bytes:
            raise ToolFailed(f"queue {shown}: an item has at most {JournalTarget.max_data_bytes} bytes", EX_USAGE)
        if row["least_errors"] < 0:
            raise ToolFailed(f"queue {shown}: errors are a number from 0 to {_MOST_ERRORS}", EX_USAGE)
    return names


def _name_of(spelled: str) -> bytes:
    try:
        name = spelled.encode("latin-1")
        check_queue_name(name)
    except UnicodeEncodeError:
        raise ToolFailed(
            f"no queue can have the name {show_text(spelled)}: write each byte of it as the Latin-1 character of that"
            " number",
            EX_USAGE,
        ) from None
    except BadQueueName as error:
        raise ToolFailed(f"no queue can have the name {show_text(spelled)}: {error}", EX_USAGE) from None
    if not JournalTarget.accepts_name(name):
        raise ToolFailed(f"the name {show_text(spelled)} is too long for a file", EX_USAGE)
    return name


def _fronts(table: DataFrame) -> dict[str, int]:
    """Return the number of items up to the last one with errors, for each queue that has errors."""
    order = F.struct(*(F.coalesce(F.col(name), F.lit(-1)) for name in _ORDER))
    last = table.where(F.col("errors") > 0).groupBy("queue").agg(F.max(order).alias("last"))
    before = table.select("queue", order.alias("order")).join(F.broadcast(last), "queue")
    counted = before.where(F.col("order") <= F.col("last")).groupBy("queue").count()
    return {row["queue"]: row["count"] for row in counted.collect()}


def _write(spark: SparkSession, table: DataFrame, queues: int, writing: ImportWriter) -> list[Mapping[str, Any]]:
    """Write the queues in tasks, and return the results sorted by queue name."""
    order = [F.col(name).asc_nulls_first() for name in ("queue", *_ORDER)]
    parts = table.drop("server", "folder", "is_bad").repartition(min(queues, max_tasks(spark)), "queue")
    rows = parts.sortWithinPartitions(*order).mapInArrow(writing, WRITTEN).collect()
    return sorted((row.asDict() for row in rows), key=lambda row: str(row["queue"]))


def _checked(written: Sequence[Mapping[str, Any]], items: Mapping[str, int]) -> list[tuple[bytes, int]]:
    """Return the queues with the numbers of their files, if all items were written. Raises `ToolFailed`."""
    for row in written:
        if row["problem"] is not None:
            raise ToolFailed(f"nothing is imported: {row['problem']}")
    if [(row["queue"], row["items"]) for row in written] != sorted(items.items()):
        raise ToolFailed("nothing is imported: the items changed during the import: import files that do not change")
    return [(row["queue"].encode("latin-1"), row["number"]) for row in written]
