"""The format ``kestrel`` of Spark: ``spark.read.format("kestrel").load("/var/spool/kestrel")`` and its streams."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from kestrel.spark.columns import ITEMS
from kestrel.spark.failures import SourceFailed
from kestrel.spark.option_values import has_paths
from kestrel.spark.schemas import check_schema
from kestrel.spark.stream.archive import archive_reader_of
from kestrel.spark.stream.archive_options import is_archive_stream, parse_archive_options
from kestrel.spark.stream.open_reads import OpenReadsReader
from kestrel.spark.stream.queue_writer import QueueStreamWriter, QueueWriter, stream_writer_of, writer_of
from kestrel.spark.stream.ranges import RangesReader
from kestrel.spark.stream.servers import has_server_options
from kestrel.spark.stream.sink_options import parse_sink_options
from kestrel.spark.stream.stream_options import Delivery, parse_stream_options
from kestrel.spark.table.options import parse_options
from kestrel.spark.table.reader import reader_of, schema_of


class KestrelSource(DataSource):
    """Files, named by paths, or the queues of servers. docs/spark.md has the options and the columns."""

    @classmethod
    def name(cls) -> str:
        """As ``format`` calls it."""
        return "kestrel"

    def schema(self) -> StructType:
        """The columns that there are."""
        if has_server_options(self.options):
            return ITEMS
        if is_archive_stream(self.options):
            return schema_of(parse_archive_options(self.options).table)
        return schema_of(parse_options(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """A table of files."""
        if has_server_options(self.options):
            raise SourceFailed('a live queue is read as a stream: spark.readStream.format("kestrel")')
        return reader_of(parse_options(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The items of live queues, or the files of an archive as they come."""
        if not has_server_options(self.options):
            if not has_paths(self.options):
                raise SourceFailed(
                    'a stream comes out of queues: option("servers", "mq1,mq2").option("queue", "work");'
                    ' or out of an archive: load("/srv/archive")'
                )
            return archive_reader_of(parse_archive_options(self.options), schema)
        options = parse_stream_options(self.options)
        check_schema(schema, ITEMS)
        return (RangesReader if options.delivery is Delivery.EXACTLY_ONCE else OpenReadsReader)(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> QueueWriter:
        """Puts rows to a live queue."""
        return writer_of(parse_sink_options(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> QueueStreamWriter:
        """Puts the rows of a stream to a live queue."""
        return stream_writer_of(parse_sink_options(self.options), schema, overwrite=overwrite)
