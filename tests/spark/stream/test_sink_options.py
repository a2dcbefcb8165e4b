"""The options of writing to a live queue."""

from __future__ import annotations

import pytest

from kestrel.spark.failures import SourceFailed
from kestrel.spark.source import KestrelSource
from kestrel.spark.stream.options import SinkOptions, parse_sink_options
from kestrel.spark.stream.servers import StreamServers
from tests.spark.stream.ddl import columns_of

WORK = {"servers": "mq1", "queue": "work"}
DATA = columns_of("data BINARY")


def test_servers_and_a_queue_are_enough() -> None:
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
