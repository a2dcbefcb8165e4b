"""The Spark data source ``kestrel``, for ``spark.read.format("kestrel").load("/var/spool/kestrel")`` and streams."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from kestrel.spark.columns import ITEMS, check_schema
from kestrel.spark.options import SourceFailed, has_paths
from kestrel.spark.stream.archive import ArchiveReader
from kestrel.spark.stream.open_reads import OpenReadsReader
from kestrel.spark.stream.options import (
    Delivery,
    SinkOptions,
    has_server_options,
    parse_sink_options,
    parse_stream_options,
)
from kestrel.spark.stream.queue_writer import QueueStreamWriter, QueueWriter
from kestrel.spark.stream.ranges import RangesReader
from kestrel.spark.table.options import is_archive_stream, parse_archive_options, parse_options
from kestrel.spark.table.reader import reader_of, schema_of


class KestrelSource(DataSource):
    """A data source for journal files (named by paths) and for the queues of live servers (docs/spark.md)."""

    @classmethod
    def name(cls) -> str:
        return "kestrel"

    def schema(self) -> StructType:
        """Return all columns that the options allow. Raises `SourceFailed` for bad options."""
        if has_server_options(self.options):
            return ITEMS
        if is_archive_stream(self.options):
            return schema_of(parse_archive_options(self.options).table)
        return schema_of(parse_options(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of a table of files. Raises `SourceFailed` for bad options, or if they name servers."""
        if has_server_options(self.options):
            raise SourceFailed('a live queue can be read only as a stream: use spark.readStream.format("kestrel")')
        return reader_of(parse_options(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a stream reader of live queues, or of an archive that receives files. Raises `SourceFailed`."""
        if not has_server_options(self.options):
            if not has_paths(self.options):
                raise SourceFailed(
                    'a stream reads queues: option("servers", "mq1,mq2").option("subscribe", "work");'
                    ' or an archive: load("/srv/archive")'
                )
            archive = parse_archive_options(self.options)
            check_schema(schema, schema_of(archive.table))
            return ArchiveReader(archive, schema)
        options = parse_stream_options(self.options)
        check_schema(schema, ITEMS)
        return (RangesReader if options.delivery is Delivery.EXACTLY_ONCE else OpenReadsReader)(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> QueueWriter:
        """Return a writer that puts rows to a live queue. Raises `SourceFailed`, also with `overwrite`."""
        return QueueWriter(self._sink_options('mode("append")', overwrite=overwrite), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> QueueStreamWriter:
        """Return a writer of a stream's rows to a live queue. Raises `SourceFailed`, also with `overwrite`."""
        return QueueStreamWriter(self._sink_options('outputMode("append")', overwrite=overwrite), schema)

    def _sink_options(self, way_out: str, *, overwrite: bool) -> SinkOptions:
        options = parse_sink_options(self.options)
        if overwrite:
            raise SourceFailed(f"a queue cannot be overwritten: write with {way_out}")
        return options
