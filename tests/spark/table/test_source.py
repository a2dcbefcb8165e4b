"""The source as Spark finds it: its columns, filters, and the imports of a worker."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

import pyspark_kestrel
from kestrel.spark.columns import PROBLEMS, RECORDS
from kestrel.spark.options import SourceFailed
from kestrel.spark.source import KestrelSource
from kestrel.spark.table.reader import FilteringReader, JournalReader
from tests.child import PATIENCE_S
from tests.spark.tables import journal_reader, source


def test_spark_finds_it_by_its_name() -> None:
    assert pyspark_kestrel.DefaultSource is KestrelSource
    assert KestrelSource.name() == "kestrel"


def test_worker_does_not_import_twisted() -> None:
    code = "import sys, kestrel.spark.source; print([name for name in sys.modules if name.startswith('twisted')])"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert done.stdout == "[]\n"


def test_columns_are_those_of_the_view() -> None:
    assert source("/spool").schema() == RECORDS
    assert source("/spool", payload="false").schema().names == RECORDS.names[:-1]
    assert source("/spool", view="errors").schema() == PROBLEMS
    assert all(field.metadata["comment"] for field in (*RECORDS, *PROBLEMS))


@pytest.mark.parametrize(
    ("field", "options", "sentence"),
    [
        (StructField("size", LongType()), {}, r"there is no column size: the columns are server, folder"),
        (StructField("bytes", IntegerType()), {}, r"the column bytes is bigint, not int"),
        (StructField("xid", IntegerType(), False), {}, r"the column xid may be null: leave out NOT NULL"),
        (RECORDS["data"], {"payload": "false"}, r'no column data with option\("payload", "false"\): the columns'),
        (RECORDS["data"], {"view": "errors"}, r"there is no column data: the columns are server"),
        (RECORDS["op"], {"view": "errors"}, r"there is no column op: the columns are server"),
    ],
)
def test_unknown_column_is_named(field: StructField, options: dict[str, str], sentence: str) -> None:
    with pytest.raises(SourceFailed, match=sentence):
        source("/spool", **options).reader(StructType([field]))


def test_filters_are_pushed_only_with_the_option() -> None:
    """Spark refuses a source that has `pushFilters` unless its own setting allows it."""
    plain, pushing = source("/spool").reader(RECORDS), source("/spool", filterPushdown="true").reader(RECORDS)
    assert type(plain) is JournalReader and type(pushing) is FilteringReader
    errors = source("/spool", filterPushdown="true", view="errors").reader(PROBLEMS)
    assert type(errors) is JournalReader


def test_task_without_files_reads_nothing(tmp_path: Path) -> None:
    reader = journal_reader(source(tmp_path))
    assert reader.partitions() == []
    assert list(reader.read(InputPartition(None))) == []  # Spark makes one then
