"""Every option of a stream out of queues and of writing to one, and what is said to whoever mistakes one."""

from __future__ import annotations

import pytest
from pyspark.sql.types import IntegerType, StructField, StructType

from kestrel.spark.columns import ITEMS
from kestrel.spark.options import SourceFailed
from kestrel.spark.source import KestrelSource
from kestrel.spark.stream.open_reads import OpenReadsReader
from kestrel.spark.stream.options import (
    Delivery,
    SinkOptions,
    StreamOptions,
    StreamServers,
    parse_sink_options,
    parse_stream_options,
)
from kestrel.spark.stream.ranges import RangesReader
from tests.spark.stream.ddl import columns_of

WORK = {"servers": "mq1", "queue": "work"}
ONCE = {"delivery": "at_least_once"}
DATA = columns_of("data BINARY")


def parsed(**given: str) -> StreamOptions:
    return parse_stream_options({**WORK, **given})


def test_servers_and_a_queue_are_enough() -> None:
    options = parsed(servers="mq1, mq2:2230")
    assert options.servers.addresses == ("mq1:2229", "mq2:2230")
    assert (options.servers.queue, options.queue) == (b"work", "work")
    assert (options.delivery, options.reader) == (Delivery.EXACTLY_ONCE, b"spark")
    assert (options.max_rows, options.slices) == (100_000, 4)


def test_at_least_once_has_defaults_of_its_own() -> None:
    options = parsed(**ONCE)
    assert options.delivery is Delivery.AT_LEAST_ONCE
    assert (options.max_rows, options.max_bytes, options.hold_ms) == (10_000, 16 * 1024**2, 300_000)


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ({"delivery": "AT_LEAST_ONCE"}, "delivery", Delivery.AT_LEAST_ONCE),
        ({"reader": "räder"}, "reader", "räder".encode()),
        ({"MAXROWS": "7"}, "max_rows", 7),
        ({"slices": "1"}, "slices", 1),
        ({**ONCE, "maxBytes": "1000"}, "max_bytes", 1000),
        ({**ONCE, "maxBytes": "64MiB"}, "max_bytes", 64 * 1024**2),
        ({**ONCE, "hold": "1s"}, "hold_ms", 1000),
        ({**ONCE, "hold": "24 hours"}, "hold_ms", 24 * 3_600_000),
    ],
)
def test_an_option_says(given: dict[str, str], field: str, value: object) -> None:
    assert getattr(parsed(**given), field) == value


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"delivery": "once"}, "delivery must be exactly_once or at_least_once, not 'once'"),
        ({"maxRows": "0"}, "maxRows must be a whole number of at least 1, not '0'"),
        ({"slices": "many"}, "slices must be a whole number of at least 1, not 'many'"),
        ({"reader": ""}, "reader must be a name of 1 to 255 bytes, not 0"),
        ({"reader": "x" * 256}, "reader must be a name of 1 to 255 bytes, not 256"),
        ({**ONCE, "reader": "x"}, r'reader requires option\("delivery", "exactly_once"\)'),
        ({"hold": "1m"}, r'hold requires option\("delivery", "at_least_once"\)'),
        ({"maxBytes": "1"}, r'maxBytes requires option\("delivery", "at_least_once"\)'),
        ({**ONCE, "hold": "0"}, "hold must be at least 1s, not 0"),
        ({**ONCE, "hold": "2 days"}, "hold is at most 1d, not 2 days"),
        ({**ONCE, "hold": "a while"}, "hold: "),
        ({**ONCE, "maxBytes": "0"}, "maxBytes must be from 1 to 67108864, not '0'"),
        ({**ONCE, "maxBytes": "1GB"}, "maxBytes must be from 1 to 67108864, not '1GB'"),
        ({**ONCE, "maxBytes": "sheep"}, "maxBytes: "),
        ({"maxrow": "1"}, "there is no option maxrow; did you mean maxRows?"),
        ({"startingOffsets": "earliest"}, "there is no option startingOffsets"),
    ],
)
def test_a_mistake_is_told(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(SourceFailed, match=sentence):
        parsed(**given)


def test_the_delivery_chooses_the_reader() -> None:
    assert isinstance(KestrelSource(WORK).streamReader(ITEMS), RangesReader)
    assert isinstance(KestrelSource({**WORK, **ONCE}).streamReader(ITEMS), OpenReadsReader)


def test_a_column_that_is_not_there_is_named() -> None:
    source = KestrelSource(WORK)
    assert source.schema() == ITEMS
    with pytest.raises(SourceFailed, match="there is no column size: the columns are server, queue, item_id"):
        source.streamReader(StructType([StructField("size", IntegerType())]))


def test_a_stream_without_servers_says_what_it_needs() -> None:
    with pytest.raises(SourceFailed, match=r'a stream reads queues: option\("servers"'):
        KestrelSource({"queue": "work"}).streamReader(ITEMS)


# Writing.


def test_servers_and_a_queue_are_enough_to_write() -> None:
    assert parse_sink_options(WORK) == SinkOptions(StreamServers(("mq1:2229",), b"work"), has_keys=False)
    assert parse_sink_options({**WORK, "KEYS": "True"}).has_keys


def test_what_spark_hands_on_of_a_stream_is_no_option_of_ours() -> None:
    given = {**WORK, "checkpointLocation": "/checkpoint", "queryname": "copy"}
    assert parse_sink_options(given) == parse_sink_options(WORK)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"path": "/spool"}, r'^journal files are read-only; to write to live queues, use option\("servers"'),
        ({"queue": "work"}, "^journal files are read-only"),
        ({"servers": "mq1"}, "^no queue is given"),
        ({**WORK, "path": "/spool"}, "^there is no option path: the options are servers, queue, .*, keys$"),
        ({**WORK, "key": "true"}, "^there is no option key; did you mean keys"),
        ({**WORK, "keys": "yes"}, "^keys must be true or false, not 'yes'"),
    ],
)
def test_what_cannot_be_done_is_told_for_tables_and_streams(given: dict[str, str], sentence: str) -> None:
    for make_writer in (KestrelSource(given).writer, KestrelSource(given).streamWriter):
        with pytest.raises(SourceFailed, match=sentence):
            make_writer(DATA, False)


def test_what_is_in_a_queue_cannot_be_replaced() -> None:
    with pytest.raises(SourceFailed, match=r'a queue cannot be overwritten: write with mode\("append"\)$'):
        KestrelSource(WORK).writer(DATA, True)
    with pytest.raises(SourceFailed, match=r'a queue cannot be overwritten: write with outputMode\("append"\)$'):
        KestrelSource(WORK).streamWriter(DATA, True)


def test_columns_are_looked_at_before_any_task_runs() -> None:
    for make_writer in (KestrelSource(WORK).writer, KestrelSource(WORK).streamWriter):
        with pytest.raises(SourceFailed, match=r"^a queue has no column value"):
            make_writer(columns_of("value STRING"), False)
