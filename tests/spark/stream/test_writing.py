"""Writers, as a driver makes them and tasks use them."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from kestrel.spark.options import SourceFailed
from kestrel.spark.source import KestrelSource
from kestrel.spark.stream.queue_writer import ItemsPut, QueueStreamWriter, QueueWriter
from tests.server.running import ANY_PORT, PATIENCE_S, Processes, Server, eventually, own_port
from tests.spark.stream.ddl import columns_of
from tests.spark.stream.live import address_of, taken

CONFIG = """
queuePath = "queues"
maxRequestItemSize = "1MiB"
[[queues]]
name = "small"
maxItems = 3
"""

DATA = "data BINARY"


@pytest.fixture
def server(processes: Processes) -> Server:
    return processes.serve(CONFIG, "--thrift", ANY_PORT)


def writer(servers: str, schema: str = DATA, queue: str = "work", **options: str) -> QueueWriter:
    """Return the writer as a task gets it."""
    given = {"servers": servers, "queue": queue, "timeout": str(PATIENCE_S), **options}
    made: QueueWriter = pickle.loads(pickle.dumps(KestrelSource(given).writer(columns_of(schema), overwrite=False)))
    return made


def rows(*batches: Any) -> Iterator[pa.RecordBatch]:
    for columns in batches:
        yield pa.RecordBatch.from_pydict(columns)


def test_rows_are_items_of_the_queue(server: Server) -> None:
    items = [b"%d" % number for number in range(1200)]
    message = writer(address_of(server)).write(rows({"data": items[:1000]}, {"data": items[1000:]}))
    assert taken(server) == items
    assert pickle.loads(pickle.dumps(message)) == ItemsPut({address_of(server): 1200})


def test_server_killed_between_two_batches_has_both(processes: Processes) -> None:
    with own_port() as port:
        thrift = ("--thrift", f"tcp:{port}:interface=127.0.0.1")
        servers = [processes.serve(CONFIG, *thrift)]

        def batches() -> Iterator[pa.RecordBatch]:
            yield from rows({"data": [b"a"]})
            servers[0].kill()
            servers[0] = processes.serve(CONFIG, *thrift)
            yield from rows({"data": [b"b"]})

        message = writer(f"127.0.0.1:{port}", patience="0").write(batches())
        assert message == ItemsPut({f"127.0.0.1:{port}": 2})
        assert taken(servers[0]) == [b"a", b"b"]


def test_items_expire_as_their_rows_say(server: Server) -> None:
    schema = "data STRING, expires_in_ms BIGINT"
    batch = {"data": ["gone", "later", "never"], "expires_in_ms": [-1, 3_600_000, None]}
    writer(address_of(server), schema).write(rows(batch))
    assert sorted(taken(server)) == [b"later", b"never"]


@pytest.mark.parametrize("size", [(1 << 20) + 1, (16 << 20) + 1])
def test_item_that_no_server_accepts_fails_the_task_at_once(server: Server, size: int) -> None:
    items = [b"a", b"b", b"x" * size, b"c"]
    with pytest.raises(SourceFailed, match=rf"^an item of {size} bytes cannot be put to the queue work: .*too large"):
        writer(address_of(server), patience="1d").write(rows({"data": items}))
    assert taken(server) == [b"a", b"b"]


def test_connections_are_closed_when_a_task_ends_or_fails(server: Server) -> None:
    made = writer(address_of(server), queue="small", patience="0")
    made.write(rows({"data": [b"x"]}))
    with pytest.raises(SourceFailed) as caught:  # it would keep all objects alive
        made.write(rows({"data": [b"x"] * 3}))
    with server.connect() as client:
        eventually(lambda: client.stats()["curr_connections"] == "1", "the server has noticed")
    assert caught.tb is not None


def test_task_without_rows_sends_nothing(processes: Processes) -> None:
    with own_port() as port:
        assert writer(f"127.0.0.1:{port}").write(iter(())) == ItemsPut({f"127.0.0.1:{port}": 0})


def stream_writer() -> QueueStreamWriter:
    return KestrelSource({"servers": "mq1,mq2", "queue": "work"}).streamWriter(columns_of(DATA), False)


PUT = [ItemsPut({"mq1:2229": 1, "mq2:2229": 20}), ItemsPut({"mq1:2229": 300, "mq2:2229": 4000})]


def test_log_has_the_number_of_items_of_each_server(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kestrel.spark")
    writer("mq1,mq2").commit(PUT)
    stream_writer().commit(PUT, 7)
    assert caplog.messages == ["4321 items were put to the queue work: mq1:2229 301, mq2:2229 4020"] * 2


def test_log_mentions_possible_duplicates(caplog: pytest.LogCaptureFixture) -> None:
    stream_writer().commit([*PUT, ItemsPut({"mq1:2229": 1}, unsure=1)], 7)
    assert caplog.messages == ["1 items may be twice in the queue work, because a connection was lost"]
    assert caplog.records[0].levelname == "WARNING"


def test_log_of_a_failure_says_that_stored_items_stay(caplog: pytest.LogCaptureFixture) -> None:
    writer("mq1,mq2").abort([*PUT, None])
    stream_writer().abort([None, *PUT], 7)
    [sentence, again] = caplog.messages
    assert sentence == again
    assert sentence == (
        "not all items were put to the queue work; items already put stay: 4321 of the tasks that succeeded, and the "
        "items that the other tasks had put"
    )
