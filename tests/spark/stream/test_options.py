"""Every option of a stream from and to queues, and the errors of wrong ones."""

from __future__ import annotations

import math

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

WORK = {"servers": "mq1", "subscribe": "work"}
SINK = {"servers": "mq1", "queue": "work"}
ONCE = {"delivery": "at_least_once"}
DATA = columns_of("data BINARY")


def parsed(**given: str) -> StreamOptions:
    return parse_stream_options({**WORK, **given})


def test_servers_and_a_queue_are_enough() -> None:
    options = parsed(servers="mq1, mq2:2230")
    assert options.servers.addresses == ("mq1:2229", "mq2:2230")
    assert options.queues == ("work",)
    assert (options.delivery, options.reader) == (Delivery.EXACTLY_ONCE, b"spark")
    assert (options.max_items, options.slices) == (100_000, 4)


def test_at_least_once_has_its_own_defaults() -> None:
    options = parsed(**ONCE)
    assert options.delivery is Delivery.AT_LEAST_ONCE
    assert (options.max_items, options.max_bytes, options.hold_ms) == (50_000, 32 * 1024**2, 300_000)


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ({"delivery": "AT_LEAST_ONCE"}, "delivery", Delivery.AT_LEAST_ONCE),
        ({"reader": "räder"}, "reader", "räder".encode()),
        ({"subscribe": "work, mail,work"}, "queues", ("work", "mail")),
        ({"MAXOFFSETSPERTRIGGER": "7"}, "max_items", 7),
        ({"maxBytesPerTrigger": "1GB"}, "max_bytes", 1024**3),
        ({"startingOffsets": "earliest"}, "start_ms", 0),
        ({"startingOffsets": "Latest"}, "start_ms", math.inf),
        ({"startingOffsets": "2026-01-31T12:00:00"}, "start_ms", 1_769_860_800_000),
        ({"startingOffsets": "2026-01-31T12:00:00+01:00"}, "start_ms", 1_769_857_200_000),
        ({"failOnDataLoss": "false"}, "fails_on_data_loss", False),
        ({"slices": "1"}, "slices", 1),
        ({**ONCE, "maxBytesPerTrigger": "1000"}, "max_bytes", 1000),
        ({**ONCE, "maxBytesPerTrigger": "64MiB"}, "max_bytes", 64 * 1024**2),
        ({**ONCE, "startingOffsets": "earliest"}, "start_ms", 0),
        ({**ONCE, "hold": "1s"}, "hold_ms", 1000),
        ({**ONCE, "hold": "24 hours"}, "hold_ms", 24 * 3_600_000),
    ],
)
def test_option_has_a_meaning(given: dict[str, str], field: str, value: object) -> None:
    assert getattr(parsed(**given), field) == value


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"delivery": "once"}, "delivery must be exactly_once or at_least_once, not 'once'"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger must be a whole number of at least 1, not '0'"),
        ({"slices": "many"}, "slices must be a whole number of at least 1, not 'many'"),
        ({"reader": ""}, "reader must be a name of 1 to 255 bytes, not 0"),
        ({"reader": "x" * 256}, "reader must be a name of 1 to 255 bytes, not 256"),
        ({**ONCE, "reader": "x"}, r'reader requires option\("delivery", "exactly_once"\)'),
        ({"hold": "1m"}, r'hold requires option\("delivery", "at_least_once"\)'),
        ({"maxBytesPerTrigger": "0"}, "maxBytesPerTrigger must be from 1 to 9223372036854775807, not '0'"),
        ({**ONCE, "failOnDataLoss": "false"}, r'failOnDataLoss requires option\("delivery", "exactly_once"\)'),
        ({"failOnDataLoss": "no"}, "failOnDataLoss must be true or false"),
        ({**ONCE, "hold": "0"}, "hold must be at least 1s, not 0"),
        ({**ONCE, "hold": "2 days"}, "hold is at most 1d, not 2 days"),
        ({**ONCE, "hold": "a while"}, "hold: "),
        ({**ONCE, "maxBytesPerTrigger": "0"}, "maxBytesPerTrigger must be from 1 to 67108864, not '0'"),
        ({**ONCE, "maxBytesPerTrigger": "1GB"}, "maxBytesPerTrigger must be from 1 to 67108864, not '1GB'"),
        ({**ONCE, "maxBytesPerTrigger": "sheep"}, "maxBytesPerTrigger: "),
        ({"maxoffset": "1"}, "there is no option maxoffset; did you mean maxOffsetsPerTrigger?"),
        ({"subscribe": " ,"}, r'no queue is given: option\("subscribe", "work,mail"\)'),
        ({"subscribe": "work,a/b"}, "subscribe: a queue name cannot hold"),
        ({"subscribePattern": "w.*"}, "subscribe cannot be combined with subscribePattern"),
        ({"queue": "work"}, "subscribe is given twice, once under another name"),
        ({"startingOffsets": '{"work": {"0": 5}}'}, "startingOffsets must be earliest, latest or a time such as 2026-"),
        (
            {**ONCE, "startingOffsets": "latest"},
            r"startingOffsets must be earliest with .* flush work\), or read a new",
        ),
        ({**ONCE, "startingOffsets": "2026-01-31"}, "startingOffsets must be earliest with"),
    ],
)
def test_wrong_option_is_reported(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(SourceFailed, match=sentence):
        parsed(**given)


def test_pattern_must_match_the_whole_name() -> None:
    options = parse_stream_options({"servers": "mq1", "subscribePattern": "w[ao]rk"})
    assert options.subscribes("work") and not options.subscribes("works")
    with pytest.raises(SourceFailed, match="subscribePattern is not a regular expression of Python: missing"):
        parse_stream_options({"servers": "mq1", "subscribePattern": "(w"})


def test_names_of_release_1_0_are_aliases() -> None:
    old = {"servers": "mq1", "queue": "work", "maxRows": "7", **ONCE, "maxBytes": "1000"}
    new = {**WORK, "maxOffsetsPerTrigger": "7", **ONCE, "maxBytesPerTrigger": "1000"}
    assert parse_stream_options(old) == parse_stream_options(new)


def test_delivery_chooses_the_reader() -> None:
    assert isinstance(KestrelSource(WORK).streamReader(ITEMS), RangesReader)
    assert isinstance(KestrelSource({**WORK, **ONCE}).streamReader(ITEMS), OpenReadsReader)


def test_unknown_column_is_named() -> None:
    source = KestrelSource(WORK)
    assert source.schema() == ITEMS
    with pytest.raises(SourceFailed, match="there is no column size: the columns are server, queue, item_id"):
        source.streamReader(StructType([StructField("size", IntegerType())]))


def test_missing_servers_are_reported() -> None:
    with pytest.raises(SourceFailed, match=r'a stream reads queues: option\("servers"'):
        KestrelSource({"queue": "work"}).streamReader(ITEMS)


# Writing.


def test_servers_and_a_queue_are_enough_to_write() -> None:
    assert parse_sink_options(SINK) == SinkOptions(StreamServers(("mq1:2229",)), "work", has_keys=False)
    assert parse_sink_options({**SINK, "KEYS": "True"}).has_keys


@pytest.mark.parametrize(
    ("queue", "sentence"),
    [
        ("", "queue: queue name required"),
        ("a/b", "queue: a queue name cannot hold /"),
        ("x" * 201, "queue: a queue name cannot be longer than 200 bytes"),
        ("\ud800", "queue: queue name is not valid UTF-8"),
    ],
)
def test_invalid_queue_name_is_reported(queue: str, sentence: str) -> None:
    with pytest.raises(SourceFailed, match=f"^{sentence}"):
        parse_sink_options({**SINK, "queue": queue})


def test_internal_options_of_spark_are_ignored() -> None:
    given = {**SINK, "checkpointLocation": "/checkpoint", "queryname": "copy"}
    assert parse_sink_options(given) == parse_sink_options(SINK)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"path": "/spool"}, r'^journal files are read-only; to write to live queues, use option\("servers"'),
        ({"queue": "work"}, "^journal files are read-only"),
        ({"servers": "mq1"}, "^no queue is given"),
        ({**SINK, "path": "/spool"}, "^there is no option path: the options are servers, .*, queue, keys$"),
        ({**SINK, "key": "true"}, "^there is no option key; did you mean keys"),
        ({**SINK, "keys": "yes"}, "^keys must be true or false, not 'yes'"),
    ],
)
def test_unsupported_modes_are_reported_for_tables_and_streams(given: dict[str, str], sentence: str) -> None:
    for make_writer in (KestrelSource(given).writer, KestrelSource(given).streamWriter):
        with pytest.raises(SourceFailed, match=sentence):
            make_writer(DATA, False)


def test_queue_cannot_be_overwritten() -> None:
    with pytest.raises(SourceFailed, match=r'a queue cannot be overwritten: write with mode\("append"\)$'):
        KestrelSource(SINK).writer(DATA, True)
    with pytest.raises(SourceFailed, match=r'a queue cannot be overwritten: write with outputMode\("append"\)$'):
        KestrelSource(SINK).streamWriter(DATA, True)


def test_columns_are_checked_before_any_task_runs() -> None:
    for make_writer in (KestrelSource(SINK).writer, KestrelSource(SINK).streamWriter):
        with pytest.raises(SourceFailed, match=r"^a queue has no column value"):
            make_writer(columns_of("value STRING"), False)
